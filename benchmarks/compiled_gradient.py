"""How far the gradient of ResNet-20 in float32 is from float64, each way of computing it: rounding, or a mistake?

Gates of a ReLU that rounding flips make gradients differ by far more than rounding itself. So before a difference
between compiled and eager code is called a mistake, see what the conventional network, plain torch and another compiler
give.

    PYTHONPATH=src python benchmarks/compiled_gradient.py
"""

from __future__ import annotations

import copy
from unittest import mock

import torch
from torch import Tensor, nn

from lightfast import models
from lightfast._backends import choose
from lightfast._backends.reference import Reference


def gradient(network: nn.Module, images: Tensor, compiler: str | None = None) -> Tensor:
    """That of the mean square of all scores, in float64 on the CPU."""
    twin = copy.deepcopy(network)
    torch.compiler.reset()
    call = twin if compiler is None else torch.compile(twin, fullgraph=True, backend=compiler)
    call(images).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None]).double().cpu()


def distances(network: nn.Module, images: Tensor, compilers: tuple[str, ...], plain: bool) -> dict[str, float]:
    """Relative distances from float64, by how the gradient was computed."""
    truth = gradient(copy.deepcopy(network).cpu().double(), images.cpu().double())
    found = {"eager": gradient(network, images), "eager again": gradient(network, images)}
    found |= {compiler: gradient(network, images, compiler) for compiler in compilers}
    if plain:
        with mock.patch.dict(choose._BACKENDS, {images.device.type: Reference()}):
            found["plain torch"] = gradient(network, images)
    return {name: float((value - truth).norm() / truth.norm()) for name, value in found.items()}


def main() -> None:
    """Print a line for each seed and network."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for seed in range(4):
        for groups in (None, 3):
            torch.manual_seed(seed)
            network, images = models.create("resnet20", groups).to(device), torch.randn(8, 3, 32, 32, device=device)
            found = distances(network, images, ("aot_eager", "inductor"), groups is not None)
            kind = "equivariant" if groups else "conventional"
            print(seed, kind, ", ".join(f"{name} {value:.1e}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
