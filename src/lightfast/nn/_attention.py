"""Self-attention over tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lightfast._groups import GroupSpec, resolve
from lightfast.functional import add_offset, group_pool


class MultiheadAttention(nn.MultiheadAttention):
    """Multi-head self-attention in adapter form: `attention(x - G φ(x)) + G φ(x)`, with `φ` over all tokens.

    Args:
        embed_dim: m, the features of a token.
        num_heads: as in torch, and so are the further arguments.
        offset_groups: a number of equal contiguous runs, or an assignment of the `m` features.

    Shapes: (N, T, m) with `batch_first=True`, else (T, N, m). Called as torch's layer with the tokens once, or as
    `attention(x, x, x)`; returns (output, weights). Tokens that `key_padding_mask` hides take no part in `φ`.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> attention = MultiheadAttention(6, 2, batch_first=True)
    >>> equivariance_error(lambda x: attention.double()(x)[0], torch.randn(2, 5, 6), dim=-1) < 1e-12
    True
    """

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, offset_groups: GroupSpec = 3, **kwargs: Any) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        self.offset_groups = resolve(offset_groups, embed_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if any(other is not None and other is not query for other in (key, value)):
            raise ValueError(
                "equivariant attention is self-attention: keys and values must be the queries, since another map may "
                "have another offset"
            )
        tokens = query if self.batch_first else query.transpose(0, 1)
        # Zero or False shows a token; True, or minus infinity in a mask that is added, hides it.
        shown = None if key_padding_mask is None else (key_padding_mask == 0)[..., None]
        offset = group_pool(tokens, self.offset_groups, dim=2, mask=shown)
        centered = add_offset(tokens, -offset, self.offset_groups, dim=2)
        centered = centered if self.batch_first else centered.transpose(0, 1)
        out, weights = super().forward(centered, centered, centered, key_padding_mask, **kwargs)
        if not self.batch_first:
            offset = offset.transpose(0, 1)
        return add_offset(out, offset, self.offset_groups, dim=2), weights

    def extra_repr(self) -> str:
        return f"offset_groups={self.offset_groups}"
