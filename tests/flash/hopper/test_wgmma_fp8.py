"""The forward kernel for Hopper with Q, K and V of fp8: its own PTX, run on the interpreter, which adds as
the tensor cores of Hopper do, with the sanitizers on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import SCALES, Array, arrays_of, assert_same_bits, bound_of, check
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDevice, FakeDriver
from fp8_runs import config_of, scaled, scales_of
from judge import assert_within
from kernel_runs import main_loop_of, nightly, run_forward, without
from refusals import refusal
from sequence_runs import Batch

from flash import AttentionKernel, DecodeKernel
from flash.contract.catalogue import build
from flash.error_bound import Bound
from flash.families.wgmma_fp8 import Fp8Tiling
from flash.operands.dtypes import FP8_DTYPES, FP8_NAMES
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen import ir
from ptxgen.errors import ConfigError, TrapError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

# ------------------------------------------------------------------------------------------
# semantics


def test_weights_far_below_a_sink_are_not_lost() -> None:
    config = config_of(sink=True)
    q, k, v = arrays_of(config, 64, 70)
    v[...] = np.abs(v.astype("f4")).astype(v.dtype)
    scales = scales_of()
    _, lse = attention_reference(*scaled((q, k, v), scales))
    sink = lse.min() + 8 * np.log(2)  # keys of most rows have together less than 2^-8 of its weight
    check(config, (q, k, v), {"sink": np.full(lse.shape[1], sink, "f4")})


@pytest.mark.slow
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
def test_a_mask_hides_keys_and_tiles() -> None:
    config = config_of(mask=True)
    mask = np.random.default_rng(5).random((1, 1, 60, 400)) < 0.5
    mask[..., 64:192] = False
    check(config, arrays_of(config, 60, 400), {"mask": mask})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["e4m3", *map(nightly, [*FP8_DTYPES][1:])])
@pytest.mark.parametrize("heads", [1, 2])
def test_numbers_that_are_not_finite_reach_only_rows_that_see_them(dtype: str, heads: int) -> None:
    config = config_of(dtype=dtype, causal=True, pack_gqa=heads > 1)
    q, k, v = arrays_of(config, 70, 150, 1, heads, 1)
    odd = (np.nan,) if dtype == "e4m3" else (np.nan, np.inf, -np.inf)
    for n, value in enumerate(odd):
        for location, key in enumerate((149, 141 - n, 10)):  # the last rows see all, the first row 80 of them
            v[0, 0, key, 3 + 8 * n + location] = value
    scales = scales_of()
    out, _, _ = run_forward(config, (q, k, v), operands=scales, sanitize=True)
    wanted, _ = attention_reference(*scaled((q, k, v), scales), causal=config.causal)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(out.astype(np.float64)), kind(wanted))
    bad = ~np.isfinite(v)
    v[bad] = 0
    assert_within(
        np.where(bad.any(axis=2, keepdims=True), 0, out),
        None,
        _with_zeros(bound_of(config, (q, k, v), scales), bad),
    )


def _with_zeros(bound: Bound, bad: Array) -> Bound:
    """The bound with zeros in the columns of V that have a number which is not finite."""
    columns = bad.any(axis=2, keepdims=True)
    return bound._replace(out=np.where(columns, 0, bound.out))


def test_rows_whose_scores_are_alike_err_by_less_than_a_rounding_of_a_weight() -> None:
    """The sums are those of rounded weights: what all roundings of a row have in common cancels."""
    config = config_of(tile=128)
    q, k, v = arrays_of(config, 64, 640)
    q = (q.astype(np.float32) / 64).astype(q.dtype)
    v = (np.abs(v.astype(np.float32)) + 1).astype(v.dtype)
    scales = {name: np.ones((1, 1), np.float32) for name in SCALES}
    out, _, _ = run_forward(config, (q, k, v), operands=scales)
    wanted, _ = attention_reference(*scaled((q, k, v), scales))
    # A weight errs by up to 2^-4 of itself, here nearly all in one direction; bf16 rounds to 2^-9.
    assert (np.abs(out.astype(np.float64) - wanted) / wanted).max() < 2.0**-7


def test_weights_from_the_largest_to_2_to_the_minus_16_of_it_are_exact_powers_of_two() -> None:
    config = config_of(softmax_scale=math.log(2), out_dtype="f16")
    count, of = 17, config.element.numpy
    q, k, v = (np.zeros((1, 1, rows, 64), np.float32) for rows in (1, count, count))
    q[..., 0], k[0, 0, :, 0] = 1, -np.arange(count)
    v[0, 0, :, :count] = 448 * np.eye(count)
    ones = {name: np.ones((1, 1), np.float32) for name in SCALES}
    out, _, _ = run_forward(config, (q.astype(of), k.astype(of), v.astype(of)), operands=ones)
    wanted = 448 * 2.0 ** -np.arange(count)
    wanted /= (2.0 ** -np.arange(count)).sum()
    # f16 rounds to 2^-11, and the sum of the weights loses up to 2^-13 in each step.
    np.testing.assert_allclose(out[0, 0, 0, :count].astype(np.float64), wanted, rtol=2.0**-10)


# ------------------------------------------------------------------------------------------
# the kernel


def _fences(module: ir.Module) -> list[int]:
    return [
        n
        for n, s in enumerate(module.kernels[0].body)
        if isinstance(s, ir.Instr) and "fence.proxy.async" in str(s)
    ]


@pytest.mark.interpreter
def test_a_transposed_tile_without_its_fence_is_found() -> None:
    config = config_of()
    module = build(config.kernel()).module

    def traps(at: int) -> bool:
        try:
            run_forward(
                config, arrays_of(config, 64, 192), without(module, at), operands=scales_of(), sanitize=True
            )
        except TrapError:
            return True
        return False

    assert any(map(traps, _fences(module)))


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [128, nightly(64), nightly(256)])
def test_products_of_a_tile_follow_one_another_without_waits(head_dim: int, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, dtype="e4m3", target="sm_90a")
    names = [one.name for one in main_loop_of(config, assembler).path]
    t = config.kernel().tiling
    assert isinstance(t, Fp8Tiling)
    parts = t.output_columns // t.value_part
    assert names.count("QGMMA") == head_dim // 32 + parts * t.tile // 32
    assert "R2UR" not in names


# ------------------------------------------------------------------------------------------
# launches

_E4M3 = "AttentionConfig: dtype='e4m3'"
_NOT_DONE = f"{_E4M3} has one kernel, which does not do this:"
_OR_ELSE = "; or convert Q, K and V to 'bf16'"


@pytest.mark.ptxas
@pytest.mark.parametrize(("head_dim", "how"), [(128, {}), nightly(64, {}), nightly(128, {"causal": True})])
def test_values_and_the_next_scores_are_multiplied_together_without_maxima(
    head_dim: int, how: dict[str, Any], assembler: Assembler
) -> None:
    path = main_loop_of(AttentionConfig(head_dim, dtype="e4m3", target="sm_90a", **how), assembler).path
    products = [at for at, one in enumerate(path) if one.name == "QGMMA"]
    waits = [at for at, one in enumerate(path) if one.opcode.startswith("WARPGROUP.DEPBAR")]
    exponentials = [at for at, one in enumerate(path) if one.opcode.startswith("MUFU.EX2")]
    assert products[-1] < waits[0]
    assert waits[-1] < exponentials[0]
    assert [one.opcode.split(".")[1] for one in path if one.name == "BAR"] == ["SYNC", "ARV"]
    names = [one.name for one in path]
    assert not {*names} & {"FMNMX", "PRMT", "SHFL", "R2UR"}
    # Comparisons notice large weights, and write predicates: no integers are computed for each weight.
    assert names.count("FSETP") == names.count("FFMA") == len(exponentials)
    assert names.count("LOP3") + names.count("VIADD") + names.count("IADD3") < 4


@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [256, nightly(192)])
def test_two_products_of_wide_values_and_the_next_scores_are_under_way(
    head_dim: int, assembler: Assembler
) -> None:
    config = AttentionConfig(head_dim, dtype="e4m3", target="sm_90a", tile=64)
    path = main_loop_of(config, assembler).path
    groups = [one.operands.split(",")[0] for one in path if "gsb0" in one.operands and one.name == "QGMMA"]
    waits = [one.operands for one in path if one.opcode.startswith("WARPGROUP.DEPBAR")]
    parts = head_dim // 64
    assert len(groups) == parts + 1
    assert len({*groups}) == 2  # blocks of registers
    assert waits == [*["gsb0, 0x1"] * parts, "gsb0, 0x0"]
    assert not {one.name for one in path} & {"LDL", "STL"}


@pytest.mark.parametrize("return_lse", [False, True])
def test_shifts_move_in_tiles_that_no_mask_cuts(return_lse: bool) -> None:
    config = config_of(return_lse=return_lse)
    q, k, v = arrays_of(config, 64, 300)
    growth = np.linspace(0.1, 8, 300)[::-1, None]  # tiles are taken from the last to the first
    k[...] = (k.astype("f4") * growth).astype(k.dtype)
    check(config, (q, k, v))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("interpreter", name) for name in FP8_DTYPES),
        ("cpu", "e4m3"),
        *(nightly("cpu", name) for name in [*FP8_DTYPES][1:]),
    ],
)
@pytest.mark.parametrize("layout", ["bhsd", nightly("bshd")])
def test_a_launch_takes_arrays_of_fp8_and_scales_that_broadcast(
    backend: Any, dtype: str, layout: Any
) -> None:
    config = config_of(causal=True, dtype=dtype)
    arrays = arrays_of(config, 40, 150, 2, 4, 2)
    scales = {
        "q_scale": np.array([1.5], "f4"),
        "k_scale": np.array([[0.5, 2.0]], "f4"),
        "v_scale": np.array([[2.0], [3.0]], "f4"),
    }
    arguments = arrays if layout == "bhsd" else tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays)
    out, lse = AttentionKernel(config).launch(*arguments, backend=backend, layout=layout, **scales)
    assert out.dtype.name == "bfloat16"
    wide = {name: np.broadcast_to(x, (2, 2)) for name, x in scales.items()}
    result = out if layout == "bhsd" else out.swapaxes(1, 2)
    assert_within(result, lse, bound_of(config, arrays, wide))


def test_an_out_that_lies_behind_q_is_no_overlap() -> None:
    config = config_of(return_lse=False)
    q, k, v = arrays_of(config, 64, 64)
    memory = np.zeros(3 * q.size, np.uint8)
    mine, out = (
        memory[: q.size].view(q.dtype).reshape(q.shape),
        memory[q.size :].view(config.output.numpy).reshape(q.shape),
    )
    mine[...] = q
    ones = {name: np.ones(1, "f4") for name in SCALES}
    kernel = AttentionKernel(config)
    kernel.launch(mine, k, v, out=out, backend="cpu", **ones)
    wanted = kernel.launch(q, k, v, backend="cpu", **ones)
    np.testing.assert_array_equal(out, wanted)
    assert refusal(
        kernel.launch,
        memory[2 * q.size :].view(q.dtype).reshape(q.shape),
        k,
        v,
        out=out,
        backend="cpu",
        **ones,
    ) == ("launch: out must not share memory with q; leave out=None, or pass an array of its own")


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


@pytest.mark.slow
def test_a_gpu_gives_the_bits_of_the_interpreter_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    driver = interpreting(FakeDriver(FakeDevice()))
    config = config_of(causal=True, varlen=True, page_size=16)
    arguments = Batch.of(config, ((1, 90), (20, 33)), (2, 1)).arguments
    on_gpu = AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    result = on_gpu.launch(**arguments, backend="cuda")
    assert_same_bits(result, AttentionKernel(config).launch(**arguments, backend="interpreter"))
    said = on_gpu.explain(**arguments, backend="cuda")
    assert "tiles:    64 queries of 2 packed heads by 64 keys, 256 threads\n" in said
    assert "products: wgmma of fp8, with tiles copied by TMA and V transposed\n" in said
    assert "scales:   one of Q, K and V for each head of K and V\n" in said


def test_explain_says_what_multiplies() -> None:
    config = config_of()
    ones = {name: np.ones(1, "f4") for name in SCALES}
    said = AttentionKernel(config).explain(*arrays_of(config, 64, 64), backend="interpreter", **ones)
    assert "products: wgmma of fp8, with tiles copied by TMA and V transposed" in said


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (
            {"target": "sm_90"},
            f"{_E4M3} needs target='sm_90a', whose wgmma multiplies it, or 'sm_100a', whose tcgen05 does, "
            f"got 'sm_90'{_OR_ELSE}",
        ),
        (
            {"target": "sm_103a", "scale_block": 64, "pack_gqa": True},
            f"{_E4M3} has one kernel for sm_103a, which does not take this: scale_block=64 with pack_gqa=True"
            f"{_OR_ELSE}",
        ),
        (
            {"target": "sm_100a", "head_dim_v": 272},
            f"{_E4M3} has one kernel for sm_100a, which does not take this: rows of more than 256 columns "
            f"leave S no columns of tensor memory{_OR_ELSE}",
        ),
        (
            {"target": "sm_100a", "mask": True, "bias": "f32", "block_q": 256},
            f"{_E4M3} has one kernel for sm_100a, which does not take this: block_q=256: with a mask and a "
            f"bias, two row tiles have registers for tiles of 16 keys, not of 32{_OR_ELSE}",
        ),
        (
            {"head_dim": 72},
            f"{_E4M3} takes rows and strides of multiples of 16 bytes, as tensor maps do, got multiples "
            f"of 8; pad head_dim to a multiple of 16{_OR_ELSE}",
        ),
        ({"head_dim_v": 272}, f"{_E4M3} takes head_dim and head_dim_v up to 256, got 64 and 272{_OR_ELSE}"),
        ({"dropout": 0.5}, f"{_NOT_DONE} dropout=0.5{_OR_ELSE}"),
        ({"scale_block": 64, "pack_gqa": True}, f"{_NOT_DONE} scale_block=64 with pack_gqa=True{_OR_ELSE}"),
        (
            {"varlen": True, "page_size": 24},
            f"{_NOT_DONE} page_size=24, which is no multiple of 16{_OR_ELSE}",
        ),
        (
            {"head_dim": 128, "block_q": 192},
            f"{_E4M3} with tile=auto, block_q=192 and stages=2 does not fit shared memory or registers; use "
            f"fewer stages, or smaller tiles of (64, 128) and (64, 128, 192){_OR_ELSE}",
        ),
        ({"out_dtype": "f32"}, "AttentionConfig: out_dtype must be one of 'bf16', 'f16', got 'f32'"),
        (
            {"tile": 32},
            "AttentionConfig: tile must be one of 64, 128, 'auto', got 32; the largest tile that fits "
            "head_dim=64, head_dim_v=64 on sm_90a is 128",
        ),
    ],
    ids=str,
)
def test_what_there_is_no_kernel_for_is_refused(how: dict[str, Any], wanted: str) -> None:
    assert (
        refusal(
            AttentionConfig, error=ConfigError, **{"head_dim": 64, "dtype": "e4m3", "target": "sm_90a", **how}
        )
        == wanted
    )


def test_o_has_a_type_of_its_own_with_fp8_alone() -> None:
    assert refusal(AttentionConfig, 64, error=ConfigError, dtype="f16", out_dtype="bf16") == (
        f"AttentionConfig: out_dtype is for Q, K and V of {FP8_NAMES}; those of 'f16' give O of their "
        "own type, got 'bf16'; leave it out"
    )
    assert AttentionConfig(64, dtype="f16", out_dtype="float16").out_dtype is None
    assert replace(config_of(), out_dtype=None).output.name == "bf16"


def test_caches_are_of_other_types() -> None:
    assert AttentionConfig(64, dtype="e4m3").target == "sm_90a"
    with pytest.raises(ConfigError, match=r"^DecodeKernel: .*dtype='e4m3'"):
        DecodeKernel(config_of())


def test_scales_must_be_given() -> None:
    config = config_of()
    assert (
        refusal(
            AttentionKernel(config).launch,
            *arrays_of(config, 4, 4),
            backend="cpu",
            q_scale=np.ones(1, "f4"),
            k_scale=np.ones(1, "f4"),
        )
        == "launch: v_scale must be given, because the config says dtype='e4m3'"
    )


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("packed", [False, True])
def test_scales_must_be_finite(name: str, packed: bool) -> None:
    config = config_of(varlen=packed)
    arrays = arrays_of(config, 4, 4)
    arguments: dict[str, Any] = {one: np.ones((1, 1), "f4") for one in SCALES}
    if packed:
        arrays = tuple(x[0].swapaxes(0, 1) for x in arrays)  # type: ignore[assignment]  # three
        arguments |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), np.array([0, 4], np.int32))
    kernel = AttentionKernel(config)
    for finite in (1.0, 0.0, -1.0):  # the second launch has the geometry of the first
        kernel.launch(*arrays, backend="cpu", **{**arguments, name: np.full((1, 1), finite, "f4")})
    for value in (np.nan, np.inf, -np.inf):
        assert (
            refusal(kernel.launch, *arrays, backend="cpu", **{**arguments, name: np.array([[value]], "f4")})
            == f"launch: {name} must hold finite numbers, got {value}"
        )
        kernel.result_shapes(
            *arrays, **{**arguments, name: np.array([[value]], "f4")}
        )  # which reads no scale
