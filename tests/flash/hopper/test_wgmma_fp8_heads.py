"""The forward kernel for Hopper with Q, K and V of fp8 where a CTA computes the packed queries of all heads
that share a head of K and V: its own PTX, run on the interpreter with the sanitizers on, against float64.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from conformance import arrays_of, bound_of, check
from fp8_runs import config_of, scaled, scales_of
from judge import assert_within
from kernel_runs import assert_no_spill, nightly, run_forward

from flash import AttentionKernel
from flash.contract.catalogue import build
from flash.families.choice import tiles_that_fit
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.errors import ConfigError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]


@pytest.mark.sample(2, gate=3)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": "bottom_right", "dtype": "e5m2"},
        {"causal": "top_left", "block_q": 128},
        {"window": (30, 9), "block_q": 192, "out_dtype": "f16"},
        {"causal": True, "softcap": 2.0, "stages": 3},
        {"head_dim": 48, "head_dim_v": 144, "tile": 128, "causal": True},
        {"head_dim": 128, "head_dim_v": 96, "block_q": 128, "tile": 128},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("seq_q", "seq_k", "group"), [(1, 1, 4), (1, 330, 8), (33, 260, 2), (50, 200, 3), (70, 65, 2)]
)
def test_packed_heads_compute_what_their_heads_do(
    seq_q: int, seq_k: int, group: int, how: dict[str, Any]
) -> None:
    config = config_of(**how, pack_gqa=True)
    check(config, arrays_of(config, seq_q, seq_k, 2, 2 * group, 2))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "shapes"),
    [
        ({"alibi": True}, {"alibi_slopes": (2, 4)}),
        ({"bias": "f32"}, {"bias": (2, 4, 60, 150)}),
        ({"sink": True}, {"sink": (2, 4)}),
    ],
    ids=str,
)
def test_arrays_of_scores_are_those_of_each_head(
    how: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    config = config_of(**how, pack_gqa=True)
    rng = np.random.default_rng(3)
    given = {name: rng.uniform(0.1, 1, shape).astype("f4") for name, shape in shapes.items()}
    check(config, arrays_of(config, 60, 150, 2, 4, 2), given)


def test_numbers_that_are_not_finite_reach_only_rows_that_see_them() -> None:
    config = config_of(causal=True, pack_gqa=True)
    q, k, v = arrays_of(config, 70, 150, 1, 2, 1)
    for place, key in enumerate((149, 141, 10)):  # the last rows see all, the first row 80 of them
        v[0, 0, key, 3 + place] = np.nan
    scales = scales_of()
    out, _, _ = run_forward(config, (q, k, v), operands=scales, sanitize=True)
    wanted, _ = attention_reference(*scaled((q, k, v), scales), causal=config.causal)
    np.testing.assert_array_equal(np.isnan(out.astype(np.float64)), np.isnan(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["interpreter", nightly("cpu")])
def test_packed_sequences_have_packed_heads(backend: Any) -> None:
    config = config_of(varlen=True, causal=True, pack_gqa=True)
    ends = np.array([0, 70, 70, 75, 140], np.int32)
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((140, heads, 64)).astype(config.element.numpy) for heads in (4, 2, 2))
    scales = scales_of(4, 2)
    out, lse = AttentionKernel(config).launch(
        q, k, v, backend=backend, cu_seqlens_q=ends, cu_seqlens_k=ends, **scales
    )
    for b, (begin, end) in enumerate(itertools.pairwise(ends)):
        if begin < end:
            arrays = tuple(x[begin:end].swapaxes(0, 1)[None] for x in (q, k, v))
            bound = bound_of(config, arrays, {name: x[b : b + 1] for name, x in scales.items()})  # type: ignore[arg-type]  # three
            assert_within(out[begin:end].swapaxes(0, 1)[None], lse[None, :, begin:end], bound)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(nightly(seed) for seed in range(1, 20))])
def test_any_order_of_warps_gives_the_same_bits(seed: int) -> None:
    config = config_of(causal=True, block_q=128, pack_gqa=True)
    arrays = arrays_of(config, 40, 320, 1, 3, 1)
    plain, _, _ = run_forward(config, arrays, operands=scales_of())
    found, _, _ = run_forward(config, arrays, operands=scales_of(), sanitize=True, schedule=PCT(seed))
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "window": (40, 0)},
        nightly({"varlen": True, "causal": True}),
        nightly({"head_dim": 256}),
    ],
    ids=str,
)
def test_all_accesses_and_barriers_are_proved(how: dict[str, Any]) -> None:
    made = build(AttentionConfig(**{"head_dim": 128, "pack_gqa": True, **how}, dtype="e4m3").kernel())
    assert made.proof.complete, made.proof
    assert made.global_proof.complete, made.global_proof


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [128, *(nightly(d) for d in (64, 96, 192, 256))])
def test_no_tile_offered_spills(head_dim: int, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, dtype="e4m3", pack_gqa=True, causal=True, return_lse=True)
    for tile, block_q in tiles_that_fit(config.tile_request, config.kernel().target):
        how = {"dtype": "e4m3", "pack_gqa": True, "causal": True, "return_lse": True}
        assert_no_spill(AttentionConfig(head_dim, tile=tile, block_q=block_q, **how), assembler)  # type: ignore[arg-type]  # by name


def test_heads_are_packed_where_it_saves_ctas() -> None:
    config = config_of()
    arrays = arrays_of(config, 8, 200, 1, 8, 2)
    scales = scales_of(1, 2)
    kernel = AttentionKernel(config)
    assert "64 queries of 4 packed heads by 64 keys" in kernel.explain(
        *arrays, backend="interpreter", **scales
    )
    out, lse = kernel.launch(*arrays, backend="interpreter", **scales)
    assert_within(out, lse, bound_of(config, arrays, scales))


def test_scales_of_blocks_of_rows_are_of_heads_that_are_not_packed() -> None:
    with pytest.raises(ConfigError) as raised:
        AttentionConfig(64, dtype="e4m3", scale_block=64, pack_gqa=True)
    assert str(raised.value) == (
        "AttentionConfig: dtype='e4m3' has one kernel, which does not do this: scale_block=64 with "
        "pack_gqa=True; or convert Q, K and V to 'bf16'"
    )
