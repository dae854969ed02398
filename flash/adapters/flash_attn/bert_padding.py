"""`flash_attn.bert_padding`: padded batches as packed sequences, and back, by PyTorch's indexing, through
which gradients pass.
"""

from __future__ import annotations

import torch


def index_first_axis(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows `indices` of `rows`."""
    return rows[indices]


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The rows of `hidden_states` [batch, seqlen, ...] where `attention_mask` [batch, seqlen], of
    bool or integers, is not 0, or where `unused_mask` is not 0: such rows are in the result, but are not
    counted in the last result.

    Returns the rows [total, ...]; their indices among batch * seqlen; `cu_seqlens`, int32 [batch +
    1]; the most rows of a sequence, for which this waits for a GPU; and how many rows of each
    sequence count, int32 [batch].
    """
    counted = attention_mask != 0
    taken = counted if unused_mask is None else counted | (unused_mask != 0)
    lengths = taken.sum(-1, dtype=torch.int32)
    indices = taken.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if len(lengths) else 0
    rows = hidden_states.flatten(0, 1)[indices]
    return rows, indices, starts, longest, counted.sum(-1, dtype=torch.int32)


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The opposite of `unpad_input`: [batch, seqlen, ...], in which the rows of `hidden_states`
    [total, ...] are at `indices` among batch * seqlen, and all others 0.
    """
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
