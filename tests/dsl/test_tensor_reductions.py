"""`k.tma.reduce`: tiles combined with what a tensor holds, by several CTAs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, launch
from error_texts import refused

import ptxgen as px
from ptxgen import TensorMap, interpreter
from ptxgen.arrays.elements import numpy_type
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TrapError, TypeMismatchError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import bf16, f16, f32, f64, s32, s64, u8, u32, u64

OPERATIONS = {
    "add": (u32, s32, u64, f32, f64, f16, bf16),
    "min": (u32, s32, u64, s64, f16, bf16),
    "max": (u32, s32, u64, s64, f16, bf16),
    "inc": (u32,),
    "dec": (u32,),
    "and": (u32, s32, u64, s64),
    "or": (u32, s32, u64, s64),
    "xor": (u32, s32, u64, s64),
}
OP_IS = "tma.reduce: op must be one of add, min, max, inc, dec, and, or, xor"
ROWS, COLUMNS, INNER = 40, 88, 88  # no multiple of a tile
PARTS = 2  # of the sum; the last has fewer products


@px.kernel(threads=256, target="sm_90a")
def split(k: Any, A: TensorMap[f16], B: TensorMap[f16], C: TensorMap[f32]) -> None:
    """C += A @ B, where each CTA has a part of the sum."""
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, a=((64, 32), f16), b=((32, 64), f16))
    out = k.tma.tile("out", (64, 64), f32)
    row, column, first = k.block_id("y") * 64, k.block_id("x") * 64, k.block_id("z") * 64
    with producer, k.loop(first, first + 64, 32) as i, ring.fill() as stage:
        k.tma.load(stage.a, A[row, i])
        k.tma.load(stage.b, B[i, column])
    with consumer:
        acc = k.wgmma.accumulator(64, 64)
        with k.loop(0, 64, 32), ring.drain() as stage:
            acc += stage.a @ stage.b
            k.wgmma.wait()
        acc.write(out)
        k.tma.reduce(out, C[row, column], "add")


def matrices() -> tuple[Any, Any, Any]:
    """Small integers, whose sums are exact; C is a part of a larger array."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((ROWS, INNER), (INNER, COLUMNS)))
    return a, b, rng.integers(-4, 5, (ROWS + 28, COLUMNS + 40)).astype(np.float32)


def test_ctas_add_their_parts_of_a_sum_to_one_tensor() -> None:
    a, b, c = matrices()
    wanted = c.copy()
    wanted[:ROWS, :COLUMNS] += a.astype(np.float32) @ b.astype(np.float32)
    result = split.check((2, 1, PARTS), a, b, c[:ROWS, :COLUMNS])
    assert result.clean, str(result)
    split[2, 1, PARTS](a, b, c[:ROWS, :COLUMNS], backend="interpreter")
    assert np.array_equal(c, wanted)  # what is outside of the tensor is as it was


def test_a_kernel_with_reductions_is_proved_and_described() -> None:
    built = split.build()
    assert split.prove(A=(ROWS, INNER), B=(INNER, COLUMNS), C=(ROWS, COLUMNS)).complete
    assert built.uses.written == {"C"}
    maps = [parameter["tensor_map"]["access"] for parameter in split.contract()["parameters"]]
    assert maps == [["load"], ["load"], ["load", "store"]]


@pytest.mark.ptxas
def test_the_assembler_takes_every_operation() -> None:
    assert find_assembler(target="sm_90a").assemble(split.build().text, "sm_90a")
    for op in OPERATIONS:
        assert find_assembler(target="sm_90").assemble(render(combined(op).build()), "sm_90")


def combined(op: Any, types: Any = None, *, second: str = "reduce") -> KernelBuilder:
    """`op` of tensors and tiles of these types, by two CTAs whose boxes begin before the tensor and meet in
    half of their columns. The second CTA may "store" its tiles instead, or "load" an element of the tensor.
    """
    k = KernelBuilder("combined", target="sm_90", threads=64)
    thread, cta = k.thread_id(), k.block_id()
    for dtype in types or OPERATIONS[op]:
        X, A = k.tma.tensor_map(f"X_{dtype}", dtype), k.pointer(f"A_{dtype}", dtype)
        tile = k.tma.tile(f"tile_{dtype}", (4, 32), dtype)
        with k.loop(thread, 128, 64, type=u32) as i:
            tile[i >> 5, i & 31] = A[cta * 128 + i]
        location = X[-2, k.signed(cta) * 16]
        if second == "reduce":
            k.tma.reduce(tile, location, op)
            continue
        with k.when(cta == 0, uniform=True):
            k.tma.reduce(tile, location, op)
        with k.when(cta == 1, uniform=True):
            if second == "store":
                k.tma.store(tile, location)
            else:
                held = k.pointer(f"held_{dtype}", dtype)
                A[128 + thread] = held[20]
    return k


def operands(op: str, dtype: Any, seed: int) -> tuple[Any, Any]:
    """A tensor of 5 x 40 elements, and the tiles of two CTAs; results depend on no order."""
    rng = np.random.default_rng(seed)
    if dtype.is_float:  # whose sums are exact
        return tuple(
            rng.integers(-60, 60, n).astype(numpy_type(dtype.dtype_name)) for n in ((5, 40), (2, 4, 32))
        )  # type: ignore[return-value]
    if op in ("inc", "dec"):
        return rng.integers(0, 8, (5, 40)).astype(np.uint32), np.full((2, 4, 32), 5, np.uint32)
    of = numpy_type(dtype.dtype_name)
    low, high = np.iinfo(of).min, np.iinfo(of).max
    first, second = (rng.integers(low, high, n, of, endpoint=True) for n in ((5, 40), (2, 4, 32)))
    return first, second


def one_by_one(op: str, old: Any, new: Any) -> Any:
    """`op` of two numbers, from the PTX manual's words ("atom")."""
    if op == "add":
        return old + new
    if op in ("min", "max"):
        return min(old, new) if op == "min" else max(old, new)
    if op == "inc":
        return old * 0 if old >= new else old + 1
    if op == "dec":
        return new if old == 0 or old > new else old - 1
    return {"and": old & new, "or": old | new, "xor": old ^ new}[op]


@pytest.mark.parametrize("op", list(OPERATIONS))
def test_every_operation_combines_elements_inside_of_the_tensor(op: str) -> None:
    arguments, wanted, held = [], [], []
    for seed, dtype in enumerate(OPERATIONS[op]):
        x, tiles = operands(op, dtype, seed)
        right = x.copy()
        with np.errstate(over="ignore"):
            for cta, row, column in np.ndindex(2, 2, 32):
                at = row, 16 * cta + column
                if at[1] < x.shape[1]:
                    right[at] = one_by_one(op, right[at], tiles[cta, row + 2, column])
        arguments += [x, tiles]
        held.append(x)
        wanted.append(right)
    launch(combined(op), *arguments, grid=2, schedules=LOCKSTEP)
    for got, right in zip(held, wanted, strict=True):
        assert np.array_equal(got, right), right.dtype


def reports(second: str) -> list[Any]:
    k = combined("add", (f32,), second=second)
    x, tiles = operands("add", f32, 0)
    arguments = [x, tiles, *([x] if second == "load" else [])]
    (result,) = launch(k, *arguments, grid=2, schedules=LOCKSTEP, raise_on_report=False)
    return list(result.reports)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("reduce", []),
        ("load", ["ld.global.f32 %f1, [%rd6+80]: pending: global address A (X_f32, held_f32)"]),
        ("store", ["COPY [%rd1, {%r16, -2}], [%r2]: pending: global address A (X_f32)"]),
    ],
)
def test_reductions_of_two_ctas_race_with_loads_and_stores_alone(second: str, said: list[str]) -> None:
    copy = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    reduction = copy.replace("cp.async", "cp.reduce.async").replace("cta.", "cta.add.")
    ends = (
        f" may still be written by the copy {reduction} [%rd1, {{%r16, -2}}], [%r2]; its thread has not "
        "waited for its group"
    )
    result = [re.sub(r"; \(.*?\)", "", r.message.replace(f"{r.address:#x}", "A")) for r in reports(second)]
    result = [m.replace(" thread (0, 0, 0) of CTA (1, 0, 0):", "") for m in result]
    assert result == [f"kernel combined: {one.replace('COPY', copy)}{ends}" for one in said]


@pytest.mark.parametrize(
    ("op", "dtype", "said"),
    [
        ("add", u8, "tma.reduce: X: add combines elements of u32, s32, u64, f32, f64, f16, bf16, got u8"),
        ("max", f32, "tma.reduce: X: max combines elements of u32, s32, u64, s64, f16, bf16, got f32"),
        ("inc", s32, "tma.reduce: X: inc combines elements of u32, got s32"),
        ("xor", f16, "tma.reduce: X: xor combines elements of u32, s32, u64, s64, got f16"),
        ("sub", u32, f"{OP_IS}, got 'sub'"),
        ("addd", u32, f"{OP_IS}, got 'addd'; did you mean 'add'?"),
    ],
)
def test_an_operation_that_elements_do_not_have_is_refused(op: Any, dtype: Any, said: str) -> None:
    k = KernelBuilder("refused", target="sm_90", threads=32)
    X, tile = k.tma.tensor_map("X", dtype), k.tma.tile("tile", (8, 32), dtype)
    with refused((ConfigError, TypeMismatchError), said):
        k.tma.reduce(tile, X[0, 0], op)


def test_the_interpreter_stops_where_the_map_has_other_elements() -> None:
    k = combined("xor", (u32,))
    x, tiles = np.zeros((5, 40), np.float32), np.zeros((2, 4, 32), np.uint32)
    arguments = px.TensorMap(x, box=(32, 4), swizzle="128B")
    module = k.build()
    with pytest.raises(TrapError) as trapped:
        interpreter.run(
            module,
            grid=1,
            block=64,
            args=[arguments, tiles],
            dynamic_smem=module.kernels[0].dynamic_shared_bytes,
        )
    assert re.sub(r"^.*\): ", "", str(trapped.value)) == (
        "xor combines elements of u32, s32, u64, s64, got f32"
    )
