"""Packed heads: rows of a CTA that are the queries of all heads of a group. The kernels' own PTX is
run on the interpreter with the sanitizers on, beside that without packing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, Array, Arrays, assert_same_bits, judge, operands_of, run
from kernel_runs import Problem, mostly_nightly, run_forward
from refusals import refusal

from flash.contract.catalogue import build
from flash.device.grouped_heads import PackedMatrix, packing_saves_ctas
from flash.kernel import AttentionKernel
from flash.launch import checks
from flash.launch.kernel_choice import kernel_of
from flash.problem.config import AttentionConfig
from flash.reference import visible_keys
from flash.scores.features import scored
from flash.scores.heads import Packing
from ptxgen.arrays.views import ArrayView, view
from ptxgen.check.prove import prove_global
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.errors import ConfigError
from ptxgen.interpreter import Result
from ptxgen.runtime.cuda_driver import DeviceProperties

pytestmark = [pytest.mark.grid, pytest.mark.judged]


PACKED = ("simt", "mma f16", "mma bf16", "mma tf32", "mma f32_grade", "wgmma bf16")
EVERY_KIND = pytest.mark.parametrize("kind", mostly_nightly(PACKED, PACKED[:-1]))
# The others differ from these in what is no matter of rows.
ONE_OF_EACH_PRODUCT = pytest.mark.parametrize(
    "kind", mostly_nightly(PACKED, ("simt", "mma f16", "mma f32_grade"))
)
ONE_OF_EACH_KERNEL = pytest.mark.parametrize("kind", ["simt", "mma f16"])
EVERY_CAUSAL = pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
# seq_q, seq_k and how many heads share one of K and V; blocks have 16 or 32 rows.
SIZES = [(1, 40, 8), (1, 17, 1), (3, 37, 3), (3, 50, 12), (17, 20, 2), (65, 33, 1), (65, 70, 3)]


def config_of(kind: str, head_dim: int = 16, **how: Any) -> AttentionConfig:
    """Small tiles, so that small problems have many."""
    block_q = {"simt": 16, "wgmma bf16": 64}.get(kind, 32)
    return KINDS[kind].config(head_dim, **{"block_q": block_q, "pack_gqa": True, **how})


def unpacked(config: AttentionConfig) -> AttentionConfig:
    return replace(config, pack_gqa=False)


def arrays_of(config: AttentionConfig, seq_q: int, seq_k: int, group: int) -> Arrays:
    """Two batches of two heads of K."""
    problem = Problem(seq_q, seq_k, config.head_dim, config.value_dim, 2, 2 * group, 2)
    return problem.arrays(dtype=config.element.numpy)


def check(config: AttentionConfig, arrays: Arrays) -> tuple[Array, Array]:
    """Rows have the bits that they have if their queries are made those of one head, whose masks
    are given as such; returns them. Each row is then at the same place in its matrix: in another
    one the interpreter, which asks BLAS, may round otherwise.
    """
    q, k, v = arrays
    (batch, heads, seq_q, _), (_, kv_heads, seq_k, _) = q.shape, k.shape
    group = heads // kv_heads

    def packed(array: Array) -> Array:
        apart = array.reshape(batch, kv_heads, group, seq_q, -1).transpose(0, 1, 3, 2, 4)
        return np.ascontiguousarray(apart).reshape(batch, kv_heads, seq_q * group, -1)

    shape = (1, 1, seq_q, seq_k)
    seen = visible_keys(scored(shape, config.causal, np.float64, 0, {"window": config.window}))
    one_head = replace(config, pack_gqa=False, causal=False, window=None, mask=True)
    wanted = run(
        one_head, (packed(q), k, v), sanitize=False, operands={"mask": np.repeat(seen, group, axis=2)}
    )
    out, lse = run(config, arrays)
    assert_same_bits((packed(out), packed(lse)[..., 0]), wanted)
    return out, lse


# ------------------------------------------------------------------------------------------
# results


@pytest.mark.slow
@pytest.mark.sample(2)
@EVERY_KIND
@EVERY_CAUSAL
def test_packed_rows_are_right(kind: str, causal: Any) -> None:
    config = config_of(kind, causal=causal)
    for sizes in SIZES if kind in ("simt", "mma f16") else SIZES[::3]:
        arrays = arrays_of(config, *sizes)
        judge(config, arrays, *check(config, arrays))


@pytest.mark.slow
@pytest.mark.sample(1)
@EVERY_CAUSAL
def test_packed_rows_have_the_bits_of_those_that_are_not(causal: Any) -> None:
    config = config_of("simt", causal=causal)
    for sizes in SIZES:
        arrays = arrays_of(config, *sizes)
        assert_same_bits(run(config, arrays), run(unpacked(config), arrays))


@pytest.mark.slow
@pytest.mark.sample(1, gate=4)
@ONE_OF_EACH_PRODUCT
@pytest.mark.parametrize("window", [(7, None), (None, 3), (20, 5), (0, 0)], ids=str)
@pytest.mark.parametrize("causal", [False, "top_left"])
def test_a_window_of_packed_rows_is_that_of_their_queries(kind: str, window: Any, causal: Any) -> None:
    config = config_of(kind, window=window, causal=causal, softcap=3.0)
    for sizes in ((3, 37, 3), (20, 60, 5)):
        arrays = arrays_of(config, *sizes)
        judge(config, arrays, *check(config, arrays))


ALL_BY_HEAD = {"mask": True, "bias": "f32", "alibi": True, "sink": True}


@pytest.mark.slow
@pytest.mark.sample(3, gate=6)
@ONE_OF_EACH_PRODUCT
@pytest.mark.parametrize(
    "features",
    [
        {**ALL_BY_HEAD, "dropout": 0.3, "causal": True, "window": (12, 9)},
        *({"sink": True, "causal": "top_left", "window": (12, 9)}, {"mask": True}, {"bias": "f32"}),
        *({"alibi": True}, {"dropout": 0.3}),
    ],
    ids=str,
)
def test_each_packed_row_has_the_scores_and_weights_of_its_head(kind: str, features: dict[str, Any]) -> None:
    config = config_of(kind, **features)
    for seq_q, seq_k, group in ((1, 40, 8), (21, 9, 3), (17, 50, 5), (17, KINDS[kind].least_keys, 5)):
        arrays = arrays_of(config, seq_q, seq_k, group)
        arguments = operands_of(config, arrays)
        if "sink" in arguments:
            arguments["sink"][1, 1] = -np.inf
        result = run(config, arrays, arguments)
        if kind == "simt":
            assert_same_bits(result, run(unpacked(config), arrays, arguments))
        judge(config, arrays, *result, arguments)


@pytest.mark.slow
@ONE_OF_EACH_KERNEL
def test_numbers_for_packed_scores_may_have_any_strides_or_be_broadcast(kind: str) -> None:
    config = config_of(kind, **ALL_BY_HEAD)
    arrays = arrays_of(config, 21, 40, 3)
    arguments = operands_of(config, arrays)
    wanted = run(config, arrays, arguments)
    strided = {
        name: np.ascontiguousarray(array.swapaxes(-1, -2)[..., ::-1, :]).swapaxes(-1, -2)[..., ::-1]
        for name, array in arguments.items()
    }
    assert_same_bits(run(config, arrays, strided), wanted)
    narrow = {
        "mask": arguments["mask"][1:, :1],
        "bias": arguments["bias"][:, :, 3:4, :],
        "alibi_slopes": arguments["alibi_slopes"][1:, 2:3],
        "sink": arguments["sink"][:1],
    }
    judge(config, arrays, *run(config, arrays, narrow), narrow)


@pytest.mark.slow
@ONE_OF_EACH_KERNEL
def test_a_launch_packs_heads_that_have_scores_of_their_own(kind: str) -> None:
    config = config_of(kind, pack_gqa="auto", mask=True, alibi=True)
    arrays = arrays_of(config, 2, 40, 4)
    arguments, kernel = operands_of(config, arrays), AttentionKernel(config)
    assert "_packed_lse" in kernel.explain(*arrays, backend="interpreter", **arguments)
    out, lse = kernel.launch(*arrays, backend="interpreter", **arguments)
    judge(config, arrays, out, lse, arguments)


@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
@pytest.mark.parametrize("seq_k", [0, 5])
def test_packed_queries_that_see_no_key_give_zero_and_minus_infinity(
    kind: str, causal: Any, seq_k: int
) -> None:
    config = config_of(kind, causal=causal)
    out, lse = check(config, arrays_of(config, 9, seq_k, 3))
    blind = {"bottom_right": slice(0, 9 - seq_k), "top_left": slice(0, 0)}.get(causal, slice(0, 0))
    blind = slice(0, 9) if seq_k == 0 else blind
    np.testing.assert_array_equal(out[:, :, blind], 0)
    np.testing.assert_array_equal(lse[:, :, blind], -np.inf)
    assert np.isfinite(lse[:, :, blind.stop :]).all()


@pytest.mark.slow
@ONE_OF_EACH_PRODUCT
@pytest.mark.parametrize("features", [{"causal": True}, {"window": (5, 2)}], ids=str)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_a_packed_query_does_not_see_cannot_reach_it(
    kind: str, features: dict[str, Any], poison: float
) -> None:
    config = config_of(kind, **features)
    q, k, v = arrays_of(config, 21, 40, 3)
    clean, _ = run(config, (q, k, v))
    v = v.copy()
    v[..., [25, 38], 3] = poison
    out, _ = run(config, (q, k, v))
    # Query i is at the position of key i + 19.
    positions = np.arange(21) + 19
    sees = np.zeros(21, np.bool_)
    for key in (25, 38):
        before, behind = config.window or (40, 0)
        assert before is not None
        assert behind is not None
        sees |= (key >= positions - before) & (key <= positions + behind)
    assert sees.any()
    assert not sees.all()
    kept = out.copy()
    kept[:, :, sees, 3] = clean[:, :, sees, 3]
    np.testing.assert_array_equal(kept, clean)
    assert not np.isfinite(out[:, :, sees, 3].astype(np.float32)).any()


@pytest.mark.slow
@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("head_dim", [(3, 5), (40, 72), (63, 63), (128, 64), (20, 300)], ids=str)
def test_packed_rows_of_any_width_are_right(kind: str, head_dim: tuple[int, int]) -> None:
    tile = 32 if max(head_dim) > 256 else "auto"  # which a mask makes smaller for wide values
    config = KINDS[kind].default(*head_dim, causal=True, pack_gqa=True, tile=tile)
    arrays = arrays_of(config, 19, 37, 7)
    judge(config, arrays, *check(config, arrays))


@pytest.mark.slow
@pytest.mark.sample(1)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("alignment", [4, 2])
def test_narrow_accesses_to_packed_rows_give_the_same_bits(kind: str, alignment: int) -> None:
    if kind == "simt" and alignment == 2:
        alignment = 8
    config = config_of(kind, 64, alignment=alignment, causal=True)
    arrays = arrays_of(config, 17, 30, 5)
    assert_same_bits(run(config, arrays), run(replace(config, alignment="auto"), arrays))


@ONE_OF_EACH_KERNEL
def test_packed_rows_may_have_any_strides(kind: str) -> None:
    config = config_of(kind, causal=True)
    arrays = arrays_of(config, 9, 20, 4)
    wanted = run(config, arrays)
    reversed_ = tuple(np.ascontiguousarray(a[:, ::-1, ::-1])[:, ::-1, ::-1] for a in arrays)
    heads_inside = tuple(np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in arrays)
    assert_same_bits(run(config, reversed_), wanted)
    assert_same_bits(run(config, heads_inside), wanted)


# ------------------------------------------------------------------------------------------
# what packing is for


def counted(config: AttentionConfig, arrays: Arrays) -> Result:
    return run_forward(config, arrays, profile=True)[2]


@ONE_OF_EACH_KERNEL
def test_keys_and_values_are_read_once_for_all_heads_that_share_them(kind: str) -> None:
    config = config_of(kind, return_lse=False)
    arrays = arrays_of(config, 1, 64, 8)
    packed, plain = (counted(c, arrays).counters for c in (config, unpacked(config)))
    one_head = 64 * 2 * 16 * config.element.nbytes // 32  # sectors of K and V
    of_queries = packed.global_sectors_read - 4 * one_head
    assert plain.global_sectors_read - of_queries == 8 * 4 * one_head
    assert 0 < of_queries <= 4 * 8 * (-(-16 * config.element.nbytes // 32))
    assert plain.warp_instructions > 6 * packed.warp_instructions


@ONE_OF_EACH_KERNEL
def test_a_decode_of_few_heads_takes_one_cta_for_each_head_of_keys(kind: str) -> None:
    config = config_of(kind, return_lse=False)
    arrays = arrays_of(config, 2, 33, 8)  # 16 rows
    geometry = checks.check(config, *views(arrays), None)
    assert checks.grid_ctas(config.kernel(), geometry) == 4
    assert checks.grid_ctas(unpacked(config).kernel(), geometry) == 32


@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
def test_the_count_of_tiles_is_that_of_tiles_which_packed_ctas_visit(kind: str, causal: Any) -> None:
    config = config_of(kind, causal=causal, window=(30, None))
    built = build(config.kernel())
    block_q, tile = built.config.tiling.block_q, built.config.tiling.tile
    for seq_q, seq_k, group in (*SIZES, (40, 100, 5)):
        offset = seq_k - seq_q if causal != "top_left" else 0
        visited = 0
        for first in range(0, seq_q * group, block_q):
            queries = [r // group for r in range(first, min(first + block_q, seq_q * group))]
            end = min(queries[-1] + offset + 1 if causal else seq_k, seq_k)
            visited += len(range(max(queries[0] + offset - 30, 0) // tile, -(-end // tile)))
        result = built.resources.visited_tiles(seq_q, seq_k, config.window, group)
        assert result == visited, (seq_q, seq_k, group)
        flops = built.resources.flops(3, 2 * group, seq_q, seq_k, config.window, kv_heads=2)
        t = built.config.tiling
        each = 2 * block_q * tile * (t.score_columns + t.output_columns)
        assert flops == 3 * 2 * visited * each


# ------------------------------------------------------------------------------------------
# when heads are packed


def views(arrays: Arrays) -> list[ArrayView]:
    return [view(array, "array") for array in arrays]


def test_auto_packs_heads_where_that_saves_ctas() -> None:
    assert packing_saves_ctas(1, 8, 64)  # 1 CTA instead of 8
    assert packing_saves_ctas(65, 2, 64)  # 3 instead of 4
    assert not packing_saves_ctas(1, 1, 64)
    assert not packing_saves_ctas(64, 8, 64)  # all rows are in use either way
    assert not packing_saves_ctas(127, 2, 64)  # 4 and 4


@pytest.mark.parametrize(
    ("choice", "sizes", "packed"),
    [
        *(("auto", (1, 40, 8), True), ("auto", (32, 40, 8), False), ("auto", (33, 40, 8), True)),
        *(("auto", (1, 40, 1), False), (False, (1, 40, 8), False), (True, (32, 40, 8), True)),
        (True, (1, 40, 1), True),
    ],
    ids=str,
)
def test_a_launch_takes_the_kernel_that_the_config_and_its_sizes_say(
    choice: bool | str, sizes: tuple[int, int, int], packed: bool
) -> None:
    config = config_of("mma f16", pack_gqa=choice)
    kernel, arrays = AttentionKernel(config), arrays_of(config, *sizes)
    lines = kernel.explain(*arrays, backend="interpreter").splitlines()
    name = config.kernel().name.replace("_packed", "").replace("_lse", "_packed_lse" if packed else "_lse")
    assert f"kernel:   {name} for sm_80, verified" in lines
    seq_q, _, group = sizes
    ctas = -(-seq_q * group // 32) * 4 if packed else -(-seq_q // 32) * 4 * group
    assert f"grid:     {ctas} CTAs" in lines
    queries = f"queries of {group} packed heads" if packed else "queries"
    assert f"tiles:    32 {queries} by 16 keys, 64 threads" in lines
    out, lse = kernel.launch(*arrays, backend="interpreter")
    judge(config, arrays, out, lse)


def test_heads_of_packed_sequences_are_packed_only_if_asked() -> None:
    config = config_of("mma f16", pack_gqa="auto", varlen=True)
    geometry = checks.check(config_of("mma f16"), *views(arrays_of(config, 1, 40, 8)), None)
    assert kernel_of(config, geometry) == config.kernel()
    assert kernel_of(config_of("mma f16", varlen=True), geometry).packed


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_a_choice_that_is_none_is_refused(value: Any) -> None:
    assert refusal(config_of, "mma f16", error=ConfigError, pack_gqa=value) == (
        f"AttentionConfig: pack_gqa must be one of 'auto', True, False, got {value!r}"
    )


def test_emitted_text_is_packed_only_if_asked() -> None:
    auto, never, always = (config_of("mma f16", pack_gqa=c).kernel() for c in ("auto", False, True))
    assert auto == never
    assert never.name == "attention_forward_f16_d16_m32_n16_lse"
    assert always == replace(never, packed=True)
    assert always.name == "attention_forward_f16_d16_m32_n16_packed_lse"


DEVICE = DeviceProperties(0, "device", 9, 0, 132, 48 << 10, 227 << 10, 228 << 10, 50 << 20, (13, 0))


def geometry_of(seq_q: int, batch: int, kv_heads: int, group: int) -> checks.Geometry:
    return checks.Geometry(
        batch, kv_heads * group, kv_heads, seq_q, 1, ((0, 0, 0),) * 4, 16, ((0, 0),) * 4, (), (), 2, 16
    )


def test_more_packed_rows_than_a_kernel_can_number_are_refused_or_not_packed() -> None:
    limits = config_of("mma f16").kernel(), DEVICE
    fits, too_many = geometry_of(2**26 - 8, 1, 1, 31), geometry_of(2**26 - 7, 1, 1, 32)
    checks.check_limits(fits, *limits)
    assert refusal(checks.check_limits, too_many, *limits) == (
        "launch: seq_q times heads / kv_heads must be at most 2147483392 with pack_gqa=True, got "
        "67108857 * 32; use pack_gqa='auto'"
    )
    config = config_of("mma f16", pack_gqa="auto")
    assert kernel_of(config, replace(fits, seq_q=2**26 - 9)).packed
    assert not kernel_of(config, too_many).packed


def test_a_grid_of_packed_rows_is_counted_in_heads_of_keys() -> None:
    limits = config_of("mma f16").kernel(), DEVICE
    checks.check_limits(geometry_of(1, 2**11, 2**19, 32), *limits)
    checks.check_limits(geometry_of(3, 2**9, 2**19, 32), *limits)
    assert refusal(checks.check_limits, geometry_of(3, 2**11, 2**19, 32), *limits) == (
        "launch: a grid has at most 2147483647 CTAs, this call needs 3221225472 (ceil(96 / 32) "
        "query blocks * 524288 kv_heads * 2048 batch); split the batch or use a larger block_q"
    )


# ------------------------------------------------------------------------------------------
# text, contract, proofs, registers


def test_the_contract_says_how_many_ctas_there_are() -> None:
    built = build(config_of("mma f16").kernel())
    assert built.contract["grid"] == {
        "formula": "(ceil(rows / 32) * kv_heads * batch, 1, 1)",
        "x": {"times": [{"ceil_div": ["rows", 32]}, "kv_heads", "batch"]},
        "y": 1,
        "z": 1,
    }
    assert built.contract["sizes"]["rows"]["equal"] == {"times": ["seq_q", "group"]}
    assert built.contract["sizes"]["heads"]["equal"] == {"times": ["group", "kv_heads"]}
    assert "seq_q * group is at most 2147483392" in built.contract["constraints"]
    assert (
        built.contract["parameters"] == build(unpacked(config_of("mma f16")).kernel()).contract["parameters"]
    )


def swapped(self: PackedMatrix, k: KernelBuilder, index: Value) -> Value:
    """The offset of a row whose query and head are taken for each other."""
    other = replace(self, head_bytes=self.row_bytes, row_bytes=self.head_bytes)
    return OFFSET(other, k, index)


OFFSET = PackedMatrix.offset


@pytest.mark.slow
@pytest.mark.sample(1)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("of", ["offset", "query", "head"])
def test_a_wrong_place_of_a_packed_row_is_a_violation(
    kind: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if of == "offset":
        monkeypatch.setattr(PackedMatrix, "offset", swapped)
    else:
        monkeypatch.setattr(Packing, of, lambda _, row: row)
    kernel = config_of(kind).kernel()
    built = build.__wrapped__(kernel)
    result = prove_global(built.module, block=built.threads, contract=built.promised)
    assert result.violations
