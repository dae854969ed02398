"""mbarrier and wgmma rows on a small machine, against models in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from error_texts import refused
from isa import cases_hopper
from isa.test_rows import LANES, ROWS, call, ops_of

from ptxgen.isa import mbarrier_word, table
from ptxgen.isa.bulk import REDUCTIONS
from ptxgen.isa.spec import Inst, Op
from ptxgen.types import TYPES

OURS = {row.syntax: row for row in ROWS if row.syntax in cases_hopper.ELSEWHERE}


def test_this_file_tests_every_row_left_to_it() -> None:
    assert set(OURS) == cases_hopper.ELSEWHERE


# ---------------------------------------- mbarriers


class TrappedError(Exception):
    pass


class Barrier:
    """A machine with one mbarrier, at shared address 64, and one thread."""

    def __init__(self) -> None:
        self.word = np.array([0x7FC0DEAD7FC0DEAD], np.uint64)
        self.asked: list[Any] = []

    def at(self, space: str) -> np.ndarray:
        return np.array([64 if space else 64 + (1 << 32)], np.uint64)

    def convert_address(self, space: str, address: np.ndarray, *, to_space: bool) -> np.ndarray:
        assert (space, to_space) == ("shared", True)
        return address - np.uint64(1 << 32)

    def atomic(
        self, space: str, address: Any, type: Any, update: Any, operands: Any, scan: object = None
    ) -> np.ndarray:
        del scan  # one lane arrives
        assert type is TYPES["b64"]
        assert address[0] == (64 if space == "shared" else 64 + (1 << 32))
        old = self.word.copy()
        self.word[...] = update(old, *operands)
        return old

    def store(self, space: str, address: Any, type: Any, values: Any) -> None:
        self.atomic(space, address, type, lambda _: values[0], ())

    def wait_until(self, address: Any, type: Any, ready: Callable[..., Any], what: str) -> None:
        assert (address[0], type) == (64, TYPES["b64"])
        self.asked.append((bool(ready(self.word)[0]), what))

    def ask(self, address: Any) -> None:
        self.asked.append(int(address[0]))

    def copy_async_arrive(self, address: Any) -> None:
        self.asked.append(("copies", int(address[0])))

    def active(self) -> np.ndarray:
        return np.ones(1, bool)

    def trap(self, reason: str) -> None:
        raise TrappedError(reason)

    def do(self, opcode: str, **operands: int) -> Any:
        """Execute an instruction by its opcode; the address is added."""
        words = opcode.split(".")
        space = next((w for w in words if w.startswith("shared")), "")
        for op in table.recognise(opcode):
            if {o.name for o in op.sources} - {"addr", "hint"} == set(operands):
                types = {o.name: o.type for o in op.sources if o.type}
                arguments = {k: np.array([v], types[k].dtype) for k, v in operands.items()}
                result = call(op, self, {"addr": self.at(space), **arguments})
                if op.row.resume is not None:
                    assert result == ()
                    result = op.row.resume(machine=self)
                return result
        raise AssertionError(opcode)


class Model:
    """The manual's words: a phase, two counts and a count of bytes."""

    def __init__(self, count: int) -> None:
        self.phase, self.expected, self.pending, self.bytes = 0, count, count, 0

    def arrive(self, count: int = 1, drop: bool = False, nbytes: int = 0) -> None:
        self.bytes += nbytes
        self.expected -= count * drop
        self.pending -= count
        self.settle()

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.expected


def order(rng: random.Random, sems: str) -> str:
    return rng.choice(["", f".{rng.choice(sems.split())}.{rng.choice(['cta', 'cluster'])}"])


def step(rng: random.Random, barrier: Barrier, model: Model) -> tuple[int, np.ndarray] | None:
    """One random legal operation on both; the phase and the state, if it gives one."""
    if model.pending == 0 or rng.random() < 0.4:
        move_bytes(rng, barrier, model)
        return None
    phase, most = model.phase, model.pending
    n, nbytes = rng.randint(1, most), rng.choice((0, 16, 4096))
    # The last arrival must not be dropped for good, nor those that the phase waits for complete it.
    drop = rng.random() < 0.3 and n < model.expected
    incomplete = rng.random() < 0.3 and n < most
    head = "mbarrier.arrive_drop" if drop else "mbarrier.arrive"
    space = rng.choice(["", ".shared", ".shared::cta"])
    release = order(rng, "release relaxed") + space + ".b64"
    if incomplete:
        state = barrier.do(f"{head}.noComplete{space}.b64", count=n)
        model.arrive(n, drop)
    elif rng.random() < 0.4:
        state = barrier.do(f"{head}.expect_tx{release}", tx=nbytes)
        model.arrive(1, drop, nbytes)
    elif n == 1:
        state = barrier.do(f"{head}{release}")
        model.arrive(1, drop)
    else:
        state = barrier.do(f"{head}{release}", count=n)
        model.arrive(n, drop)
    count = call(table.recognise("mbarrier.pending_count.b64")[0], None, {"a": state})
    assert count[0] == most
    return phase, state


def move_bytes(rng: random.Random, barrier: Barrier, model: Model) -> None:
    relaxed = order(rng, "relaxed") + rng.choice(["", ".shared", ".shared::cta"]) + ".b64"
    if model.bytes == 0 or rng.random() < 0.3:
        nbytes = rng.choice((0, 16, 4096))
        barrier.do(f"mbarrier.expect_tx{relaxed}", tx=nbytes)
        model.bytes += nbytes
    else:
        nbytes = rng.choice((model.bytes, model.bytes // 2))
        barrier.do(f"mbarrier.complete_tx{relaxed}", tx=nbytes)
        model.bytes -= nbytes
        model.settle()


def check_tests(rng: random.Random, barrier: Barrier, model: Model, taken: Any) -> None:
    acquire = order(rng, "acquire relaxed")
    for parity in (0, 1):
        over = barrier.do(f"mbarrier.test_wait.parity{acquire}.shared.b64", a=parity)
        assert over.tolist() == [model.phase % 2 != parity]
        assert barrier.asked.pop() == 64
        assert barrier.do(f"mbarrier.try_wait.parity{acquire}.b64", a=parity).tolist() == [True]
        what = f"the end of a phase of parity {parity}"
        assert barrier.asked.pop() == (model.phase % 2 != parity, what)
    if taken is None or model.phase > taken[0] + 1:
        return  # the state of an older phase may not be asked for
    phase, state = taken
    over = barrier.do(f"mbarrier.test_wait{acquire}.b64", a=int(state[0]))
    assert over.tolist() == [model.phase > phase]
    assert barrier.do(f"mbarrier.try_wait{acquire}.shared::cta.b64", a=int(state[0])).tolist() == [True]
    assert barrier.asked.pop()[0] == (model.phase > phase)


@pytest.mark.parametrize("seed", range(20))
def test_an_mbarrier_counts_as_the_manual_says(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((1, 2, 5, 128))
    barrier, model, taken = Barrier(), Model(count), None
    barrier.do("mbarrier.init.shared::cta.b64", count=count)
    for _ in range(60):
        taken = step(rng, barrier, model) or taken
        check_tests(rng, barrier, model, taken)
    assert model.phase > 0 or count == 128


def test_arrivals_that_expect_bytes_for_the_last_time_leave_the_next_phases() -> None:
    barrier, model = Barrier(), Model(2)
    barrier.do("mbarrier.init.b64", count=2)
    barrier.do("mbarrier.arrive_drop.expect_tx.release.cluster.b64", tx=32)
    model.arrive(drop=True, nbytes=32)
    barrier.do("mbarrier.arrive.shared::cluster.b64")
    model.arrive()
    barrier.do("mbarrier.complete_tx.shared::cluster.b64", tx=32)
    model.bytes -= 32
    model.settle()
    check_tests(random.Random(1), barrier, model, None)
    state = barrier.do("mbarrier.arrive.b64")
    assert (model.phase, model.pending, mbarrier_word.pending(int(state[0]))) == (1, 1, 1)


def test_an_arrival_of_copies_is_awaited_in_addition_unless_told_otherwise() -> None:
    barrier = Barrier()
    barrier.do("mbarrier.init.b64", count=3)
    barrier.do("cp.async.mbarrier.arrive.b64")
    assert mbarrier_word.pending(int(barrier.word[0])) == 4
    barrier.do("cp.async.mbarrier.arrive.noinc.shared.b64")
    assert mbarrier_word.pending(int(barrier.word[0])) == 4
    assert barrier.asked == [("copies", 64)] * 2


@pytest.mark.parametrize("count", [1, 3])
def test_the_last_arrival_may_be_dropped_and_then_nobody_is_awaited(count: int) -> None:
    barrier = Barrier()
    barrier.do("mbarrier.init.b64", count=count)
    for _ in range(count - 1):
        barrier.do("mbarrier.arrive_drop.b64")
    phase = int(barrier.word[0]) >> mbarrier_word.PHASE_BIT
    barrier.do("mbarrier.arrive_drop.b64")
    word = int(barrier.word[0])
    assert (phase, word >> mbarrier_word.PHASE_BIT) == (0, 1)
    assert mbarrier_word.awaited(word) == (0, 0)
    with refused(TrappedError, "1 arrival at an mbarrier whose phase waits for none more; its count is 0"):
        barrier.do("mbarrier.arrive.b64")
    with refused(TrappedError, "1 arrival dropped from an mbarrier whose count is 0"):
        barrier.do("mbarrier.arrive_drop.b64")


def test_all_arrivals_of_a_phase_may_be_dropped_at_once() -> None:
    barrier = Barrier()
    barrier.do("mbarrier.init.b64", count=4)
    barrier.do("mbarrier.arrive_drop.b64", count=4)
    assert int(barrier.word[0]) >> mbarrier_word.PHASE_BIT == 1
    assert mbarrier_word.awaited(int(barrier.word[0])) == (0, 0)


MISTAKES = [
    (None, "arrive.b64", {}, "there is no mbarrier: mbarrier.init must come first"),
    (None, "test_wait.b64", {"a": 0}, "there is no mbarrier: mbarrier.init must come first"),
    (None, "init.b64", {"count": 0}, "the count of an mbarrier must be from 1 to 1048575, got 0"),
    (1, "arrive.b64", {"count": 2}, "2 arrivals at an mbarrier whose phase waits for 1 more; its count is 1"),
    (1, "arrive.b64", {"count": 0}, "a count of arrivals must be from 1 to 1048575, got 0"),
    (
        1,
        "arrive.noComplete.b64",
        {"count": 1},
        "1 arrival without completing the phase (.noComplete) at an mbarrier whose phase waits for 1 more",
    ),
    (1, "arrive_drop.b64", {"count": 2}, "2 arrivals dropped from an mbarrier whose count is 1"),
    (
        1,
        "expect_tx.b64",
        {"tx": 1 << 20},
        "the tx-count of an mbarrier must stay from -1048575 to 1048575, got 1048576",
    ),
]


@pytest.mark.parametrize(("count", "opcode", "operands", "message"), MISTAKES)
def test_misuse_of_an_mbarrier_is_reported(
    count: int | None, opcode: str, operands: dict[str, int], message: str
) -> None:
    barrier = Barrier()
    if count:
        barrier.do("mbarrier.init.b64", count=count)
    with refused(TrappedError, message):
        barrier.do(f"mbarrier.{opcode}", **operands)


def test_more_arrivals_than_are_awaited_and_use_after_the_end_are_reported() -> None:
    barrier = Barrier()
    barrier.do("mbarrier.init.b64", count=1)
    barrier.do("mbarrier.expect_tx.b64", tx=16)
    barrier.do("mbarrier.arrive.b64")
    with refused(TrappedError, "1 arrival at an mbarrier whose phase waits for none more; its count is 1"):
        barrier.do("mbarrier.arrive.b64")
    barrier.do("mbarrier.inval.b64")
    assert barrier.word[0] == 0x7FC0DEAD7FC0DEAD
    with refused(TrappedError, "there is no mbarrier: mbarrier.init must come first"):
        barrier.do("mbarrier.inval.b64")


def test_neither_zeros_nor_other_numbers_are_an_mbarrier() -> None:
    for word in (0, 1, (1 << 64) - 1):
        with pytest.raises(ValueError, match=r"^there is no mbarrier: mbarrier.init must come first$"):
            mbarrier_word.checked(word)


# ---------------------------------------- ranks


def test_the_rank_of_a_generic_address_is_that_of_the_shared_one() -> None:
    asked: list[Any] = []
    machine = SimpleNamespace(
        convert_address=lambda space, a, to_space: (space, a, to_space),
        shared_rank=lambda a: asked.append(a) or 3,
    )
    for opcode in ("getctarank.u64", "getctarank.shared::cluster.u32"):
        assert call(table.recognise(opcode)[0], machine, {"a": "address"}) == 3
    assert asked == [("shared", "address", True), "address"]


# ---------------------------------------- reductions

PAIRS = [(5, 7), (7, 5), (0, 3), (3, 3), (2**32 - 1, 1), (2**31, 2**31 - 1)]
MEANINGS: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "min": min,
    "max": max,
    "inc": lambda x, y: 0 if x >= y else x + 1,
    "dec": lambda x, y: y if x == 0 or x > y else x - 1,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}


@pytest.mark.parametrize("name", MEANINGS)
def test_reductions_of_copies_are_those_of_atomic_operations(name: str) -> None:
    old, new = (np.array(column, np.uint32) for column in zip(*PAIRS, strict=True))
    got = REDUCTIONS[name](old, new, TYPES["u32"])
    assert got.dtype == np.uint32
    assert got.tolist() == [MEANINGS[name](*pair) % 2**32 for pair in PAIRS]
    assert set(REDUCTIONS) == set(MEANINGS)


def test_the_smaller_of_a_number_and_nan_is_the_number() -> None:
    for type in (TYPES["f16"], TYPES["bf16"]):
        x, y = np.array([np.nan, 1, 2], type.dtype), np.array([3, np.nan, 1], type.dtype)
        assert REDUCTIONS["min"](x, y, type).tolist() == [3, 1, 1]
        assert REDUCTIONS["max"](x, y, type).tolist() == [3, 1, 2]


# ---------------------------------------- wgmma

WARPS = LANES // 32 * 4  # two warpgroups
DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


class Warpgroups:
    """A machine with shared memory and whole warps."""

    sm = 90

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.synchronised = 0

    def active(self) -> np.ndarray:
        return np.ones(WARPS * 32, bool)

    def warp_id(self) -> np.ndarray:
        return np.arange(WARPS * 32, dtype=np.uint32) // 32

    def multiply(self, read: Any, multiplied: Any, d: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        arguments: tuple[np.ndarray, ...] = multiplied(read(), d)
        return arguments

    def warp_sync(self, membermask: Any) -> None:
        assert membermask == 0xFFFFFFFF
        self.synchronised += 1

    def load_by_warp(self, address: np.ndarray, rows: np.ndarray, type: Any) -> np.ndarray:
        assert rows.shape == (WARPS,)
        bytes_ = self.memory[address[rows][:, :, None] + np.arange(type.nbytes)]
        return np.ascontiguousarray(bytes_).view(type.dtype)[:, :, 0]


def put(memory: np.ndarray, at: int, matrix: np.ndarray) -> int:
    """Writes a K-major matrix of 32-byte rows as 8 x 16 byte blocks; its descriptor."""
    raw = np.ascontiguousarray(matrix).view(np.uint8)
    lbo, sbo = 16 * raw.shape[0], 128
    for r in range(raw.shape[0]):
        for byte in range(32):
            memory[at + r // 8 * sbo + byte // 16 * lbo + r % 8 * 16 + byte % 16] = raw[r, byte]
    return at >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32


def numbers(rng: np.random.Generator, shape: tuple[int, ...], type: str) -> np.ndarray:
    low = 0 if type == "u8" else -8
    return rng.integers(low, 9, shape).astype(DTYPES[type])


def fragments_of_a(matrix: np.ndarray) -> tuple[np.ndarray, ...]:
    """A's four registers: rows g and g + 8, and the second half of K after the first."""
    raw = np.ascontiguousarray(matrix).view(np.uint8).reshape(64 * WARPS // 4, 32)
    out = np.zeros((4, WARPS * 32), np.uint32)
    for thread in range(WARPS * 32):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for n in range(4):
            row, byte = 16 * warp + g + 8 * (n % 2), 16 * (n // 2) + 4 * t
            out[n, thread] = raw[row, byte : byte + 4].copy().view(np.uint32)[0]
    return tuple(out)


def fragments_of_d(matrix: np.ndarray) -> list[np.ndarray]:
    """D's elements in the order of a thread, as hopper.md has them; `[n / 2, threads]`."""
    n = matrix.shape[1]
    out = np.zeros((n // 2, WARPS * 32), matrix.dtype)
    for thread in range(WARPS * 32):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for i in range(n // 2):
            row = 16 * warp + g + 8 * (i >> 1 & 1)
            out[i, thread] = matrix[row, 8 * (i >> 2) + 2 * t + (i & 1)]
    return list(out)


def registers_of(elements: list[np.ndarray], accumulator: str) -> tuple[np.ndarray, ...]:
    if accumulator != "f16":
        return tuple(elements)
    halves = [x.view(np.uint16).astype(np.uint32) for x in elements]
    return tuple(low | high << 16 for low, high in zip(halves[::2], halves[1::2], strict=True))


def chosen(row: Inst) -> list[Op]:
    """A few widths of each combination of types."""
    widths = {"m64n8", "m64n24", "m64n256"}
    return [op for op in row.all_ops() if str(op.modifiers["shape"]).rpartition("k")[0] in widths]


@pytest.mark.sample(4, gate=10)
@pytest.mark.parametrize("syntax", sorted(cases_hopper.WGMMA))
def test_a_warpgroup_multiplies_as_plain_python_says(syntax: str) -> None:
    row = OURS[syntax]
    for number, op in enumerate(chosen(row)):
        check_product(op, np.random.default_rng(number), number)


def check_product(op: Op, rng: np.random.Generator, number: int) -> None:
    words = op.opcode.split(".")
    atype, btype, accumulator = words[-2], words[-1], words[-3]
    n, k = (int(x) for x in str(op.modifiers["shape"])[4:].split("k"))
    a = numbers(rng, (64 * WARPS // 4, k), atype)
    b = numbers(rng, (n, k), btype)
    memory = np.zeros(1 << 16, np.uint8)
    at_a = [put(memory, 1024 + 4096 * i, a[64 * i : 64 * i + 64]) for i in range(WARPS // 4)]
    at_b = put(memory, 1 << 15, b)
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[accumulator]
    d = rng.integers(-30, 30, (64 * WARPS // 4, n)).astype(dtype)
    keep, sign_a, sign_b = number % 3 > 0, (1, -1)[number % 2], (1, -1)[number // 2 % 2]
    operands: dict[str, Any] = {
        "d": registers_of(fragments_of_d(d), accumulator),
        "a": np.repeat(np.array(at_a, np.uint64), 128),
        "b": np.full(WARPS * 32, at_b, np.uint64),
        "s": np.bool_(keep) if number % 2 else np.full(WARPS * 32, keep),
    }
    if any(o.name == "a" and o.count for o in op.sources):
        operands["a"] = fragments_of_a(a)
    flags = {o.name for o in op.sources}
    operands |= {"ia": sign_a, "ib": sign_b} if "ia" in flags else {}
    operands |= {name: 0 for name in ("ta", "tb") if name in flags}
    machine = Warpgroups(memory)
    got = call(op, machine, operands)
    sign = sign_a * sign_b if "ia" in flags else 1
    exact = sign * (a.astype(np.float64) @ b.astype(np.float64).T) + (d.astype(np.float64) if keep else 0)
    want = registers_of(fragments_of_d(exact.astype(dtype)), accumulator)
    assert machine.synchronised == 1
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == op.dests[0].type.dtype  # type: ignore[union-attr]
        assert np.array_equal(x, y), op


@pytest.mark.parametrize("finite", [False, True])
def test_integer_sums_wrap_around_or_stop_at_the_ends(finite: bool) -> None:
    opcode = f"wgmma.mma_async.sync.aligned.m64n8k32{'.satfinite' * finite}.s32.u8.s8"
    op = next(o for o in table.recognise(opcode) if any(x.count == 4 for x in o.sources))
    memory = np.zeros(4096, np.uint8)
    at = put(memory, 0, np.full((8, 32), -128, np.int8))
    old = np.int32(-(2**31) + 5)
    operands = {
        "d": (np.full(WARPS * 32, old),) * 4,
        "a": (np.full(WARPS * 32, 0xFFFFFFFF, np.uint32),) * 4,
        "b": np.full(WARPS * 32, at, np.uint64),
        "s": np.bool_(True),
    }
    got = call(op, Warpgroups(memory), operands)
    exact = int(old) - 32 * 255 * 128
    want = -(2**31) if finite else exact + 2**32
    assert all((x == want).all() for x in got)


def test_the_base_offset_says_where_the_swizzle_begins() -> None:
    op = next(
        o
        for o in table.recognise("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16")
        if any(x.count == 4 for x in o.sources)
    )
    rng = np.random.default_rng(0)
    b = numbers(rng, (8, 16), "f16")
    raw, start, memory = b.view(np.uint8), 1024 + 3 * 128, np.zeros(1 << 13, np.uint8)
    for r in range(8):
        for byte in range(32):
            at = start + 128 * r + byte
            memory[at ^ (r % 8) << 4] = raw[r, byte]  # the pattern begins at `start`
    field = start >> 4 | 64 << 32 | 3 << 49 | 1 << 62
    a = numbers(rng, (64 * WARPS // 4, 16), "f16")
    operands = {
        "d": (np.zeros(WARPS * 32, np.float32),) * 4,
        "a": fragments_of_a(a),
        "b": np.full(WARPS * 32, field, np.uint64),
        "s": np.bool_(False),
        "ia": 1,
        "ib": 1,
        "tb": 0,
    }
    got = call(op, Warpgroups(memory), operands)
    want = fragments_of_d(a.astype(np.float32) @ b.astype(np.float32).T)
    assert all(np.array_equal(x, y) for x, y in zip(got, want, strict=True))


def test_d_has_a_register_for_every_two_columns_or_for_four_in_f16() -> None:
    for syntax in cases_hopper.WGMMA:
        for op in ops_of(OURS[syntax]):
            n = int(str(op.modifiers["shape"])[4:].split("k")[0])
            per_register = 4 if op.opcode.split(".")[-3] == "f16" else 2
            assert op.dests[0].count == n // per_register
