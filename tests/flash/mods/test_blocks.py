"""Block masks that are computed from a function."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from flash.mods.blocks import visible_blocks
from ptxgen.errors import ConfigError

LENGTHS = np.array([70, 3], np.int32)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", [(128, 128), (32, 64)])
def test_they_are_those_of_create_block_mask(block: tuple[int, int], torch: Any) -> None:
    lengths = torch.from_numpy(LENGTHS)
    module = importlib.import_module("torch.nn.attention.flex_attention")
    for ours, theirs in (
        (
            lambda b, h, q, k, lengths: (q >= k) & (q - k < 40) | (k < lengths[b]),
            lambda b, h, q, k: (q >= k) & (q - k < 40) | (k < lengths[b]),
        ),
        (
            lambda b, h, q, k: (q // 32 == k // 32) & (h > 0),
            lambda b, h, q, k: (q // 32 == k // 32) & (h > 0),
        ),
    ):
        aux = {"lengths": LENGTHS} if "lengths" in ours.__code__.co_varnames else None
        result = visible_blocks(ours, (2, 3, 256, 384), aux=aux, block=block)
        mask = module.create_block_mask(theirs, 2, 3, 256, 384, device="cpu", BLOCK_SIZE=block)
        np.testing.assert_array_equal(result, mask.to_dense().numpy().astype(bool))


def test_the_last_blocks_may_be_smaller() -> None:
    result = visible_blocks(lambda b, h, q, k: k == 9, (1, 1, 5, 10), block=(4, 4))
    np.testing.assert_array_equal(result[0, 0], [[False, False, True]] * 2)
    everything = visible_blocks(lambda b, h, q, k: True, (1, 2, 5, 10))
    assert everything.shape == (1, 2, 1, 1)
    assert everything.all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        visible_blocks(lambda b, h, q, k: q >= k, (1, 1, 0, 10))
    assert str(error.value) == (
        "visible_blocks: shape must be (batch, heads, seq_q, seq_k) and block (queries, keys), positive "
        "integers, got (1, 1, 0, 10) and (128, 128)"
    )
    with pytest.raises(ConfigError) as wrong:
        visible_blocks(lambda b, h, q, k, n: k < n[b], (1, 1, 4, 4), aux={"n": np.arange(2.0)})
    assert str(wrong.value) == (
        "visible_blocks: aux['n'] must be one of float32, float16, bfloat16, int32, int64, uint8, bool, got "
        "float64; convert it"
    )
