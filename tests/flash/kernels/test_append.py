"""New rows of K and V at their places in a cache, and rows turned by their positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flash.calls.step import Step
from flash.contract.cache_builds import append_build
from flash.decode.plan import AppendCall, append_step, default_target
from flash.kernels.append import AppendConfig
from flash.operands.dtypes import BF16, DTYPES, F16, F32, FP8_DTYPES, DType
from flash.problem.features import Features
from flash.problem.rotary import rotary_tables
from ptxgen.arrays.views import ArrayView, view
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from tools.campaign.append import AppendArrays, AppendProblem, AppendSettings

pytestmark = pytest.mark.grid

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V, SEQUENCES, CAPACITY = 3, 4, 2, 40, 37, 5, 23


def normal(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return numbers.astype(dtype.numpy)


def rotation(cos: Array, sin: Array, q: Array, q_out: Array) -> dict[str, ArrayView]:
    """The arrays of a rotation."""
    arrays = {"COS": cos, "SIN": sin, "Q": q, "Q_OUT": q_out}
    return {name: view(array, name) for name, array in arrays.items()}


def launched(
    arrays: dict[str, Array],
    operands: dict[str, Array],
    page_size: int,
    turned: dict[str, ArrayView] | None = None,
    *,
    interleaved: bool = False,
    sanitize: bool = True,
    counts: Array | None = None,
    schedule: str | PCT = "lockstep",
) -> None:
    arguments = {**arrays, **operands, **({} if counts is None else {"counts": counts})}
    views = {name: view(array, name) for name, array in arguments.items()}
    call = AppendCall({**views, **(turned or {})}, page_size, interleaved)
    run_proved(append_step(target("sm_80"), call), sanitize=sanitize, schedule=schedule)


def run_proved(step: Step, **how: Any) -> None:
    assert step.build.global_proof.complete
    step.interpret(**how)


def bits(array: Array) -> list[int]:
    return array.view(f"u{array.itemsize}").ravel().tolist()


def assert_right(settings: AppendSettings, problem: AppendProblem) -> None:
    """A kernel writes what it should, bit for bit, and nothing else."""
    arrays = AppendArrays.of(settings, problem)
    run_proved(arrays.step(), sanitize=True)
    assert arrays.wrong() == ""


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("page_size", [0, 1, 4])
@pytest.mark.parametrize("rotary", ["", "halves", "neighbours"])
def test_rows_are_written_behind_those_that_are_there(dtype: DType, page_size: int, rotary: str) -> None:
    turns = 24 if rotary else 0
    settings = AppendSettings("sm_80", (DIM, DIM_V), dtype, turns, rotary == "neighbours", page_size)
    # The last item has no room before its rows.
    assert_right(settings, AppendProblem(3, 2, (23, 3, 2), (4, 1, 0), (4, 0, 2), heads=HEADS))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("turns", [0, 24])
@pytest.mark.parametrize(
    ("kv", "name"),
    [(t.name, name) for t in FP8_DTYPES.values() for name in sorted({default_target(t).name, "sm_89"})],
)
def test_rows_of_one_byte_are_divided_by_their_scales_and_rounded_once(
    dtype: DType, turns: int, kv: str, name: str
) -> None:
    settings = AppendSettings(name, (DIM, DIM_V), dtype, turns, padding=False, index=False, kv_dtype=kv)
    assert_right(settings, AppendProblem(4, 4, (4,), heads=HEADS))


@pytest.mark.parametrize("page_size", [0, 4])
def test_of_each_item_so_many_rows_are_written_as_it_has(page_size: int) -> None:
    settings = AppendSettings("sm_80", (DIM, DIM_V), F32, 0, False, page_size, padding=False, index=False)
    assert_right(settings, AppendProblem(5, 1, (7, 9, 2), counts=(0, 5, 2)))


@pytest.mark.parametrize("seed", range(5))
def test_every_order_of_the_warps_writes_the_same(seed: int) -> None:
    """Page 2 is of two sequences, which share what is before their new rows."""
    n = 3
    operands = {
        "seqused_k": np.array([9, 10], np.int32),
        "cache_batch_idx": np.array([1, 0], np.int32),
        "block_table": np.array([[2, 0, 4], [2, 1, 3]], np.int32),
    }
    k_new, v_new = (normal((2, KV_HEADS, n, dim), BF16, dim) for dim in (DIM, DIM_V))
    q = normal((2, HEADS, n, DIM), BF16, 3)
    cos, sin = rotary_tables(CAPACITY, 24)
    result = []
    for schedule in ("lockstep", PCT(seed)):
        k, v = (np.zeros((5, KV_HEADS, 4, dim), BF16.numpy) for dim in (DIM, DIM_V))
        q_out = np.zeros_like(q)
        turned = rotation(cos, sin, q, q_out)
        arrays = {"K_NEW": k_new, "V_NEW": v_new, "K": k, "V": v}
        launched(arrays, operands, 4, turned, interleaved=True, schedule=schedule)
        result.append([bits(array) for array in (k, v, q_out)])
    assert result[0] == result[1]


NONSENSE = np.array([-(2**31), 2**31 - 1, 10**6], np.int32)


@pytest.mark.parametrize("page_size", [0, 4])
def test_whatever_lengths_and_tables_hold_nothing_outside_is_written(page_size: int) -> None:
    shape: tuple[int, ...] = (SEQUENCES, KV_HEADS, CAPACITY)
    operands = {"seqused_k": NONSENSE, "leftpad_k": NONSENSE[::-1], "cache_batch_idx": NONSENSE}
    if page_size:
        shape = (7, KV_HEADS, page_size)
        operands["block_table"] = np.resize(NONSENSE, (SEQUENCES, 6))
    k, v = (np.zeros((*shape, dim), np.float32) for dim in (DIM, DIM_V))
    k_new = normal((BATCH, KV_HEADS, 3, DIM), F32, 1)
    v_new = normal((BATCH, KV_HEADS, 3, DIM_V), F32, 2)
    cos, sin = rotary_tables(9, 24)
    q = normal((BATCH, HEADS, 1, DIM), F32, 3)
    turned = rotation(cos, sin, q, np.empty_like(q))
    arrays = {"K_NEW": k_new, "V_NEW": v_new, "K": k, "V": v}
    # An access outside would end the run. That two items write one row is theirs to avoid.
    launched(arrays, operands, page_size, turned, sanitize=False)
    launched(arrays, operands, page_size, sanitize=False, counts=NONSENSE[::-1].copy())


@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_the_kernel_assembles_without_a_spill(name: str, assembler: Assembler) -> None:
    dtype = F16 if name == "sm_75" else BF16  # which is converted from sm_80 on
    features = Features(seqused_k=True, page_size=16, leftpad_k=True, cache_batch_idx=True)
    config = AppendConfig(target(name), 128, 128, dtype, features, 64)
    usage = assembler.assemble(append_build(config).text, name).kernel(config.name)
    assert usage.spill_store_bytes == usage.spill_load_bytes == 0
