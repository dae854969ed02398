"""The bits of results that are undefined because bits of operands are.

Each row of the table says where undefined bits go, by a `Rule`. In a row without a rule a result is undefined
in whole as soon as any bit of an operand is; packed numbers count one by one. The rules below are closer
where programs rely on it: bit by bit in logic, from the lowest undefined bit upwards in sums (N. Nethercote
and J. Seward, "How to Shadow Every Byte of Memory Used by a Program", 2007, have both), and element by
element in data movement and products of matrices.

Undefined bits are 1 in unsigned lanes as wide as the operand, or bool for predicates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.isa.spec import Op, Rule
from ptxgen.records import dataclass

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Flow:
    """One instruction whose operands, or whose memory, have undefined bits.

    `values` are the operands as lanes or literals, `bits` their undefined bits, by name; an operand that is a
    vector has a tuple of both. `run` computes the row's function with some operands replaced; what it reads
    from memory and from other lanes are undefined bits, too, and what it writes to memory is stored as
    undefined bits.
    """

    op: Op
    values: Mapping[str, Any]
    bits: Mapping[str, Any]
    run: Callable[[Mapping[str, Any]], Any]
    machine: Any

    def any(self, *names: str) -> Any:
        """A mask of the lanes with an undefined bit in one of these operands; by default in any."""
        result: Any = np.False_
        for name in names or self.bits:
            for part in _parts(self.bits[name]):
                result = np.logical_or(result, np.not_equal(part, 0))
        return result


Bits = Callable[[Flow], Any]


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def as_operand(value: Any, bits: Any) -> Any:
    """Bits with the dtype of the operand's value."""
    if isinstance(value, tuple):
        return tuple(as_operand(v, b) for v, b in zip(value, bits, strict=True))
    if np.asarray(value).dtype == np.bool_:
        return np.asarray(bits, np.bool_)
    return np.asarray(bits).view(np.asarray(value).dtype)


def whole(flow: Flow) -> Any:
    """All of a result is undefined if any bit of an operand is; in packed operations, half by half."""
    op = flow.op
    halves = [o for o in op.operands if o.type is not None and str(o.type).endswith("x2")]
    if (
        not halves
        or len(op.dests) != 1
        or any(o.type is None or o.type != halves[0].type for o in op.operands)
    ):
        return flow.any()
    width = halves[0].type.bits // 2  # type: ignore[union-attr]
    total: Any = 0
    for bits in flow.bits.values():
        total = np.bitwise_or(total, bits)
    low = total.dtype.type((1 << width) - 1)
    high = np.left_shift(low, total.dtype.type(width))
    zero = total.dtype.type(0)
    return np.where(total & low, low, zero) | np.where(total & high, high, zero)


def moved(*names: str) -> Bits:
    """A function by which undefined bits of these operands, of memory and of other lanes go where the row's
    function moves the values; if another operand is undefined, all of the result is.
    """

    def bits(flow: Flow) -> Any:
        results = flow.run({n: as_operand(flow.values[n], flow.bits[n]) for n in names if n in flow.bits})
        control = [n for n in flow.bits if n not in names]
        lost = flow.any(*control) if control else np.False_
        if not np.any(lost):
            return results
        return tuple(_filled(part, lost) for part in _parts(results)) or results

    return bits


def _filled(bits: Any, lost: Any) -> Any:
    raw = np.asarray(bits)
    if raw.dtype == np.bool_:
        return raw | lost
    raw = raw.view(f"u{raw.itemsize}")
    return np.where(lost, ~raw.dtype.type(0), raw)


def moves(*names: str, control: tuple[str, ...] = ()) -> Rule:
    """The rule of a row that moves the bits of the operands `names`, controlled by the operands `control`; in
    a row with effects no other operand may be undefined.
    """
    return Rule(moved(*names), (*names, *control))


def tried(flow: Flow) -> Any:
    """The bits that differ between the results for undefined bits of 0 and of 1, operand by operand:
    exact where each bit of the result depends on the same bit of each operand.
    """
    doubtful = [n for n, b in flow.bits.items() if any(np.any(p) for p in _parts(b))]
    trials = []
    for choice in itertools.product((False, True), repeat=len(doubtful)):
        replaced = {}
        for name, ones in zip(doubtful, choice, strict=True):
            pairs = zip(_parts(flow.values[name]), _parts(flow.bits[name]), strict=True)
            new = tuple(_forced(v, b, ones=ones) for v, b in pairs)
            replaced[name] = new if isinstance(flow.values[name], tuple) else new[0]
        trials.append(flow.run(replaced))
    return differing(trials)


def differing(results: list[Any]) -> Any:
    """The bits in which results are not all the same."""
    several = isinstance(results[0], tuple)
    masks = []
    for parts in zip(*map(_parts, results), strict=True):
        raw = [np.asarray(p) for p in parts]
        raw = [r if r.dtype == np.bool_ else r.view(f"u{r.itemsize}") for r in raw]
        total = raw[0] ^ raw[0]
        for other in raw[1:]:
            total = total | (raw[0] ^ other)
        masks.append(total)
    return tuple(masks) if several else masks[0]


def _forced(value: Any, bits: Any, *, ones: bool) -> Any:
    """A value with its undefined bits all 1 or all 0."""
    lanes = np.asarray(value)
    if lanes.dtype == np.bool_:
        return lanes | bits if ones else lanes & ~np.asarray(bits)
    raw = lanes.view(f"u{lanes.itemsize}")
    forced = raw | bits if ones else raw & ~np.asarray(bits)
    return np.ascontiguousarray(forced).view(lanes.dtype)


def upwards(flow: Flow) -> Any:
    """All bits of a result from the lowest undefined bit of an operand upwards, as carries go."""
    type = flow.op.dests[0].type
    assert type is not None
    dtype = np.dtype(f"u{type.nbytes}")
    total: Any = dtype.type(0)
    for bits in flow.bits.values():
        total = np.bitwise_or(total, np.asarray(bits).astype(dtype))
    return total | np.negative(total)


def sums(flow: Flow) -> Any:
    """`upwards` for integers that wrap around; all of the result for other types."""
    type = flow.op.dests[0].type
    words = flow.op.opcode.split(".")
    wraps = type is not None and type.kind in "us" and not {"hi", "sat"} & set(words)
    return upwards(flow) if wraps and not words[-1].endswith("x2") else whole(flow)


def compared(flow: Flow) -> Any:
    """A comparison of integers is defined if it has one outcome for the least and the greatest
    numbers that the defined bits allow; one of other numbers if both operands are.
    """
    values, bits = flow.values, flow.bits
    a, b = np.asarray(values["a"]), np.asarray(values["b"])
    lanes = flow.any("a", "b")
    if str(flow.op.sources[0].type).endswith("x2"):
        return whole(flow)
    if not np.any(lanes):
        return tried(flow)
    if a.dtype.kind in "iu":
        pairs = _extremes(a, bits["a"], b, bits["b"])
    else:
        one, zero, nan = (a.dtype.type(x) for x in (1, 0, np.nan))
        pairs = [(one, zero), (zero, one), (zero, zero), (nan, zero)]
    trials = []
    c_values = [values.get("c")]
    if "c" in bits and np.any(bits["c"]):
        c_values = [_forced(values["c"], bits["c"], ones=ones) for ones in (False, True)]
    for x, y in pairs:
        for c in c_values:
            new = {"a": np.where(lanes, x, a), "b": np.where(lanes, y, b)}
            trials.append(flow.run(new if c is None else {**new, "c": c}))
    return differing(trials)


def _extremes(a: Lanes, a_bits: Any, b: Lanes, b_bits: Any) -> list[tuple[Any, Any]]:
    """Pairs of numbers that decide a comparison: least and greatest, and equal ones if they can be."""

    def ends(x: Lanes, bits: Any) -> tuple[Any, Any]:
        raw = x.view(f"u{x.itemsize}")
        low, high = raw & ~np.asarray(bits), raw | bits
        if x.dtype.kind == "i":
            sign = raw.dtype.type(1 << (8 * x.itemsize - 1))
            sign_bits = np.asarray(bits) & sign
            low, high = low | sign_bits, high & ~sign_bits
        return np.ascontiguousarray(low).view(x.dtype), np.ascontiguousarray(high).view(x.dtype)

    least_a, most_a = ends(a, a_bits)
    least_b, most_b = ends(b, b_bits)
    raw_a, raw_b = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
    known = ~(np.asarray(a_bits) | b_bits)
    equal = ((raw_a ^ raw_b) & known) == 0
    # If no defined bit differs, both may be the number with the bits that either has.
    return [(least_a, most_b), (most_a, least_b), (least_a, np.where(equal, least_a, most_b))]


def converted(flow: Flow) -> Any:
    """Integers are cut or extended bit by bit; a pair of numbers in one register, half by half."""
    op = flow.op
    a, d = op.sources[0].type, op.dests[0].type
    assert a is not None
    assert d is not None
    if a.kind in "us" and d.kind in "us":
        return moved("a")(flow)
    if "b" in flow.bits and a.bits == 32:  # a pair of half as many bits as the result; a is the upper half
        number = np.dtype(f"u{d.nbytes}").type
        lower = number((1 << d.bits // 2) - 1)
        return np.where(flow.any("a"), ~lower, number(0)) | np.where(flow.any("b"), lower, number(0))
    return whole(flow)


BITWISE = Rule(tried)
MOVES_A = Rule(moved("a"))
MOVES_AB = Rule(moved("a", "b"))
SUMS = Rule(sums)
COMPARED = Rule(compared)
CONVERTED = Rule(converted)
