"""The rows of whole matrices: mma, wmma, ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from error_texts import refused
from isa import cases, cases_matrix
from isa import tensor_core_model as model
from isa.cases_matrix import BITS, SPLIT, Sum, value_of

from ptxgen.errors import TrapError
from ptxgen.isa import fragments, table
from ptxgen.isa.spec import Inst, Op
from ptxgen.types import ScalarType

ROWS = [row for rows in table.rows().values() for row in rows]
WARPS = 2
LANES = 32 * WARPS
MEMORY_BYTES = 1 << 16


def rows_in(meanings: Iterable[str]) -> list[Any]:
    named = set(meanings)
    return [pytest.param(r, id=f"{r.name} {r.syntax}") for r in ROWS if r.syntax in named]


class Machine:
    """Warps of a target with one memory; the second warp may be idle."""

    sm = 90

    def __init__(self, *, idle: bool = False) -> None:
        self.running = np.ones(LANES, dtype=bool)
        if idle:
            self.running[32:] = False
        self.memory = np.zeros(MEMORY_BYTES, np.uint8)
        self.synchronised: list[Any] = []
        self.spaces: set[str] = set()

    def active(self) -> np.ndarray:
        return self.running

    def warp_sync(self, membermask: Any) -> None:
        self.synchronised.append(membermask)

    def trap(self, reason: str) -> None:
        raise TrapError(reason)

    def bytes_at(self, space: str, address: np.ndarray, nbytes: int) -> np.ndarray:
        assert address.dtype == np.uint64
        assert (address[self.running] % nbytes == 0).all()
        self.spaces.add(space)
        places = address[self.running].astype(int)[:, None] + np.arange(nbytes)
        assert (places < MEMORY_BYTES).all()
        return places

    def load(self, space: str, address: np.ndarray, type: ScalarType, count: int) -> tuple[np.ndarray, ...]:
        raw = np.zeros((LANES, type.nbytes * count), np.uint8)
        raw[self.running] = self.memory[self.bytes_at(space, address, type.nbytes * count)]
        return tuple(np.ascontiguousarray(raw.view(type.dtype).T))

    def store(
        self, space: str, address: np.ndarray, type: ScalarType, values: tuple[np.ndarray, ...]
    ) -> None:
        assert all(v.dtype == type.dtype for v in values)
        raw = np.ascontiguousarray(np.stack(values, axis=1)).view(np.uint8)
        places = self.bytes_at(space, address, type.nbytes * len(values))
        assert len(np.unique(places)) == places.size  # no two lanes write one byte
        self.memory[places] = raw[self.running]


def run(op: Op, machine: Machine, **operands: Any) -> tuple[np.ndarray, ...]:
    arguments = {"machine": machine, **operands, **op.modifiers}
    result = op.row.semantics(**{n: arguments[n] for n in op.row.parameters if n in arguments})
    assert [int(m) for m in machine.synchronised] == [0xFFFFFFFF]
    machine.synchronised.clear()
    wanted = op.dests[0] if op.dests else None
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == ((wanted.count or 1) if wanted else 0)
    assert all(r.dtype == wanted.type.dtype and r.shape == (LANES,) for r in results)  # type: ignore[union-attr]
    return results


def words_of(op: Op) -> list[str]:
    return op.opcode.split(".")


def seeded(text: str) -> random.Random:
    return random.Random(zlib.crc32(text.encode()))


# ---------------------------------------- numbers


def bits_for(type: str, rng: random.Random, *, small: bool) -> int:
    """A finite number of moderate size; `small`: an integer whose sums and products are exact."""
    if type not in SPLIT:
        if type != "s32":
            return rng.getrandbits(BITS[type])
        edges = (0x7FFFFFFF, 0x80000000, 0x7FFFF000)
        return rng.choice(edges) if rng.random() < 0.5 else rng.getrandbits(32)
    exponent_bits, stored = SPLIT[type]
    bias = (1 << exponent_bits - 1) - 1
    sign = rng.getrandbits(1) << exponent_bits + stored
    if small:
        whole = rng.choice((0, 1, 2, 3))
        if whole == 0:
            return sign
        fraction = 1 << stored - 1 if whole == 3 else 0
        return sign | bias + (whole > 1) << stored | fraction
    exponent = rng.randint(bias - min(4, bias), bias + 3)
    return sign | exponent << stored | rng.getrandbits(stored)


def packed(values: list[int], bits: int, register_bits: int) -> list[int]:
    per = register_bits // bits
    return [
        sum(v << bits * n for n, v in enumerate(values[at : at + per])) for at in range(0, len(values), per)
    ]


def registers_of(type: str, count: int, rng: random.Random, *, small: bool) -> list[int]:
    width = max(BITS[type], 32)
    values = [bits_for(type, rng, small=small) for _ in range(count * width // BITS[type])]
    return packed(values, BITS[type], width)


def lanes_from(type: ScalarType, bits: list[int]) -> np.ndarray:
    return np.array(bits, dtype=f"u{type.bits // 8}").view(type.dtype)


def bits_of_lane(registers: Iterable[np.ndarray], lane: int) -> list[int]:
    return [int(r.view(f"u{r.dtype.itemsize}")[lane]) for r in registers]


def agrees(types: dict[str, str], got: Any, want: Sum, rnd: str, *, saturates: bool, family: str) -> bool:
    """Whether a value is what the sum gives on the target of `Machine`."""
    type = types["d"]
    if type == "s32":
        total = int(want.exact)
        if saturates:
            return bool(got == min(max(total, -(1 << 31)), (1 << 31) - 1))
        return bool((got - total) % (1 << 32) == 0)
    if type == "f64":
        total_so_far: Any = Fraction(0)
        for x, y in want.terms:
            total_so_far = Fraction(cases.rounded(total_so_far + x * y, "f64", rnd))
        return bool(got == total_so_far)
    (_, c), *pairs = [(float(x), float(y)) for x, y in want.terms]
    sums = "f16" if types["c"] == type == "f16" else "f32"
    total = model.dot(pairs, (types["a"], types["b"]), c, sums, Machine.sm, family)
    return bool(got == (model.nearest_f16(total) if type == "f16" else total))


# ---------------------------------------- mma


def operand_types(op: Op) -> dict[str, str]:
    """The types of the elements of D, A, B and C."""
    words = words_of(op)
    if op.row.syntax in cases_matrix.MMA:
        return dict(zip("dabc", cases_matrix.mma_types(words), strict=True))
    types = [w for w in words if w in BITS]
    d, a, b, c = types if len(types) == 4 else (types[0], "f16", "f16", types[1])
    return {"d": d, "a": a, "b": b, "c": c}


@pytest.mark.slow
@pytest.mark.sample(5, gate=10)
@pytest.mark.parametrize("small", [True, False], ids=["integers", "any"])
@pytest.mark.parametrize("row", rows_in(cases_matrix.MMA))
def test_mma_is_the_product_of_the_matrices_that_the_manual_s_formulas_give(row: Inst, small: bool) -> None:
    for op in row.all_ops():
        rng, types = seeded(op.opcode), operand_types(op)
        lanes = {
            o.name: [registers_of(types[o.name], o.count, rng, small=small) for _ in range(LANES)]
            for o in op.sources
        }
        operands = {
            o.name: tuple(
                lanes_from(o.type, [registers[r] for registers in lanes[o.name]])  # type: ignore[arg-type]
                for r in range(o.count)
            )
            for o in op.sources
        }
        result = run(op, Machine(), **operands)
        for first in range(0, LANES, 32):
            warp = {name: regs[first : first + 32] for name, regs in lanes.items()}
            wants = cases_matrix.WARP[row.syntax](words_of(op), warp)
            check_accumulators(op, types, result, first, wants)


def check_accumulators(
    op: Op, types: dict[str, str], result: tuple[np.ndarray, ...], first: int, wants: list[list[Sum]]
) -> None:
    for lane, sums in enumerate(wants):
        values = cases_matrix.elements_of(types["d"], bits_of_lane(result, first + lane))
        for got, want in zip(values, sums, strict=True):
            assert agrees(
                types,
                got,
                want,
                str(op.modifiers.get("rnd") or "rn"),
                saturates=bool(op.modifiers.get("satfinite")),
                family=words_of(op)[0],
            ), (op, lane, got, want.exact)


def test_a_one_in_a_and_in_b_makes_a_one_where_its_row_and_its_column_meet() -> None:
    op = table.recognise("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")[0]
    one = 0x3F80
    zero = np.zeros(LANES, np.uint32)
    for row, k, column in [(0, 0, 0), (3, 5, 2), (9, 8, 7), (15, 15, 1), (8, 7, 6)]:
        a, b = np.zeros((4, LANES), np.uint32), np.zeros((2, LANES), np.uint32)
        a[2 * (k // 8) + row // 8, row % 8 * 4 + k % 8 // 2] = one << 16 * (k % 2)
        b[k // 8, column * 4 + k % 8 // 2] = one << 16 * (k % 2)
        d = np.array(run(op, Machine(), a=tuple(a), b=tuple(b), c=(zero.view(np.float32),) * 4))
        location = np.argwhere(d != 0).tolist()
        assert location == [[2 * (row // 8) + column % 2, row % 8 * 4 + column // 2]]
        assert d.sum() == 1


def test_infinities_and_nan_reach_exactly_their_rows_and_columns() -> None:
    op = table.recognise("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")[0]
    a, b = np.ones((4, LANES), np.float32), np.ones((2, LANES), np.float32)
    a[0, 4] = np.inf  # row 1
    a[1, 0] = np.nan  # row 8
    b[0, 8] = 0  # k = 0 of column 2, met by the infinity: NaN
    c = (np.zeros(LANES, np.float32),) * 4
    d = run(op, Machine(), a=tuple(a.view(np.uint32)), b=tuple(b.view(np.uint32)), c=c)
    row_one = [float(d[i][4 + n]) for n in range(4) for i in range(2)]
    assert row_one == [math.inf] * 2 + [pytest.approx(math.nan, nan_ok=True)] + [math.inf] * 5
    assert np.isnan([d[i][n] for n in range(4) for i in (2, 3)]).all()
    assert sum(int(np.isnan(x[:32]).sum() + np.isinf(x[:32]).sum()) for x in d) == 16


def test_the_low_bits_of_a_tf32_register_do_not_matter() -> None:
    op = table.recognise("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")[0]
    one = np.full(LANES, 0x3F800000, np.uint32)
    c = (np.zeros(LANES, np.float32),) * 4
    d = run(op, Machine(), a=(one | 0x1FFF, one | 0x1000), b=(one | 0xFFF,), c=c)
    assert np.array(d).tolist() == np.full((4, LANES), 4.0).tolist()


def test_a_literal_among_the_registers_is_the_same_in_all_lanes() -> None:
    op = table.recognise("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32")[0]
    ones = np.full(LANES, 0x3F803F80, np.uint32)
    c = (np.float32(1), np.zeros(LANES, np.float32), np.float32(-1), np.float32(0))
    d = run(op, Machine(), a=(np.uint32(0x3F803F80), ones), b=(ones,), c=c)
    assert [set(x.tolist()) for x in d] == [{9.0}, {8.0}, {7.0}, {8.0}]


def test_a_sum_beyond_f16_is_infinity_and_is_rounded_only_once() -> None:
    op = table.recognise("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")[0]
    half = np.array([2048, 1], np.float16).view(np.uint16)
    a = np.full(LANES, int(half[1]), np.uint32)  # ones at even k, zeros at odd
    b = np.full(LANES, int(half[1]), np.uint32)
    c = np.full(LANES, int(half[0]), np.uint32)
    # 2048 + 8 * 1: adding the ones to f16 one at a time would stay at 2048
    d = run(op, Machine(), a=(a,) * 4, b=(b,) * 2, c=(c, c))
    assert {float(v) for v in d[0].view(np.float16)[::2]} == {2056.0}
    large = np.full(LANES, int(np.array([65504], np.float16).view(np.uint16)[0]), np.uint32)
    d = run(op, Machine(), a=(large,) * 4, b=(b,) * 2, c=(c, c))
    assert np.isposinf(d[0].view(np.float16)[::2].astype(np.float32)).all()


# ---------------------------------------- wmma


def matrix_sizes(op: Op) -> dict[str, tuple[int, int]]:
    shape = next(w for w in words_of(op) if w[0] == "m" and w[1:2].isdigit())
    m, n, k = fragments.sizes(shape)
    return {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}


def store_matrix(machine: Machine, bits: np.ndarray, type: str, layout: str, stride: int, at: int) -> None:
    """Put a matrix, given as bits by row and column, into memory."""
    lines = bits if layout == "row" else bits.T
    width = BITS[type]
    for n, line in enumerate(lines):
        whole = sum(int(v) << width * i for i, v in enumerate(line))
        start, size = at + n * stride * width // 8, len(line) * width // 8
        machine.memory[start : start + size] = list(whole.to_bytes(size, "little"))


def read_matrix(
    machine: Machine, size: tuple[int, int], type: str, layout: str, stride: int, at: int
) -> list[list[int]]:
    nbytes = BITS[type] // 8
    rows, columns = size

    def bits(row: int, column: int) -> int:
        line, inside = (row, column) if layout == "row" else (column, row)
        start = at + (line * stride + inside) * nbytes
        return int.from_bytes(machine.memory[start : start + nbytes].tobytes(), "little")

    return [[bits(r, c) for c in range(columns)] for r in range(rows)]


def mover(kind: str, operand: str, layout: str, shape: str, space: str, type: str) -> Op:
    opcode = ["wmma", kind, operand, "sync", "aligned", layout, shape, space, type]
    result = table.recognise(".".join(filter(None, opcode)))
    assert len(result) == 1, opcode
    return result[0]


LAYOUTS = {"a": "alayout", "b": "blayout"}
PLACES = {"a": 0, "b": 1 << 14, "c": 2 << 14, "d": 3 << 14}
# Stride beyond a line (elements, None: the operand is left out) and state space.
STORAGE = [(None, ""), (0, "global"), (64, "shared"), (32, "shared::cta")]


def mma_ops() -> list[Any]:
    ops = [op for r in ROWS if r.syntax in cases_matrix.WMMA for op in r.all_ops()]
    return [pytest.param(op, n, id=op.opcode) for n, op in enumerate(ops)]


@pytest.mark.sample(16, gate=50)
@pytest.mark.parametrize(("op", "number"), mma_ops())
def test_wmma_multiplies_matrices_in_memory(op: Op, number: int) -> None:
    rng, types, sizes = seeded(op.opcode), operand_types(op), matrix_sizes(op)
    extra, space = STORAGE[number % 4]
    small = number % 3 == 0
    shape = next(w for w in words_of(op) if w[0] == "m" and w[1:2].isdigit())
    machine = Machine(idle=number % 5 == 0)
    matrices: dict[str, Any] = {}
    fragments_of: dict[str, tuple[np.ndarray, ...]] = {}
    for name in "abc":
        layout = str(op.modifiers.get(LAYOUTS.get(name, ""), "col" if name == "b" else "row"))
        if name == "c":
            layout = rng.choice(("row", "col"))
        size = sizes[name]
        stride = (size[1] if layout == "row" else size[0]) + (extra or 0)
        bits = [[bits_for(types[name], rng, small=small) for _ in range(size[1])] for _ in range(size[0])]
        store_matrix(machine, np.array(bits, dtype=object), types[name], layout, stride, PLACES[name])
        load = mover("load", name, layout, shape, space, types[name])
        stride_of_lanes = np.full(LANES, stride, np.uint32)
        arguments = None if extra is None else rng.choice((np.uint32(stride), stride_of_lanes))
        address = np.full(LANES, PLACES[name], np.uint64)
        fragments_of[name] = run(load, machine, addr=address, stride=arguments)
        matrices[name] = {
            (r, c): value_of(types[name], v) for r, row in enumerate(bits) for c, v in enumerate(row)
        }
    d = run(op, machine, **fragments_of)
    layout = rng.choice(("row", "col"))
    stride = (sizes["d"][1] if layout == "row" else sizes["d"][0]) + (extra or 0)
    store = mover("store", "d", layout, shape, space, types["d"])
    if np.all(machine.running):
        machine.running[32:] = False  # both warps would write the same
    arguments = None if extra is None else np.uint32(stride)
    run(store, machine, addr=np.full(LANES, PLACES["d"], np.uint64), a=d, stride=arguments)
    assert machine.spaces == {space.removesuffix("::cta") or "generic"}
    got = read_matrix(machine, sizes["d"], types["d"], layout, stride, PLACES["d"])
    for (r, c), want in cases_matrix.WARP[op.row.syntax](words_of(op), matrices).items():
        assert agrees(
            types,
            value_of(types["d"], got[r][c]),
            want,
            str(op.modifiers.get("rnd") or "rn"),
            saturates=bool(op.modifiers.get("satfinite")),
            family=words_of(op)[0],
        ), (op, r, c)


@pytest.mark.parametrize("row", rows_in(s for s in cases_matrix.WMMA_MOVES if ".c." in s))
def test_what_wmma_loads_as_c_it_stores_as_d_in_either_layout(row: Inst) -> None:
    for op in row.all_ops():
        rng, size = seeded(op.opcode), matrix_sizes(op)["c"]
        words = words_of(op)
        type, layout, shape = words[-1], words[5], words[6]
        machine = Machine(idle=True)
        bits = [[rng.getrandbits(BITS[type]) for _ in range(size[1])] for _ in range(size[0])]
        stride = size[1] if layout == "row" else size[0]
        store_matrix(machine, np.array(bits, dtype=object), type, layout, stride, PLACES["c"])
        space = "" if op.modifiers["space"] is None else str(op.modifiers["space"])
        fragment = run(op, machine, addr=np.full(LANES, PLACES["c"], np.uint64))
        kept = cases_matrix.WARP[row.syntax](words, bits)
        for to in ("row", "col"):
            store = mover("store", "d", to, shape, space, type)
            run(store, machine, addr=np.full(LANES, PLACES["d"], np.uint64), a=fragment)
            width = size[1] if to == "row" else size[0]
            assert read_matrix(machine, size, type, to, width, PLACES["d"]) == kept


def test_the_registers_of_an_f16_fragment_that_are_not_needed_repeat_the_others() -> None:
    machine = Machine()
    machine.memory[:] = np.arange(MEMORY_BYTES) % 251
    address = np.zeros(LANES, np.uint64)
    needs = {("m16n16k16", "a"): 4, ("m8n32k16", "a"): 2, ("m32n8k16", "b"): 2}
    for (shape, operand), needed in needs.items():
        got = run(mover("load", operand, "row", shape, "", "f16"), machine, addr=address)
        for n, register in enumerate(got):
            assert (register == got[n % needed]).all()


# ---------------------------------------- moves


def test_every_row_of_matrices_is_tested_here() -> None:
    heads = ("mma", "wmma", "ldmatrix", "stmatrix", "movmatrix")
    ours = {r.syntax for r in ROWS if r.pieces[0].name in heads and not r.unmodelled}
    assert ours - cases.ELSEWHERE == set(cases_matrix.WARP)


def scattered_rows(rng: random.Random) -> np.ndarray:
    """A 16-byte aligned address for each lane, all different."""
    return np.array(rng.sample(range(0, MEMORY_BYTES, 16), LANES), dtype=np.uint64)


def moves(start: str) -> list[Any]:
    return rows_in(s for s in cases_matrix.MOVES if s.startswith(start))


@pytest.mark.parametrize("row", moves("ldmatrix"))
def test_ldmatrix_deals_out_the_rows_that_lanes_name(row: Inst) -> None:
    for op in row.all_ops():
        rng, machine = seeded(op.opcode), Machine(idle=op.modifiers["num"] == "x2")
        machine.memory[:] = list(rng.randbytes(MEMORY_BYTES))
        address = scattered_rows(rng)
        count = int(str(op.modifiers["num"])[1:])
        arguments = address.copy()
        arguments.reshape(-1, 32)[:, 8 * count :] = MEMORY_BYTES + 1  # nobody may look there
        got = run(op, machine, addr=arguments)
        for first in np.flatnonzero(machine.running)[::32]:
            rows = [machine.memory[int(a) :][:16].tobytes() for a in address[first : first + 32]]
            want = cases_matrix.WARP[row.syntax](words_of(op), rows)
            assert [bits_of_lane(got, first + lane) for lane in range(32)] == want, op
        assert machine.spaces == {"shared" if op.modifiers["space"] else "generic"}


@pytest.mark.parametrize("row", moves("stmatrix"))
def test_stmatrix_writes_the_rows_that_lanes_name_and_nothing_else(row: Inst) -> None:
    for op in row.all_ops():
        rng, machine = seeded(op.opcode), Machine(idle=op.modifiers["num"] == "x2")
        address = scattered_rows(rng)
        count = int(str(op.modifiers["num"])[1:])
        lanes = [[rng.getrandbits(32) for _ in range(count)] for _ in range(LANES)]
        arguments = address.copy()
        arguments.reshape(-1, 32)[:, 8 * count :] = MEMORY_BYTES + 1
        a = tuple(np.array(column, np.uint32) for column in zip(*lanes, strict=True))
        run(op, machine, addr=arguments, a=a)
        want = np.zeros(MEMORY_BYTES, np.uint8)
        for first in np.flatnonzero(machine.running)[::32]:
            rows = cases_matrix.WARP[row.syntax](words_of(op), lanes[first : first + 32])
            for at, line in zip(address[first:], rows, strict=False):
                want[int(at) : int(at) + 16] = list(line)
        assert (machine.memory == want).all(), op
        assert machine.spaces == {"shared" if op.modifiers["space"] else "generic"}


def test_stmatrix_stops_at_a_row_that_is_not_aligned() -> None:
    op = table.recognise("stmatrix.sync.aligned.m8n8.x1.shared.b16")[0]
    address = np.arange(LANES, dtype=np.uint64) * 16
    address[3] += 4
    with refused(TrapError, "stmatrix: the address of a row is not a multiple of 16"):
        run(op, Machine(), addr=address, a=(np.zeros(LANES, np.uint32),))


def test_movmatrix_transposes() -> None:
    op = table.recognise("movmatrix.sync.aligned.m8n8.trans.b16")[0]
    rng = seeded(op.opcode)
    lanes = [[rng.getrandbits(32)] for _ in range(LANES)]
    (got,) = run(op, Machine(), a=np.array([r for (r,) in lanes], np.uint32))
    for first in range(0, LANES, 32):
        want = cases_matrix.WARP[op.row.syntax](words_of(op), lanes[first : first + 32])
        assert [[int(x)] for x in got[first : first + 32]] == want


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_and_mma_multiply_tiles_of_shared_memory(trans: bool) -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (16, 16)).astype(np.float16)
    b = rng.integers(-4, 5, (16, 8)).astype(np.float16)
    machine = Machine(idle=True)
    machine.memory[:512] = a.view(np.uint8).reshape(-1)
    lines = b if trans else np.ascontiguousarray(b.T)  # rows of B, or its columns
    machine.memory[512:768] = lines.view(np.uint8).reshape(-1)
    lane = np.arange(LANES, dtype=np.uint64) % 32
    a_rows = lane % 16 * 32 + lane // 16 * 16
    b_rows = 512 + (lane % 16 * 16 if trans else lane % 8 * 32 + lane // 8 % 2 * 16)
    suffix = ".trans" if trans else ""
    load_a = table.recognise("ldmatrix.sync.aligned.m8n8.x4.shared.b16")[0]
    load_b = table.recognise(f"ldmatrix.sync.aligned.m8n8.x2{suffix}.shared.b16")[0]
    product = table.recognise("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")[0]
    d = run(
        product,
        machine,
        a=run(load_a, machine, addr=a_rows),
        b=run(load_b, machine, addr=b_rows),
        c=(np.zeros(LANES, np.float32),) * 4,
    )
    got = np.zeros((16, 8), np.float32)
    for n in range(32):
        for i in range(4):
            got[n // 4 + 8 * (i // 2), n % 4 * 2 + i % 2] = d[i][n]
    assert (got == a.astype(np.float32) @ b.astype(np.float32)).all()
