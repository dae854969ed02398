"""Where undefined bits go: no result may depend on a bit that a rule calls defined."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ptxgen.isa.spec import Effect, Inst, Op
from ptxgen.isa.table import recognise, rows
from ptxgen.isa.undefined import Flow, whole
from ptxgen.types import b128

LANES = 64
_MANY = 24  # forms of one row that are tried


def pure_rows() -> list[Inst]:
    """The rows without effects that have a meaning and results."""
    return [
        row
        for named in rows().values()
        for row in named
        if row.effect is Effect.NONE and not row.unmodelled and any(o.written for o in row.operands)
    ]


def some_ops(row: Inst) -> Iterator[Op]:
    """The first ops of a row; numpy has no integers for those with 128 bits, which
    tests/interpreter/machine/test_wide_registers.py tests.
    """
    narrow = (op for op in row.all_ops() if not any(o.type is b128 for o in op.operands))
    yield from itertools.islice(narrow, _MANY)


def _random(type: Any, rng: np.random.Generator) -> Any:
    if type.kind == "p":
        return rng.integers(0, 2, LANES).astype(np.bool_)
    raw = rng.integers(0, 256, LANES * type.nbytes, dtype=np.uint8)
    small = rng.integers(0, 40, LANES).astype(f"u{type.nbytes}")
    lanes = raw.view(f"u{type.nbytes}")
    return np.where(rng.integers(0, 2, LANES) == 1, lanes, small).view(type.dtype)


def _bits(value: Any) -> Any:
    lanes = np.asarray(value)
    return lanes if lanes.dtype == np.bool_ else np.ascontiguousarray(lanes).view(f"u{lanes.itemsize}")


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def operands_of(op: Op, rng: np.random.Generator) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for operand in op.sources:
        if operand.kind == "imm":
            result[operand.name] = (
                operand.literal if operand.literal is not None else int(rng.integers(0, 200))
            )
        elif operand.type is not None:
            values = tuple(_random(operand.type, rng) for _ in range(max(operand.count, 1)))
            result[operand.name] = values if operand.count else values[0]
    return {n: v for n, v in result.items() if n in op.row.parameters}


def flow_of(op: Op, values: dict[str, Any], masks: dict[str, Any]) -> Any:
    """The undefined bits of results for undefined bits of operands."""
    fixed = {n: v for n, v in op.modifiers.items() if n in op.row.parameters}

    def run(replaced: Any) -> Any:
        return op.row.semantics(**{**values, **fixed, **replaced})

    flow = Flow(op, values, masks, run, None)
    return (op.row.undefined.bits or whole)(flow)


@pytest.mark.parametrize("row", pure_rows(), ids=lambda row: f"{row.name} {row.syntax}")
def test_no_defined_bit_of_a_result_depends_on_an_undefined_bit(row: Inst) -> None:
    rng = np.random.default_rng(zlib.crc32(row.syntax.encode()))
    with np.errstate(all="ignore"):
        for op in some_ops(row):
            values = operands_of(op, rng)
            lanes = [n for n, v in values.items() if not isinstance(v, int)]
            if not lanes:
                continue
            masks: dict[str, Any] = {}
            others = dict(values)
            for name in lanes:
                parts, changed = [], []
                for value in _parts(values[name]):
                    raw = _bits(value)
                    mask = np.zeros_like(raw)
                    if rng.integers(0, 2):
                        noise = _bits(_random_like(value, rng))
                        mask = noise if raw.dtype == np.bool_ else noise & _bits(_random_like(value, rng))
                    flipped = raw ^ (mask & _bits(_random_like(value, rng)))
                    parts.append(mask)
                    changed.append(flipped if raw.dtype == np.bool_ else flipped.view(value.dtype))
                several = isinstance(values[name], tuple)
                masks[name] = tuple(parts) if several else parts[0]
                others[name] = tuple(changed) if several else changed[0]
            fixed = {n: v for n, v in op.modifiers.items() if n in op.row.parameters}
            before = _parts(op.row.semantics(**values, **fixed))
            after = _parts(op.row.semantics(**others, **fixed))
            result = _parts(flow_of(op, values, masks))
            result = result if len(result) == len(before) else result * len(before)
            for one, other, undefined in zip(before, after, result, strict=True):
                differs = _bits(one) ^ _bits(other)
                undefined = np.asarray(undefined)
                if undefined.dtype == np.bool_ and differs.dtype != np.bool_:
                    undefined = np.where(undefined, ~differs.dtype.type(0), differs.dtype.type(0))
                allowed = undefined if undefined.dtype == np.bool_ else _bits(undefined)
                wrong = np.flatnonzero(np.broadcast_to(differs & ~allowed, LANES))
                assert not len(wrong), (op.opcode, int(wrong[0]), values)


def _random_like(value: Any, rng: np.random.Generator) -> Any:
    lanes = np.asarray(value)
    if lanes.dtype == np.bool_:
        return rng.integers(0, 2, LANES).astype(np.bool_)
    return rng.integers(0, 256, LANES * lanes.itemsize, dtype=np.uint8).view(lanes.dtype)


def _word(value: int) -> Any:
    return np.full(1, value, np.uint32)


F32 = np.full(1, 2.0, np.float32)
ALL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("opcode", "values", "masks", "wanted"),
    [
        ("and.b32", {"a": _word(0), "b": _word(0xFF)}, {"a": ALL}, 0xFF),
        ("or.b32", {"a": _word(0), "b": _word(0xFF)}, {"a": ALL}, 0xFFFFFF00),
        ("xor.b32", {"a": _word(0), "b": _word(0xFF)}, {"a": 0xF0}, 0xF0),
        ("not.b32", {"a": _word(5)}, {"a": 0xF0}, 0xF0),
        ("shl.b32", {"a": _word(0), "b": _word(8)}, {"a": 0xFF}, 0xFF00),
        ("shl.b32", {"a": _word(0), "b": _word(8)}, {"b": 1}, ALL),
        ("shr.s32", {"a": np.zeros(1, np.int32), "b": _word(8)}, {"a": 1 << 31}, 0xFF800000),
        ("add.u32", {"a": _word(1), "b": _word(1)}, {"a": 0x100}, 0xFFFFFF00),
        ("mul.lo.u32", {"a": _word(1), "b": _word(1)}, {"a": 0x10000}, 0xFFFF0000),
        ("mul.hi.u32", {"a": _word(1), "b": _word(1)}, {"a": 0x10000}, ALL),
        ("prmt.b32", {"a": _word(0), "b": _word(0), "c": _word(0x5410)}, {"b": ALL}, 0xFFFF0000),
        ("bfe.u32", {"a": _word(0), "b": _word(8), "c": _word(8)}, {"a": 0xFF}, 0),
        ("lop3.b32", {"a": _word(0), "b": _word(7), "c": _word(1), "lut": 0x80}, {"a": ALL}, 1),
        ("popc.b32", {"a": _word(0)}, {"a": 1}, ALL),
        ("cvt.u32.u8", {"a": np.zeros(1, np.uint8)}, {"a": 0x80}, 0x80),
        ("cvt.s32.s8", {"a": np.zeros(1, np.int8)}, {"a": 0x80}, 0xFFFFFF80),
        ("cvt.rn.f16x2.f32", {"a": F32, "b": F32}, {"a": 1}, 0xFFFF0000),
        ("cvt.rn.f16x2.f32", {"a": F32, "b": F32}, {"b": 1}, 0xFFFF),
        ("add.rn.f16x2", {"a": _word(0), "b": _word(0)}, {"b": 0x10000}, 0xFFFF0000),
        ("add.rn.f32", {"a": F32, "b": F32}, {"b": 1}, ALL),
    ],
)
def test_undefined_bits_of_one_operand_reach_these_of_the_result(
    opcode: str, values: dict[str, Any], masks: dict[str, int], wanted: int
) -> None:
    result = flow_of(*_with_masks(opcode, values, masks))
    if np.asarray(result).dtype == np.bool_:
        result = np.where(result, ALL, 0)
    assert int(np.asarray(result).reshape(-1)[0]) & ALL == wanted


def _with_masks(opcode: str, values: dict[str, Any], masks: dict[str, int]) -> tuple[Any, Any, Any]:
    (op,) = (op for op in recognise(opcode) if len(op.sources) == len(values) and len(op.dests) == 1)
    whole = {
        n: np.full(1, masks.get(n, 0), f"u{np.asarray(v).itemsize}") for n, v in values.items() if n != "lut"
    }
    return op, values, whole


@pytest.mark.parametrize(
    ("opcode", "a", "b", "mask", "defined"),
    [
        ("setp.lt.u32", 5, 100, 0xF, True),  # 0 to 15 are all less
        ("setp.lt.u32", 5, 10, 0xF, False),
        ("setp.ge.u32", 0x105, 100, 0xF, True),
        ("setp.eq.u32", 0x105, 0x205, 0xFF, True),  # a defined bit differs
        ("setp.eq.u32", 0x105, 0x106, 0xFF, False),
        ("setp.ne.u32", 0x105, 0x206, 0xFF, True),
        ("setp.lt.s32", 5, 0, 0x7FFFFFFF, True),  # the sign is defined
        ("setp.lt.s32", 5, 0, 0x80000000, False),
    ],
)
def test_a_comparison_is_defined_if_the_defined_bits_decide_it(
    opcode: str, a: int, b: int, mask: int, defined: bool
) -> None:
    dtype = np.int32 if opcode.endswith("s32") else np.uint32
    values = {"a": np.full(1, a, np.uint32).view(dtype), "b": np.full(1, b, np.uint32).view(dtype)}
    result = flow_of(*_with_masks(opcode, values, {"a": mask}))
    assert bool(result[0]) is not defined


def test_a_comparison_of_floating_point_numbers_needs_both() -> None:
    values = {"a": F32, "b": F32}
    assert bool(flow_of(*_with_masks("setp.lt.f32", values, {"a": 1}))[0])
    assert not bool(flow_of(*_with_masks("setp.lt.f32", values, {}))[0])


def test_a_combined_comparison_is_defined_if_the_predicate_decides_it() -> None:
    op = next(op for op in recognise("setp.lt.and.f32") if len(op.dests) == 1)
    values = {"a": F32, "b": F32, "c": np.zeros(1, np.bool_)}
    masks = {"a": np.ones(1, np.uint32), "b": np.zeros(1, np.uint32), "c": np.zeros(1, np.bool_)}
    assert not bool(flow_of(op, values, masks)[0])
    assert bool(flow_of(op, {**values, "c": np.ones(1, np.bool_)}, masks)[0])
    assert bool(flow_of(op, {**values, "a": F32}, {**masks, "c": np.ones(1, np.bool_)})[0])


def test_a_selection_of_equal_numbers_is_defined_whatever_selects() -> None:
    (op,) = recognise("selp.b32")
    masks = {"a": _word(0), "b": _word(0), "c": np.ones(1, np.bool_)}
    values = {"a": _word(0x31), "b": _word(0x11), "c": np.ones(1, np.bool_)}
    assert int(flow_of(op, values, masks)[0]) == 0x20
