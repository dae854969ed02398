"""Recorded results against the interpreter's."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from vectors.cases import Array, Case

from ptxgen.interpreter import run
from ptxgen.isa import table
from ptxgen.isa.spec import Op

_DTYPES: Final[dict[str, Any]] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
}
# Exponents of the smallest normal number, which `.ftz` may make zero or not after rounding.
_SMALLEST: Final = {"f32": -126, "bf16": -126, "f16": -14, "f64": -1022}

# For results of f64 approximations, of which the manual promises nothing: 20 bits are read.
_GROSS: Final = 2.0**-18


@dataclass(frozen=True)
class Comparison:
    """How a case came out: `problem` is empty if recorded and computed results agree; `spread` says
    by how much they differ.
    """

    name: str
    problem: str
    spread: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem or 'agrees'} ({self.spread})"


def interpreted(case: Case, inputs: tuple[Array, ...] | None = None) -> Array:
    """What the interpreter computes, on the case's inputs or on others."""
    out = np.zeros(case.shape, case.dtype)
    run(case.ptx, "k", grid=case.grid, block=case.block, args=case.arguments(out, inputs))
    return out


def compare(case: Case, recorded: Array) -> Comparison:
    """Runs the case here and compares."""
    here = interpreted(case)
    by = {"exact": _exact, "approximate": _approximate, "sum": _sum}
    fine, spread = by[case.rule](case, recorded, here)
    return Comparison(case.name, _problem(case, recorded, here, fine), spread)


def _problem(case: Case, recorded: Array, here: Array, fine: Array) -> str:
    wrong = np.flatnonzero(~fine.reshape(-1))
    if not len(wrong):
        return ""
    kind = _scalar(case.element)
    width = np.dtype(_DTYPES[kind]).itemsize if kind else recorded.dtype.itemsize
    got, want = (_units(x, width).reshape(-1)[wrong[0]] for x in (recorded, here))
    digits = 2 * width
    return (
        f"{len(wrong)} of {fine.size} elements differ, the first is number {wrong[0]}: "
        f"recorded {got:#0{digits + 2}x}, here {want:#0{digits + 2}x}"
    )


# ---- elements ---------------------------------------------------------------------------------


def _scalar(element: str) -> str:
    """The floating-point type of the elements; empty for others."""
    name = element.removesuffix("x2")
    return name if name in _DTYPES else ""


def _units(bits: Array, width: int) -> Array:
    return np.ascontiguousarray(bits).reshape(-1).view(f"u{width}")


def _floats(bits: Array, kind: str) -> Array:
    """The numbers as float64, flat."""
    dtype = np.dtype(_DTYPES[kind])
    with np.errstate(all="ignore"):
        built: Array = _units(bits, dtype.itemsize).view(dtype).astype(np.float64)
    return built


def _ordinals(bits: Array, kind: str) -> Array:
    """Whole numbers in the order of the floats: neighbours are one apart, infinity included."""
    width = np.dtype(_DTYPES[kind]).itemsize
    whole = _units(bits, width).view(f"i{width}").astype(np.int64)
    return np.where(whole < 0, -(whole & ((1 << (8 * width - 1)) - 1)), whole)


# ---- the rules --------------------------------------------------------------------------------


def _exact(case: Case, recorded: Array, here: Array) -> tuple[Array, str]:
    kind = _scalar(case.element)
    width = np.dtype(_DTYPES[kind]).itemsize if kind else recorded.dtype.itemsize
    fine = _units(recorded, width) == _units(here, width)
    if kind:
        fine |= np.isnan(_floats(recorded, kind)) & np.isnan(_floats(here, kind))
    return fine, f"{fine.size} elements, bit for bit"


def _approximate(case: Case, recorded: Array, here: Array) -> tuple[Array, str]:
    kind = _scalar(case.element)
    got, want = _floats(recorded, kind), _floats(here, kind)
    (op,) = (o for o in table.recognise(case.opcode) if _reads(o, case))
    ordinals = _ordinals(recorded, kind), _ordinals(here, kind)
    with np.errstate(all="ignore"):
        apart = np.abs(ordinals[0] - ordinals[1])
        within = (
            _near(op, case, got, want)
            if math.isinf(op.row.max_ulp)
            # `want` is itself off: by half a unit, or by less than a unit where it is cut off.
            else apart <= math.ceil(op.row.max_ulp + 0.5)
        )
        tiny = 2.0 ** _SMALLEST[kind]
        flushed = ("ftz" in case.opcode) & (np.abs(got) <= tiny) & (np.abs(want) <= tiny)
    numbers = ~np.isnan(got) & ~np.isnan(want)
    fine = np.where(numbers, within | flushed | _unpromised(op, case), np.isnan(got) & np.isnan(want))
    return fine, f"units apart: {_histogram(apart[numbers])}"


def _reads(op: Op, case: Case) -> bool:
    return len(op.sources) == len(case.inputs)


def _near(op: Op, case: Case, got: Array, want: Array) -> Array:
    """Within what the manual promises in other words than units in the last place."""
    error = np.abs(got - want)
    kind = _scalar(case.element)
    a = _floats(case.inputs[0], kind)
    rounding = np.spacing(np.abs(want).astype(np.float32)) if kind == "f32" else 0.0
    name = op.row.name
    if name == "lg2":
        bound = 2.0**-22 * np.where((a > 0.5) & (a < 2), 1.0, np.abs(want)) + rounding
    elif name in ("sin", "cos"):
        bound = np.where(np.abs(a) <= 2 * np.pi, 2.0**-20.5, 2.0**-14.7) + rounding
    elif name == "tanh":
        half_unit = 2.0**-9 if kind == "bf16" else 2.0**-11
        limit = 2.0**-7 * np.abs(want) if kind == "bf16" else 2.0**-10.987
        bound = limit + half_unit * np.abs(want) + 2.0**-133
    else:
        bound = _GROSS * np.abs(want)
    near: Array = (got == want) | (error <= bound)
    return near


def _unpromised(op: Op, case: Case) -> Array:
    """Where the manual promises nothing for these inputs."""
    kind = _scalar(case.element)
    last = np.abs(_floats(case.inputs[-1], kind))
    if case.opcode.startswith("div.approx"):
        outside: Array = (last > 2.0**126) | (last < 2.0**-126)
        return outside
    if op.row.name in ("sin", "cos"):
        return last > 100 * np.pi
    if kind == "f64":  # subnormal inputs, and results that are
        return (last < 2.0**-1021) | (last > 2.0**1021)
    return np.zeros(last.shape, bool)


def _sum(case: Case, recorded: Array, here: Array) -> tuple[Array, str]:
    fine, _ = _exact(case, recorded, here)
    kind = _scalar(case.element)
    got, want = _floats(recorded, kind), _floats(here, kind)
    unsigned = tuple(
        x if mask is None else x & x.dtype.type(mask) for x, mask in zip(case.inputs, case.signs, strict=True)
    )
    size = _floats(interpreted(case, unsigned), kind)
    with np.errstate(all="ignore"):
        share = np.abs(got - want) / size
    worst = share.max(initial=0.0, where=np.isfinite(share))
    shown = f"2^{math.log2(worst):.1f}" if worst else "0"
    return fine, f"{fine.size} sums, worst error {shown} of their magnitudes, {fine.mean():.1%} equal"


def _histogram(apart: Array) -> str:
    """How many are how many units apart: by powers of two from 4 on."""
    counts = Counter(int(n) if n < 4 else 1 << int(n).bit_length() - 1 for n in apart)
    return ", ".join(f"{n}{'+' * (n >= 4)}: {counts[n]}" for n in sorted(counts)) or "no numbers"
