"""`flash_attn.bert_padding`: padded batches as packed sequences, and back."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
from flash_attn_cases import assert_is_attention, tensors

LENGTHS = (4, 0, 7, 1)


@pytest.fixture
def padding(flash_attn: ModuleType) -> Any:
    return importlib.import_module(f"{flash_attn.__name__}.bert_padding")


@pytest.mark.judged
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", ["bool", "int64"])
def test_attention_of_a_padded_batch_is_that_of_its_sequences(
    torch: ModuleType, flash_attn: Any, padding: Any, dtype: str, left: bool
) -> None:
    q, k, v = tensors(torch, "float16", (4, 8, 4, 32), (4, 8, 2, 32), (4, 8, 2, 32))
    mask = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    mask = (mask.flip(1) if left else mask).to(getattr(torch, dtype))
    packed, indices, cu, longest, used = padding.unpad_input(q, mask)
    of_k, of_v = (padding.index_first_axis(x.flatten(0, 1), indices) for x in (k, v))
    assert cu.tolist() == [0, 4, 4, 11, 12]
    assert cu.dtype == used.dtype == torch.int32
    assert longest == 7
    assert used.tolist() == list(LENGTHS)
    out, lse, _ = flash_attn.flash_attn_varlen_func(
        packed, of_k, of_v, cu, cu, longest, longest, causal=True, return_attn_probs=True
    )
    padded = padding.pad_input(out, indices, 4, 8)
    assert padded.shape == q.shape
    assert not padded[mask == 0].any()
    for b, own in enumerate(mask.bool()):
        rows = [x[b : b + 1, own] for x in (q, k, v)]
        assert_is_attention(padded[b : b + 1, own], lse[None, :, cu[b] : cu[b + 1]], *rows, {"causal": True})


def test_unused_rows_have_room_but_do_not_count(torch: ModuleType, padding: Any) -> None:
    rows = torch.arange(12.0).reshape(2, 6)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    unused = torch.tensor([[0, 0, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0]])
    packed, indices, cu, longest, used = padding.unpad_input(rows, mask, unused)
    assert packed.tolist() == [0, 1, 2, 6, 7, 8]
    assert indices.tolist() == [0, 1, 2, 6, 7, 8]
    assert cu.tolist() == [0, 3, 6]
    assert (longest, used.tolist()) == (3, [2, 1])


def test_an_empty_batch_has_no_rows(torch: ModuleType, padding: Any) -> None:
    packed, indices, cu, longest, used = padding.unpad_input(torch.zeros(0, 5, 3), torch.zeros(0, 5))
    assert (packed.shape, cu.tolist(), longest, used.tolist()) == ((0, 3), [0], 0, [])
    assert padding.pad_input(packed, indices, 0, 5).shape == (0, 5, 3)


def test_gradients_pass_through_padding(torch: ModuleType, padding: Any) -> None:
    rows = torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 1, 0]])
    packed, indices, *_ = padding.unpad_input(rows, mask)
    padding.pad_input(2 * packed, indices, 2, 3).sum().backward()
    assert torch.equal(rows.grad, 2 * mask[:, :, None].expand(2, 3, 4).float())
