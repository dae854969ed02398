"""New rows of K and V at their places in a cache, and rows turned by their positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flash.cache.host_memory import stored
from flash.contract.cache_builds import append_build
from flash.decode.append_launch import NewRows, Turned, append_step
from flash.host.arrays import host_array, view
from flash.kernels.append import AppendConfig
from flash.operands.dtypes import BF16, DTYPES, E4M3, F16, F32, DType
from flash.problem.features import Features
from flash.problem.rotary import rotary_tables, rotated
from ptxgen.interpreter import PCT, run
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

pytestmark = pytest.mark.grid

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V, SEQUENCES, CAPACITY = 3, 4, 2, 40, 37, 5, 23


def normal(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return numbers.astype(dtype.numpy)


def launched(
    dtype: DType,
    arrays: dict[str, Array],
    operands: dict[str, Array],
    page_size: int,
    turned: Turned | None = None,
    *,
    sanitize: bool = True,
    name: str = "sm_80",
    counts: Array | None = None,
    schedule: str | PCT = "lockstep",
) -> None:
    views = {name: view(array, name) for name, array in arrays.items()}
    of_lengths = {name: view(array, name) for name, array in operands.items()}
    new = NewRows(*views.values(), operands=of_lengths, page_size=page_size)
    new = new._replace(counts=None if counts is None else view(counts, "counts"))
    step = append_step(target(name), dtype, new, turned)
    assert step.made.global_proof.complete
    memory = [host_array(array) for array in step.arrays]
    run(
        step.made.module,
        grid=step.plan.grid,
        block=step.plan.block,
        args=[*memory, *step.plan.values[len(memory) :]],
        sanitize=sanitize,
        schedule=schedule,
    )


def bits(array: Array) -> list[int]:
    return array.view(f"u{array.itemsize}").ravel().tolist()


def places(operands: dict[str, Array], page_size: int, b: int, row: int) -> tuple[int, int]:
    """The sequence or page of a row of an item, and its place there."""
    index = operands.get("cache_batch_idx")
    sequence = b if index is None else int(index[b])
    if not page_size:
        return sequence, row
    return int(operands["block_table"][sequence, row // page_size]), row % page_size


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("page_size", [0, 1, 4])
@pytest.mark.parametrize("rotary", ["", "halves", "neighbours"])
def test_rows_are_written_behind_those_that_are_there(dtype: DType, page_size: int, rotary: str) -> None:
    n, seq_q = 3, 2
    operands = {
        "seqused_k": np.array([23, 3, 2], np.int32),  # the last has no room before its rows
        "leftpad_k": np.array([4, 1, 0], np.int32),
        "cache_batch_idx": np.array([4, 0, 2], np.int32),
    }
    shape: tuple[int, ...] = (SEQUENCES, KV_HEADS, CAPACITY)
    if page_size:
        columns = -(-CAPACITY // page_size)
        table = np.random.default_rng(5).permutation(SEQUENCES * columns).astype(np.int32)
        operands["block_table"] = table.reshape(SEQUENCES, columns)
        shape = (SEQUENCES * columns, KV_HEADS, page_size)
    k, v = (np.full((*shape, dim), np.nan, dtype.numpy) for dim in (DIM, DIM_V))
    k_new = normal((BATCH, n, KV_HEADS, DIM), dtype, 1).swapaxes(1, 2)  # views, not dense
    v_new = normal((BATCH, KV_HEADS, n, DIM_V), dtype, 2)
    q = normal((BATCH, HEADS, seq_q, DIM), dtype, 3)
    q_out = np.full_like(q, np.nan)
    cos, sin = rotary_tables(CAPACITY, 24)
    interleaved = rotary == "neighbours"
    turned = None
    if rotary:
        four = (view(cos, "cos"), view(sin, "sin")), (view(q, "q"), view(q_out, "q_out"))
        turned = Turned(*four[0], interleaved, *four[1])
    arrays = {"k": k_new, "v": v_new, "k_cache": k, "v_cache": v}
    launched(dtype, arrays, operands, page_size, turned)

    def turn(rows: Array, count: int) -> Array:
        used, padding = (operands[name].astype(int) for name in ("seqused_k", "leftpad_k"))
        positions = np.maximum((used - padding)[:, None] + np.arange(-count, 0), 0)
        return rotated(rows, cos, sin, positions, interleaved=interleaved).astype(dtype.numpy)

    wanted_k, wanted_v = np.full_like(k, np.nan), np.full_like(v, np.nan)
    new = turn(k_new, n) if rotary else k_new
    for b, i in np.ndindex(BATCH, n):
        row = int(operands["seqused_k"][b]) - n + i
        if row >= 0:
            place, within = places(operands, page_size, b, row)
            wanted_k[place, :, within], wanted_v[place, :, within] = new[b, :, i], v_new[b, :, i]
    assert bits(k) == bits(wanted_k)
    assert bits(v) == bits(wanted_v)
    if rotary:
        assert bits(q_out) == bits(turn(q, seq_q))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("turns", [False, True])
def test_rows_of_one_byte_are_divided_by_their_scales_and_rounded_once(dtype: DType, turns: bool) -> None:
    n = 4
    k_new = normal((1, KV_HEADS, n, DIM), dtype, 1) * dtype.numpy.type(300)
    v_new = normal((1, KV_HEADS, n, DIM_V), dtype, 2)
    v_new[0, 0, 0, :6] = [np.nan, np.inf, -np.inf, 1000, 2.0**-10, -(2.0**-12)]
    k, v = (np.zeros((1, KV_HEADS, CAPACITY, dim), np.uint8) for dim in (DIM, DIM_V))
    scales = {f"{x}_scale": np.array(s, np.float32) for x, s in (("k", (3, 0.7)), ("v", (1, 0.1)))}
    cos, sin = rotary_tables(CAPACITY, 24)
    q = normal((1, HEADS, n, DIM), dtype, 3)
    turned = Turned(view(cos, "c"), view(sin, "s"), False, view(q, "q"), view(np.empty_like(q), "o"))
    operands = {"seqused_k": np.array([n], np.int32), **scales}
    arrays = {"k": k_new, "v": v_new, "k_cache": k, "v_cache": v}
    launched(dtype, arrays, operands, 0, turned if turns else None, name="sm_89")
    new = k_new
    if turns:
        new = rotated(k_new, cos, sin, np.arange(n)[None], interleaved=False)
    for got, rows, scale in ((k, new, "k_scale"), (v, v_new, "v_scale")):
        wanted = stored(rows[0], E4M3, scales[scale][:, None, None])
        assert bits(got[0, :, :n].copy()) == bits(wanted.view(np.uint8))
        assert not got[0, :, n:].any()


@pytest.mark.parametrize("page_size", [0, 4])
def test_of_each_item_so_many_rows_are_written_as_it_has(page_size: int) -> None:
    n, counts = 5, np.array([0, 5, 2], np.int32)
    operands = {"seqused_k": np.array([7, 9, 2], np.int32)}
    shape: tuple[int, ...] = (BATCH, KV_HEADS, CAPACITY)
    if page_size:
        columns = -(-CAPACITY // page_size)
        table = np.arange(BATCH * columns, dtype=np.int32)[::-1].reshape(BATCH, columns)
        operands["block_table"] = np.ascontiguousarray(table)
        shape = (BATCH * columns, KV_HEADS, page_size)
    k, v = (np.full((*shape, dim), np.nan, np.float32) for dim in (DIM, DIM_V))
    k_new, v_new = (normal((BATCH, KV_HEADS, n, dim), F32, dim) for dim in (DIM, DIM_V))
    arrays = {"k": k_new, "v": v_new, "k_cache": k, "v_cache": v}
    launched(F32, arrays, operands, page_size, counts=counts)
    wanted_k, wanted_v = np.full_like(k, np.nan), np.full_like(v, np.nan)
    for b in range(BATCH):
        for i in range(counts[b]):
            row = int(operands["seqused_k"][b]) - int(counts[b]) + i
            place, within = places(operands, page_size, b, row)
            wanted_k[place, :, within], wanted_v[place, :, within] = k_new[b, :, i], v_new[b, :, i]
    assert bits(k) == bits(wanted_k)
    assert bits(v) == bits(wanted_v)


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
    found = []
    for schedule in ("lockstep", PCT(seed)):
        k, v = (np.zeros((5, KV_HEADS, 4, dim), BF16.numpy) for dim in (DIM, DIM_V))
        q_out = np.zeros_like(q)
        turned = Turned(view(cos, "c"), view(sin, "s"), True, view(q, "q"), view(q_out, "o"))
        arrays = {"k": k_new, "v": v_new, "k_cache": k, "v_cache": v}
        launched(BF16, arrays, operands, 4, turned, schedule=schedule)
        found.append([bits(array) for array in (k, v, q_out)])
    assert found[0] == found[1]


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
    turned = Turned(view(cos, "c"), view(sin, "s"), False, view(q, "q"), view(np.empty_like(q), "o"))
    arrays = {"k": k_new, "v": v_new, "k_cache": k, "v_cache": v}
    # An access outside would end the run. That two items write one row is theirs to avoid.
    launched(F32, arrays, operands, page_size, turned, sanitize=False)
    launched(F32, arrays, operands, page_size, sanitize=False, counts=NONSENSE[::-1].copy())


@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_the_kernel_assembles_without_a_spill(name: str, assembler: Assembler) -> None:
    dtype = F16 if name == "sm_75" else BF16  # which is converted from sm_80 on
    features = Features(seqused_k=True, page_size=16, leftpad_k=True, cache_batch_idx=True)
    config = AppendConfig(target(name), 128, 128, dtype, features, 64)
    usage = assembler.assemble(append_build(config).text, name).kernel(config.name)
    assert usage.spill_store_bytes == usage.spill_load_bytes == 0
