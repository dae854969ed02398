"""Merging attention to parts of the keys: as attention to all, exact where parts have no key."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray, interpreting, on_device, without_assembler
from fake_driver import FakeDriver
from judge import assert_attention_is_accurate, assert_within, rounded_normal
from refusals import refusal

import flash
from flash.contract.cache_builds import merge_build
from flash.error_bound import Arithmetic, merge_bound
from flash.kernels.merge import MergeConfig
from flash.operands.dtypes import BF16, F16, F32
from ptxgen import interpreter
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
INF = np.inf
EITHER = pytest.mark.parametrize("backend", ["cpu", "interpreter"])


def parts_of(splits: int, *shape: int, dtype: Any = np.float32) -> tuple[Array, Array]:
    """Outputs and sums of parts, as much apart as those of long sequences."""
    rng = np.random.default_rng([splits, *shape])
    outs = rounded_normal(rng, (splits, *shape), dtype)
    return outs, (8 * rng.standard_normal((splits, *shape[:-1]))).astype(np.float32)


@EITHER
@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bf16"])
@pytest.mark.parametrize("splits", [1, 2, 3, 17, 97])
def test_merging_is_as_accurate_as_its_formula_in_f32(splits: int, dtype: Any, backend: str) -> None:
    outs, lses = parts_of(splits, 2, 3, 5, 8, dtype=dtype)
    out, lse = flash.merge_partials(outs, lses, backend=backend)
    assert (out.dtype, lse.dtype) == (outs.dtype, np.float32)
    assert_within(out, lse, merge_bound(np.moveaxis(outs, 0, -2), np.moveaxis(lses, 0, -1), out.dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bf16"])
@pytest.mark.parametrize("ends", [(0, 40), (0, 1, 2, 39, 40), (0, 0, 17, 17, 40, 40)])
def test_parts_of_the_keys_give_attention_to_all(ends: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    q = rounded_normal(rng, (2, 4, 3, 16), dtype)
    k, v = (rounded_normal(rng, (2, 2, 40, d), dtype) for d in (16, 8))
    result = [
        flash.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True, backend="cpu")
        for a, b in itertools.pairwise(ends)
    ]
    outs, lses = ([part[n] for part in result] for n in (0, 1))
    out, lse = flash.merge_partials(outs, lses)

    arithmetic = Arithmetic(parts=float(ml_dtypes.finfo(q.dtype).eps) / 2)
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=arithmetic)


@EITHER
def test_a_part_without_a_key_changes_no_bit(backend: str) -> None:
    outs, lses = parts_of(3, 4, 6)
    want = flash.merge_partials(outs, lses, backend=backend)
    empty = np.full((1, 4, 6), np.nan, np.float32), np.full((1, 4), -INF, np.float32)
    for at in range(4):
        more = [np.insert(x, at, y, axis=0) for x, y in zip((outs, lses), empty, strict=True)]
        got = flash.merge_partials(*more, backend=backend)
        assert [array.tobytes() for array in got] == [array.tobytes() for array in want]


@EITHER
def test_one_part_is_itself(backend: str) -> None:
    outs, lses = parts_of(1, 4, 6)
    out, lse = flash.merge_partials(outs, lses, backend=backend)
    np.testing.assert_array_equal(out, outs[0])
    np.testing.assert_array_equal(lse, lses[0])


@EITHER
def test_no_key_in_any_part_gives_zero_and_minus_infinity(backend: str) -> None:
    outs, lses = parts_of(2, 3, 4)
    lses[:, 1], outs[:, 1] = -INF, np.nan
    out, lse = flash.merge_partials(outs, lses, backend=backend)
    assert (out[1] == 0).all()
    assert lse[1] == -INF
    assert np.isfinite(out[[0, 2]]).all()


@EITHER
@pytest.mark.parametrize("wild", [INF, np.nan])
def test_a_sum_that_is_no_number_makes_its_row_nan_and_no_other(wild: float, backend: str) -> None:
    outs, lses = parts_of(3, 3, 4)
    lses[1, 2] = wild
    out, lse = flash.merge_partials(outs, lses, backend=backend)
    np.testing.assert_array_equal(np.isnan(lse), [False, False, True])
    np.testing.assert_array_equal(np.isnan(out), [[False] * 4] * 2 + [[True] * 4])


@EITHER
def test_parts_of_flash_attn_2_say_by_plus_infinity_that_they_have_no_key(backend: str) -> None:
    outs, lses = parts_of(3, 4, 6)
    lses[1, 0] = lses[:, 1] = -INF
    wanted = flash.merge_partials(outs, lses, backend=backend)
    theirs = np.where(np.isneginf(lses), np.float32(INF), lses)
    theirs[0, 1] = -INF  # a part of ours beside theirs
    outs[1, 0] = outs[:, 1] = np.nan
    result = flash.merge_partials(outs, theirs, empty_lse=INF, backend=backend)
    assert [array.tobytes() for array in result] == [array.tobytes() for array in wanted]


@pytest.mark.parametrize("given", [0.0, np.nan, None, "inf"])
def test_an_lse_of_no_key_is_an_infinity(given: Any) -> None:
    assert refusal(flash.merge_partials, *parts_of(2, 3, 4), empty_lse=given) == (
        f"merge_partials: empty_lse must be -math.inf, or math.inf for parts of flash-attn 2, got {given!r}"
    )


@EITHER
def test_sums_far_beyond_what_exp_holds_are_merged(backend: str) -> None:
    outs = np.array([[[1.0]], [[3.0]], [[1e30]]], np.float32)
    for sums in ([3e5, 3e5, -3e5], [-3e5, -3e5, -3.4e38]):
        out, lse = flash.merge_partials(outs, np.array(sums, np.float32)[:, None], backend=backend)
        assert out.tolist() == [[2.0]]
        assert lse.tolist() == [np.float32(sums[0] + math.log(2))]


@EITHER
def test_outputs_near_the_largest_number_do_not_overflow(backend: str) -> None:
    outs = np.full((4, 1, 2), np.finfo(np.float32).max, np.float32)
    out, _ = flash.merge_partials(outs, np.zeros((4, 1), np.float32), backend=backend)
    np.testing.assert_array_equal(out, outs[0])


def test_parts_in_f32_may_be_rounded_to_a_narrower_type() -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    wide, _ = flash.merge_partials(outs, lses)
    into = np.zeros((2, 5, 8), ml_dtypes.bfloat16)[:, ::-1]
    out, lse = flash.merge_partials(tuple(outs), list(lses), out=into, backend="cpu")
    assert out is into
    assert into.tobytes() == wide.astype(ml_dtypes.bfloat16).tobytes()
    assert lse.shape == (2, 5)


@EITHER
def test_views_of_any_strides_are_read(backend: str) -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    rotation = np.asfortranarray(outs[::-1])
    thinned = np.repeat(lses, 2, axis=2)[:, :, ::2]
    out, lse = flash.merge_partials(rotation[::-1], thinned, backend=backend)
    wanted = flash.merge_partials(outs, lses, backend=backend)
    assert (out.tobytes(), lse.tobytes()) == (wanted[0].tobytes(), wanted[1].tobytes())


@EITHER
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3)])
def test_there_may_be_no_rows(shape: tuple[int, ...], backend: str) -> None:
    out, lse = flash.merge_partials(*parts_of(2, *shape), backend=backend)
    assert (out.shape, lse.shape) == (shape, shape[:-1])


@pytest.mark.parametrize("shape", [(2, 4, 0), (3, 0)])
def test_there_may_be_no_columns(shape: tuple[int, ...]) -> None:
    out, lse = flash.merge_partials(*parts_of(2, *shape))
    assert (out.shape, lse.shape) == (shape, shape[:-1])


def test_results_are_of_the_kind_of_the_parts(torch: Any) -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    wanted, sums = flash.merge_partials(outs, lses)
    out, lse = flash.merge_partials(torch.from_numpy(outs), torch.from_numpy(lses))
    assert isinstance(out, torch.Tensor)
    assert isinstance(lse, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), wanted)
    np.testing.assert_array_equal(lse.numpy(), sums)


# ------------------------------------------------------------------------------------------
# refusals

OUTS, LSES = parts_of(2, 3, 4)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_arrays": (
        {"outs": [OUTS[0], 1.0], "lses": "many"},
        "2 problems\n"
        "  outs[1] must be an array (numpy, torch, or with __cuda_array_interface__ or "
        "__dlpack__), got float; convert with numpy.asarray(outs[1], numpy.float32)\n"
        "  lses must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), "
        "got str; convert with numpy.asarray(lses, numpy.float32)",
    ),
    "types": (
        {"outs": OUTS.astype(np.float64), "lses": LSES.astype(np.float16)},
        "2 problems\n"
        "  outs must be one of float32, float16, bfloat16, got float64; convert with "
        "outs.astype('float32')\n"
        "  lses must be float32, got float16; convert with lses.astype('float32')",
    ),
    "types_of_parts": (
        {"outs": [OUTS[0], OUTS[1].astype(np.float16)]},
        "outs[1] must be float32, as outs[0] is, got float16; convert with outs[1].astype('float32')",
    ),
    "counts": ({"lses": LSES[:1]}, "outs and lses must have equally many parts, at least one, got 2 and 1"),
    "no_parts": (
        {"outs": OUTS[:0], "lses": []},
        "outs and lses must have equally many parts, at least one, got 0 and 0",
    ),
    "no_dimensions": (
        {"outs": np.float32([1, 2]), "lses": np.float32([1, 2])},
        "outs must have parts of at least one dimension, head_dim_v, got none",
    ),
    "shapes": (
        {"outs": [OUTS[0], OUTS[1, :2]], "lses": [LSES[0, :2], LSES[1]]},
        "2 problems\n"
        "  outs[1] must have the shape of outs[0], [3, 4], got [2, 4]\n"
        "  lses[0] must have the shape of the rows of outs, [3], got [2]",
    ),
    "out": (
        {"out": np.zeros((3, 5), np.int32)},
        "out must be one of float32, float16, bfloat16, got int32; convert with out.astype('float32')",
    ),
    "shape_of_out": (
        {"out": np.zeros((3, 5), np.float32)},
        "out must have shape [3, 4], got [3, 5]; leave out=None to have it made",
    ),
    "shared": (
        {"out": OUTS[1]},
        "out must not share memory with outs; leave out=None, or pass an array of its own",
    ),
    "device": (
        {"outs": CudaArray(4096, OUTS), "backend": "cpu"},
        "outs must be on the host, got cuda:?; copy it there",
    ),
    "no_device": (
        {"backend": "cuda"},
        "backend 'cuda' merges parts on a GPU, got cpu; copy them there, or use backend='cpu'",
    ),
    "stream": ({"stream": 0}, "stream is for a GPU, but the backend is 'cpu'; leave out the stream"),
    "columns": (
        {"outs": np.zeros((2, 3, 513), np.float32), "backend": "interpreter"},
        "head_dim_v must be 1 to 512 on the backend 'interpreter', got 513",
    ),
    "parts": (
        {
            "outs": np.zeros((32769, 1, 1), np.float32),
            "lses": np.zeros((32769, 1), np.float32),
            "backend": "interpreter",
        },
        "parts must be 1 to 32768 on the backend 'interpreter', got 32769",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_do_not_fit_are_refused(name: str) -> None:
    how, message = REFUSED[name]
    assert (
        refusal(flash.merge_partials, **{"outs": OUTS, "lses": LSES, **how}) == f"merge_partials: {message}"
    )


def test_an_unknown_backend_is_refused() -> None:
    assert refusal(flash.merge_partials, OUTS, LSES, error=ConfigError, backend="gpu") == (
        "merge_partials: backend must be one of auto, cuda, interpreter, cpu, compiled, "
        "got 'gpu'; did you mean 'cuda'?"
    )


# ------------------------------------------------------------------------------------------
# the kernel


@pytest.mark.parametrize(
    ("shape", "order", "into"),
    [
        ((7, 5), (0, 1, 2), np.float16),
        ((3,), (1, 0), np.float32),
        ((2, 3, 4, 21), (0, 1, 3, 2, 4), "bf16"),  # parts in rows before heads
        ((2, 2, 3, 2, 40), (0, 1, 2, 3, 4, 5), np.float16),  # five dimensions, one after another
        ((2, 2, 3, 2, 8), (0, 3, 1, 4, 2, 5), np.float32),  # which a kernel cannot read
        ((2, 300), (1, 0, 2), np.float32),  # several columns for each lane
    ],
)
def test_the_kernel_reads_and_writes_any_dimensions(
    shape: tuple[int, ...], order: tuple[int, ...], into: Any
) -> None:
    outs, lses = parts_of(5, *shape)
    moved = np.ascontiguousarray(outs.transpose(order)).transpose(np.argsort(order))
    kind = ml_dtypes.bfloat16 if into == "bf16" else into
    room = np.full((*shape[:-1], shape[-1] + 3), 7, kind)
    out, lse = flash.merge_partials(moved, lses, out=room[..., :-3], backend="interpreter")
    assert_within(out, lse, merge_bound(np.moveaxis(outs, 0, -2), np.moveaxis(lses, 0, -1), kind))
    assert (room[..., -3:] == 7).all()


def test_a_list_of_parts_is_stacked_for_the_kernel() -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    wanted = flash.merge_partials(outs, lses, backend="interpreter")
    out, lse = flash.merge_partials(list(outs), lses, backend="interpreter")
    assert (out.tobytes(), lse.tobytes()) == (wanted[0].tobytes(), wanted[1].tobytes())


CONFIGS = [
    MergeConfig(target("sm_80"), 40, F16),
    MergeConfig(target("sm_75"), 21, F32, alignment=4, parts_alignment=4, return_lse=False),
    MergeConfig(target("sm_90"), 512, BF16, BF16),
    MergeConfig(target("sm_90"), 3, F32, F16, alignment=4, parts_alignment=2),
    MergeConfig(target("sm_80"), 64, F16, F16, plus_is_empty=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_every_access_of_the_kernel_is_proved(config: MergeConfig) -> None:
    built = merge_build(config)
    assert built.proof.complete, built.proof.report()
    assert built.global_proof.complete, built.global_proof.report()


@pytest.mark.ptxas
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_the_kernel_does_not_spill(config: MergeConfig, assembler: Assembler) -> None:
    usage = assembler.assemble(merge_build(config).text, config.target.name).kernel(config.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_kernel_passes_the_sanitizers_under_any_schedule(seed: int) -> None:
    outs, lses = parts_of(70, 1, 1, 5, 24, dtype=np.float16)
    lses[3:30, ..., 2], lses[..., 4] = -INF, -INF
    outs[3:30, ..., 2, :], outs[..., 4, :] = np.nan, np.nan
    out, lse = np.full((5, 24), np.nan, np.float32), np.full(5, np.nan, np.float32)
    built = merge_build(MergeConfig(target("sm_80"), 24, F32, F16))
    values: dict[str, Any] = {
        "PARTS": outs,
        "LSES": lses,
        "O": out,
        "LSE": lse,
        "rows": 5,
        "seq_q": 5,
        "heads": 1,
        "splits": 70,
        "PARTS_batch_stride": 0,
        "PARTS_head_stride": 0,
        "PARTS_row_stride": 24,
        "PARTS_split_stride": 120,
        "O_batch_stride": 0,
        "O_head_stride": 0,
        "O_row_stride": 24,
        "LSES_row_stride": 1,
        "LSES_split_stride": 5,
    }
    interpreter.run(
        built.module,
        grid=(2, 1, 1),
        block=(built.threads, 1, 1),
        args=[values[slot.name] for slot in built.slots],
        sanitize=True,
        schedule=PCT(seed),
    )
    wanted, sums = flash.merge_partials(outs[:, 0, 0].astype(np.float32), lses[:, 0, 0])
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(lse, sums, rtol=1e-6)


# ------------------------------------------------------------------------------------------
# on a GPU


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU that runs what is launched, without an assembler."""
    result = interpreting(FakeDriver())
    backend = CudaBackend(result)
    without_assembler(monkeypatch)
    monkeypatch.setattr("flash.decode.merge.cuda_backend", lambda: backend)
    return result


@pytest.mark.parametrize("given_out", [False, True])
def test_parts_on_a_gpu_are_merged_there(driver: FakeDriver, given_out: bool) -> None:
    outs, lses = parts_of(3, 2, 3, 5, 8)
    wanted, sums = flash.merge_partials(outs, lses, backend="interpreter")
    there = on_device(driver, outs), on_device(driver, lses)
    out = on_device(driver, np.zeros_like(outs[0])) if given_out else None
    result, lse = flash.merge_partials(*there, out=out)
    if given_out:
        assert result is out
    assert driver.fetch(result.pointer, wanted).tobytes() == wanted.tobytes()
    assert driver.fetch(lse.pointer, sums).tobytes() == sums.tobytes()
    assert len(driver.launches) == 1
    assert "cuMemcpyDtoHAsync" not in driver.names()


def test_dimensions_of_one_element_count_for_nothing(driver: FakeDriver) -> None:
    outs, lses = parts_of(3, 2, 3, 5, 8)
    wanted, sums = flash.merge_partials(outs, lses, backend="interpreter")
    wide = np.repeat(outs, 2, axis=3)  # of an array that is dense numpy tells other strides
    there, of_there = driver.place(wide), driver.place(lses)
    out, lse = flash.merge_partials(
        CudaArray(there, wide[:, :, None, :, None, ::2]), CudaArray(of_there, lses[:, :, None, :, None])
    )
    assert out.shape == (2, 1, 3, 1, 5, 8)
    assert driver.fetch(out.pointer, wanted).tobytes() == wanted.tobytes()
    assert driver.fetch(lse.pointer, sums).tobytes() == sums.tobytes()


def test_work_of_another_stream_is_waited_for(driver: FakeDriver) -> None:
    outs, lses = parts_of(3, 2, 8)
    there = on_device(driver, outs), on_device(driver, lses, stream=2)
    driver.calls.clear()
    flash.merge_partials(*there, stream=1)
    waits = [int(call.arguments[0]) for call in driver.calls if call.name == "cuStreamSynchronize"]
    assert waits == [2]
    assert driver.launches[-1].stream == 1


def refused_on_gpu(*arrays: Any, **how: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        flash.merge_partials(*arrays, **how)
    return str(caught.value)


def test_what_cannot_be_read_as_it_lies_is_refused_on_a_gpu(driver: FakeDriver) -> None:
    outs, lses = parts_of(2, 2, 2, 3, 4, 8)
    there, sums = on_device(driver, outs), on_device(driver, lses)
    driver.calls.clear()
    assert refused_on_gpu([there], [sums]) == (
        "merge_partials: 2 problems\n"
        "  outs must be one array on a GPU, [splits, ...], got a list of 1; stack them\n"
        "  lses must be one array on a GPU, [splits, ...], got a list of 1; stack them"
    )
    mixed = CudaArray(there.pointer, outs.transpose(0, 4, 1, 3, 2, 5))
    assert refused_on_gpu(mixed, on_device(driver, lses.transpose(0, 4, 1, 3, 2))) == (
        "merge_partials: outs and out must have rows in at most 3 dimensions once those that "
        "follow one another are joined, got strides [384, 8, 192, 32, 96, 1] and "
        "[96, 48, 16, 8, 1] for shape [2, 4, 2, 3, 2, 8]; copy them to dense arrays"
    )
    few, of_few = parts_of(2, 3, 4)
    rotation = CudaArray(driver.place(few), few.transpose(0, 2, 1))
    assert refused_on_gpu(rotation, on_device(driver, np.zeros((2, 4), np.float32))) == (
        "merge_partials: outs must be dense in its last dimension (stride 1), got strides [12, 1, 4] "
        "for shape [2, 4, 3]; copy it with outs.copy()"
    )
    assert refused_on_gpu(on_device(driver, few), of_few) == (
        "merge_partials: lses must be on cuda:0, as others are, got cpu; copy it there"
    )
    rows, of_rows = parts_of(2, 3, 4, 8)
    spread = CudaArray(driver.place(np.repeat(of_rows, 2, axis=1)), np.repeat(of_rows, 2, axis=1)[:, ::2])
    assert refused_on_gpu(on_device(driver, rows), spread) == (
        "merge_partials: lses must have rows that are equally far from one another, got strides "
        "[24, 8, 1] for shape [2, 3, 4]; copy it to a dense array"
    )
    assert not {"cuMemAlloc", "cuLaunchKernel"} & set(driver.names())
