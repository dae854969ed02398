"""Rotary embedding of new rows, by the positions that flash-attn gives them."""

from __future__ import annotations

import torch


def rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """The rows of x [batch, rows, heads, dim] rotated in f32 and rounded once to the type of x.

    cos and sin [n, rotary_dim / 2] have a row for each position. `positions` [batch, rows, or 1 for
    all rows of a sequence]; those outside of 0 to n - 1 count as the nearest of these. Column i of
    the tables rotates columns 2 i and 2 i + 1 of x if `interleaved`, else columns i and
    i + rotary_dim / 2. Columns of x from rotary_dim on stay as they are.
    """
    half = cos.shape[1]
    at = positions.clamp(0, cos.shape[0] - 1)
    c, s = (table[at].float()[:, :, None] for table in (cos, sin))
    pairs, axis = ((half, 2), -1) if interleaved else ((2, half), -2)
    a, b = x[..., : 2 * half].float().unflatten(-1, pairs).unbind(axis)
    rotated_columns = torch.stack((a * c - b * s, a * s + b * c), axis).flatten(-2)
    return torch.cat((rotated_columns.to(x.dtype), x[..., 2 * half :]), -1)
