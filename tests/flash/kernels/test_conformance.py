"""Every kind of forward kernel with every feature: its own PTX, run on the interpreter with the sanitizers.

The table is `tests/conformance.py`. What only some kinds have is tested in the files beside this one and in
`tests/flash/hopper`, and the features of the reference, of numpy, of configs and of launches where those are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import (
    FEATURES,
    KINDS,
    arrays_of,
    assert_same_bits,
    bits,
    check,
    has,
    operands_of,
    reference,
    run,
    spoiled,
)
from kernel_runs import assert_no_spill, assert_proved

from flash.contract.catalogue import build
from flash.families.choice import FAMILIES, offered_tiles, tiles_that_fit
from flash.problem.config import AttentionConfig
from flash.problem.tensor_maps import map_name, maps_of
from flash.scores.aux_arrays import AuxArrays
from flash.scores.features import SCORES
from ptxgen.check.verify import verify
from ptxgen.interpreter import PCT
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from ptxgen.text import render

pytestmark = [pytest.mark.grid, pytest.mark.judged]

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_CAUSAL = pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
EVERY_FEATURE = pytest.mark.parametrize(
    ("kind", "feature"), [(kind, feature) for kind in KINDS for feature in FEATURES if has(kind, feature)]
)
EVERY_WIDTH = pytest.mark.parametrize(
    ("kind", "dims"), [(kind, dims) for kind, of in KINDS.items() for dims in of.widths], ids=str
)
LENGTHS = ((1, 1), (1, 130), (130, 1), (64, 128), (65, 113), (17, 0))
LATENTS = [name for name, of in KINDS.items() if of.family.values_in_keys]
HIDING: tuple[dict[str, Any], ...] = ({}, {"mask": True}, {"bias": "f32"}, {"window": (9, 5)})


def test_every_family_is_in_the_table() -> None:
    assert {kind.family for kind in KINDS.values()} == set(FAMILIES)


def test_every_feature_is_in_the_table_but_functions() -> None:
    configs = (AttentionConfig(16, **settings) for settings in FEATURES.values())
    result = {type(score) for config in configs for score in config.scores}
    assert result == {score for score in SCORES if not score.is_function and score is not AuxArrays}


# ------------------------------------------------------------------------------------------
# accuracy


@EVERY_KIND
@EVERY_CAUSAL
def test_each_query_sees_its_own_keys(kind: str, causal: Any) -> None:
    config = KINDS[kind].config(causal=causal)
    for seq_q, seq_k in LENGTHS:
        if seq_k >= KINDS[kind].least_keys:
            check(config, arrays_of(config, seq_q, seq_k))


@pytest.mark.slow
@pytest.mark.sample(2, gate=6)
@EVERY_CAUSAL
@pytest.mark.parametrize(
    ("kind", "block_q"), [(kind, block_q) for kind, of in KINDS.items() for block_q in of.blocks_q]
)
def test_any_block_of_queries_sees_its_own_keys(kind: str, block_q: int, causal: Any) -> None:
    config = KINDS[kind].config(block_q=block_q, causal=causal)
    for seq_q, seq_k in ((3, 190), (190, 3), (127, 260), (260, 127)):
        check(config, arrays_of(config, seq_q, seq_k))


@pytest.mark.sample(14, gate=40)
@EVERY_FEATURE
@EVERY_CAUSAL
def test_every_feature_is_as_accurate_as_numpy(kind: str, feature: str, causal: Any) -> None:
    config = KINDS[kind].config(causal=causal, **FEATURES[feature])
    for seq_q, seq_k in ((40, 71), (71, 40)):
        check(config, arrays_of(config, seq_q, seq_k, batch=2, heads=2))
    for seq_q, seq_k in ((1, 50), (50, 1), (17, 0)):
        if seq_k >= KINDS[kind].least_keys:
            check(config, arrays_of(config, seq_q, seq_k, heads=2))


@pytest.mark.slow
@pytest.mark.sample(6, gate=24)
@EVERY_WIDTH
@pytest.mark.parametrize("feature", ["nothing", "all"])
def test_every_width_is_right_with_its_default_tiles(kind: str, dims: tuple[int, int], feature: str) -> None:
    config = KINDS[kind].default(*dims, causal=True, **FEATURES[feature])
    check(config, arrays_of(config, 45, config.kernel().tiling.tile + 21, heads=2))


@pytest.mark.nightly
@EVERY_WIDTH
def test_every_tile_offered_is_right(kind: str, dims: tuple[int, int]) -> None:
    config = KINDS[kind].default(*dims, causal=True)
    for tile, block_q in tiles_that_fit(config.tile_request, config.kernel().target):
        for alignment in ("auto", *KINDS[kind].alignments[:1]):
            built = replace(config, tile=tile, block_q=block_q, alignment=alignment)
            check(built, arrays_of(built, block_q + 5, 2 * tile + 3))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
@pytest.mark.parametrize(("kind", "name"), [("simt sm_75", "sm_75"), ("simt", "sm_90"), ("mma f16", "sm_90")])
def test_the_corners_of_the_tiles_offered_are_right(kind: str, name: str, head_dim: int) -> None:
    config = KINDS[kind].default(head_dim, causal=True, target=name)
    offered = offered_tiles(head_dim, head_dim, target(name), str(config.dtype))
    corners = offered[0], offered[-1], min(offered, key=lambda t: t[1]), max(offered, key=lambda t: t[1])
    for tile, block_q in sorted(set(corners)):
        of_tile = replace(config, tile=tile, block_q=block_q)
        check(of_tile, arrays_of(of_tile, block_q + 5, tile + 21))


@pytest.mark.slow
@pytest.mark.sample(7, gate=14)
@EVERY_KIND
def test_query_heads_share_key_heads(kind: str) -> None:
    config = KINDS[kind].config(causal=True)
    for kv_heads in (1, 3):
        check(config, arrays_of(config, 20, 33, heads=3, kv_heads=kv_heads))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mma f16", "wgmma f16"])
def test_views_of_a_larger_buffer_are_read_in_place(kind: str) -> None:
    buffer = np.random.default_rng(3).standard_normal((2, 40, 3, 2, 24)).astype(np.float16)
    q, k, v = (buffer[:, :, n].transpose(0, 2, 1, 3) for n in range(3))  # of batch, seq, qkv, head, dim
    k = k if KINDS[kind].family.mapped else k[:, :, ::-1]
    check(KINDS[kind].config(24), (q, k, v))


@pytest.mark.slow
@pytest.mark.sample(5, gate=14)
@EVERY_KIND
@pytest.mark.parametrize("causal", [False, True])
def test_any_softmax_scale_is_applied(kind: str, causal: bool) -> None:
    config = KINDS[kind].config(causal=causal)
    arrays = arrays_of(config, 20, 37)
    for scale in (0.0, -0.0, -0.7, 2e-38, 2.0**20, -1.1 * 2.0**30, 1e30):
        check(replace(config, softmax_scale=scale), arrays)


@pytest.mark.slow
@pytest.mark.sample(7, gate=14)
@EVERY_KIND
def test_scores_far_apart_and_growing_from_tile_to_tile_are_exact(kind: str) -> None:
    # The walk begins at the last key: the maximum grows at every tile, far beyond the slack.
    config = KINDS[kind].config(softmax_scale=1.0)
    q, k, v = arrays_of(config, KINDS[kind].block_q, 4 * KINDS[kind].tile)
    growing = np.linspace(30, 0, k.shape[2])[:, None]
    operands = dict(operands_of(config, (q, k, v)))
    scaled = operands["k_scale"] if k.dtype == np.uint8 else k
    scaled[...] = (scaled.astype(np.float32) * growing).astype(scaled.dtype)
    check(config, (q, k, v), operands)


# ------------------------------------------------------------------------------------------
# NaN and infinity


@pytest.mark.slow
@pytest.mark.sample(8, gate=24)
@EVERY_CAUSAL
@pytest.mark.parametrize("kind", [name for name in KINDS if name not in LATENTS])
@pytest.mark.parametrize("features", HIDING, ids=str)
def test_values_that_are_not_finite_reach_the_rows_that_see_them_and_no_others(
    kind: str, features: dict[str, Any], causal: Any
) -> None:
    config = KINDS[kind].config(causal=causal, **features)
    q, k, v = arrays_of(config, 70, 90)
    operands = operands_of(config, (q, k, v))
    clean, _ = run(config, (q, k, v), operands)
    v[..., -20, 3], v[..., -5, 7], v[..., -5, 8], v[..., -2, 8] = np.nan, np.inf, -np.inf, np.inf
    v[..., 2, 9], v[..., 3, 10] = np.inf, -np.inf  # in tiles that whole blocks of rows see
    out, _ = run(config, (q, k, v), operands)
    wanted, _ = reference(config, (q, k, v), operands)
    bad = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[bad].astype(np.float64), wanted[bad])
    np.testing.assert_array_equal(bits(out[~bad]), bits(clean[~bad]))
    assert bad.any()
    assert not bad.all(axis=(0, 1, 2))[[0, 1, 2]].any()


@pytest.mark.slow
@pytest.mark.sample(7, gate=18)
@EVERY_KIND
@pytest.mark.parametrize("change", ["q", "k", "v"])
def test_nan_reaches_all_that_sees_it(kind: str, change: str) -> None:
    config = KINDS[kind].config(causal=True)
    arrays = arrays_of(config, 100, 100)
    array = arrays["qkv".index(change)]
    array[..., 3, 2] = spoiled(array, np.nan)
    out, _ = run(config, arrays, operands_of(config, arrays))
    np.testing.assert_array_equal(np.isnan(out), np.isnan(reference(config, arrays)[0]))


@pytest.mark.slow
@pytest.mark.sample(6, gate=24)
@EVERY_KIND
@EVERY_CAUSAL
@pytest.mark.parametrize("features", HIDING, ids=str)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_hidden_cannot_reach_a_row(
    kind: str, causal: Any, features: dict[str, Any], poison: float
) -> None:
    config = KINDS[kind].config(causal=causal, **features)
    q, k, v = arrays_of(config, 50, 60)
    operands = operands_of(config, (q, k, v))
    for name in operands.keys() & {"mask", "bias"}:
        array = operands[name]
        array[..., 20, :] = array[..., 20, :1] if name != "mask" else True
        array[..., :, [30, 33]] = 0 if name == "mask" else -np.inf
        array[..., 41:, 33] = 1
    clean = run(config, (q, k, v), operands)
    k[:, :, [30, 33]], v[:, :, [30, 33]] = spoiled(k, poison), poison
    result = run(config, (q, k, v), operands)
    wanted, wanted_lse = reference(config, (q, k, v), operands)
    hidden = np.isfinite(wanted_lse) | np.isneginf(wanted_lse)
    hidden &= np.isfinite(wanted).all(axis=-1)
    assert hidden.any() or not (causal or features)
    for one, other in zip(result, clean, strict=True):
        np.testing.assert_array_equal(bits(one[hidden]), bits(other[hidden]))
    assert not np.isfinite(result[0][~hidden].astype(np.float32)).all(axis=-1).any()


@pytest.mark.sample(7, gate=14)
@EVERY_KIND
def test_a_row_that_sees_no_key_gives_zero_and_minus_infinity(kind: str) -> None:
    config = KINDS[kind].config(causal=True)
    arrays = arrays_of(config, 40, 7)
    out, lse = run(config, arrays, operands_of(config, arrays))
    np.testing.assert_array_equal(out[:, :, :33], 0)
    np.testing.assert_array_equal(lse[:, :, :33], -np.inf)
    assert np.isfinite(lse[:, :, 33:]).all()


# ------------------------------------------------------------------------------------------
# the same bits


@pytest.mark.slow
@pytest.mark.sample(2, gate=14)
@EVERY_FEATURE
def test_repeated_runs_and_other_orders_of_the_warps_give_the_same_bits(kind: str, feature: str) -> None:
    config = KINDS[kind].config(causal=True, **FEATURES[feature])
    arrays = arrays_of(config, 70, 90, heads=2 if config.pack_gqa is True else 1)
    operands = operands_of(config, arrays)
    first = run(config, arrays, operands, sanitize=False)
    assert_same_bits(first, run(config, arrays, operands, sanitize=False))
    assert_same_bits(first, run(config, arrays, operands, schedule=PCT(1)))


@pytest.mark.nightly
@EVERY_KIND
@pytest.mark.parametrize("stages", [2, 3])
def test_twenty_orders_of_the_warps_give_the_same_bits(kind: str, stages: int) -> None:
    if stages not in KINDS[kind].stages:
        pytest.skip("kernels of this kind have other stages")
    of = KINDS[kind]
    for block_q in (of.block_q, *of.blocks_q):
        config = of.config(block_q=block_q, stages=stages, causal=True)
        arrays = arrays_of(config, block_q + 6, 5 * of.tile - 7)
        operands = operands_of(config, arrays)
        first = run(config, arrays, operands, sanitize=False)
        for seed in range(20):
            assert_same_bits(first, run(config, arrays, operands, schedule=PCT(seed)))


@pytest.mark.slow
@pytest.mark.sample(3, gate=12)
@pytest.mark.parametrize(
    ("kind", "stages"), [(kind, stages) for kind, of in KINDS.items() for stages in of.stages]
)
@pytest.mark.parametrize("settings", [{"causal": "top_left"}, {"window": (33, 7)}], ids=str)
def test_any_number_of_stages_gives_the_same_bits(kind: str, stages: int, settings: dict[str, Any]) -> None:
    one, several = KINDS[kind].config(**settings), KINDS[kind].config(stages=stages, **settings)
    for seq_k in (16, 17, 60, 100):
        arrays = arrays_of(one, 40, seq_k)
        operands = operands_of(one, arrays)
        assert_same_bits(run(one, arrays, operands), run(several, arrays, operands))


@pytest.mark.slow
@pytest.mark.sample(3, gate=8)
@pytest.mark.parametrize(
    ("kind", "alignment"), [(kind, alignment) for kind, of in KINDS.items() for alignment in of.alignments]
)
@pytest.mark.parametrize("feature", ["nothing", "all"])
def test_narrow_accesses_give_the_same_bits_as_wide_ones(kind: str, alignment: int, feature: str) -> None:
    wide, narrow = (
        KINDS[kind].config(40, 24, causal=True, alignment=n, **FEATURES[feature]) for n in ("auto", alignment)
    )
    arrays = arrays_of(wide, 37, 50)
    operands = operands_of(wide, arrays)
    assert_same_bits(run(wide, arrays, operands), run(narrow, arrays, operands))


# ------------------------------------------------------------------------------------------
# text, proofs, registers


@pytest.mark.sample(12, gate=22)
@EVERY_FEATURE
def test_the_text_verifies_and_reads_back(kind: str, feature: str) -> None:
    module = build(KINDS[kind].config(causal=True, **FEATURES[feature]).kernel()).module
    assert verify(module) == ()
    assert parse(render(module)) == module


@pytest.mark.parametrize(
    "kind",
    ["wgmma f16", "split", "split on sm_100a", *(pytest.param(of, marks=pytest.mark.slow) for of in LATENTS)],
)
def test_the_tiling_says_what_the_kernel_has(kind: str) -> None:
    slack = 2048 if kind == "latent" else 3072
    for settings in ({}, {"causal": True}, {"stages": 3}):
        config = KINDS[kind].config(**settings).kernel()
        built = build(config)
        assert built.kernel.threads == config.tiling.threads
        shared, said = built.kernel.dynamic_shared_bytes, config.tiling.shared_bytes
        assert said - slack < shared <= said
        maps = [map_name(array) for array in maps_of(config)]
        assert [p.name for p in built.kernel.params[-len(maps) :]] == maps


@pytest.mark.slow
@pytest.mark.sample(4, gate=20)
@EVERY_FEATURE
@EVERY_CAUSAL
def test_every_access_and_barrier_is_proved(kind: str, feature: str, causal: Any) -> None:
    assert_proved(KINDS[kind].config(causal=causal, **FEATURES[feature]))


@pytest.mark.slow
@pytest.mark.sample(4, gate=12)
@EVERY_WIDTH
@pytest.mark.parametrize("feature", ["nothing", "left", "all"])
def test_every_width_is_proved(kind: str, dims: tuple[int, int], feature: str) -> None:
    assert_proved(KINDS[kind].default(*dims, causal=True, **FEATURES[feature]))


@pytest.mark.nightly
@pytest.mark.ptxas
@EVERY_WIDTH
def test_no_default_kernel_spills(kind: str, dims: tuple[int, int], assembler: Assembler) -> None:
    for feature, settings in FEATURES.items():
        for causal in (False, True) if has(kind, feature) else ():
            assert_no_spill(KINDS[kind].default(*dims, causal=causal, **settings), assembler)
