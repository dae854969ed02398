"""The forward kernel for Hopper where functions leave out tiles of keys: its own PTX, with sanitizers on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import KINDS
from judge import assert_attention_is_accurate
from kernel_runs import Problem, run_forward

from flash.error_bound import arithmetic_of_config
from flash.reference import attention_reference
from ptxgen.interpreter import Result

pytestmark = [pytest.mark.grid, pytest.mark.judged]

config_of = KINDS["wgmma f16"].config


def gaps(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + 90 >= key) & ((query + 90 - key < 8) | (key <= 16))  # 16 begins a tile


def boxes_loaded(result: Result) -> int:
    """Boxes that tensor copies have loaded."""
    name = "cp.async.bulk.tensor.4d.shared::cluster.global"
    return sum(int(n) for opcode, n in result.counters.by_opcode.items() if opcode.startswith(name))


@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("how", [{"pack_gqa": True}, {}, {"block_q": 128, "causal": True}], ids=str)
def test_what_tiles_in_a_gap_hold_does_not_matter(how: dict[str, Any]) -> None:
    config = config_of(mask_mod=gaps, **how)
    q, k, v = Problem(9, 130, 16, 16, heads=4, kv_heads=2).arrays(dtype=np.float16)
    seen: dict[str, Any] = {"mask_mod": gaps, "causal": config.causal}
    wanted, sums = attention_reference(q, k, v, **seen)
    k[:, :, 20:80] = v[:, :, 20:80] = np.nan
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0, atol=2e-3)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=2e-3)


@pytest.mark.slow
def test_tiles_between_others_are_not_loaded() -> None:
    arrays = Problem(64, 512, 16, 16).arrays(dtype=np.float16)

    def read(mask_mod: Any) -> int:
        _, _, result = run_forward(config_of(mask_mod=mask_mod, tile=32), arrays)
        return boxes_loaded(result)

    assert read(lambda b, h, q, k: k * k >= 0) == 1 + 2 * 16  # Q, and tiles of K and V
    assert read(lambda b, h, q, k: (q + 400 >= k) & ((q + 400 - k < 40) | (k < 4))) == 1 + 2 * 5
    assert read(lambda b, h, q, k: (k < 5) | (abs(k - 200) < 8) | (k > 500)) == 1 + 2 * 3
    assert read(lambda b, h, q, k: k < 0) == 0


@pytest.mark.slow
def test_a_last_tile_that_a_mask_hides_is_loaded_and_counts_nothing() -> None:
    def mask_mod(batch: Any, head: Any, query: Any, key: Any, blocks: Any) -> Any:
        return blocks[head, query // 64, key // 64]

    config = config_of(mask_mod=mask_mod, aux={"blocks": ("bool", 3)}, tile=32)
    q, k, v = Problem(64, 256, 16, 16).arrays(dtype=np.float16)
    blocks = np.array([[[True, False, True, False]]])
    how: dict[str, Any] = {"operands": {"aux_blocks": blocks}, "sanitize": True}
    out, lse, result = run_forward(config, (q, k, v), **how)
    assert_attention_is_accurate(
        out,
        lse,
        q,
        k,
        v,
        softmax_scale=config.scale,
        mask_mod=mask_mod,
        aux={"blocks": blocks},
        arithmetic=arithmetic_of_config(config),
    )
    assert boxes_loaded(result) == 1 + 2 * (1 + 4)
    none = np.zeros((1, 1, 4), bool)
    out, lse, _ = run_forward(config, (q, k, v), operands={"aux_blocks": none}, sanitize=True)
    assert (out == 0).all()
    assert np.isneginf(lse).all()
