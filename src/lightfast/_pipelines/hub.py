"""Pipelines on the Hugging Face Hub, through its mixin: weights, what they belong to, and a page about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.saving import save_weights

try:
    from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
except ImportError:
    raise ImportError(
        "models go to and come from the Hugging Face Hub with its package, not installed here: "
        "pip install lightfast[hub]"
    ) from None

__all__ = ["HubModel", "download", "model_card"]

_TAGS = ["color-constancy", "equivariance", "lightfast"]


class HubModel(ModelHubMixin, library_name="lightfast", tags=list(_TAGS)):
    """A pipeline as the Hub's mixin wants a model: `save_pretrained` and `push_to_hub` are its own.

    It is saved as `model.safetensors`, `config.json` and `README.md`, a folder that :func:`lightfast.load` reads, too.

    Attributes:
        pipeline: the pipeline.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._hub_mixin_config = pipeline.describe()

    def _save_pretrained(self, save_directory: Path) -> None:
        # It would describe weights that were there before.
        (save_directory / "model.json").unlink(missing_ok=True)
        save_weights(self.pipeline, save_directory / "model.safetensors")

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The page of this pipeline."""
        return model_card(self.pipeline)


def download(name: str, **options: Any) -> Path:
    """The folder with the files that the Hub has under `OWNER/NAME`; an OSError says why if it cannot be had.

    Args:
        name: `OWNER/NAME`.
        options: those of :func:`lightfast.load`.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"], **options))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise OSError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from error


def model_card(pipeline: Pipeline) -> ModelCard:
    """The page that goes with a pipeline: what it takes and gives, how to use it, and what it was made from."""
    data = ModelCardData(library_name="lightfast", pipeline_tag=pipeline.hub_task, tags=list(_TAGS))
    kind = type(pipeline).__name__
    summary = (type(pipeline).__doc__ or kind).strip().splitlines()[0]
    parameters = sum(p.numel() for p in pipeline.parameters())
    return ModelCard(f"""---
{data.to_yaml()}
---

# {kind}

{summary}

Made with Lightfast, offset equivariant networks in PyTorch. It is called with {" and ".join(pipeline.input_names)}, and
has {parameters:,} parameters.

```python
import lightfast as lf

model = lf.load("OWNER/NAME")  # or the folder with these files
```

It is made from:

```json
{json.dumps(pipeline.config, indent=1)}
```
""")
