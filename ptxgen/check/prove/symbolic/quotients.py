"""Quotients and remainders as polynomials, also those that are computed as products by a reciprocal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxgen.check.prove.polynomials import ZERO, Atoms, Poly
from ptxgen.check.prove.program.values import Node
from ptxgen.check.prove.symbolic.goals import Goals

Operand = Callable[[Node, int], Poly | None]


def divided(goals: Goals, atoms: Atoms, a: Poly, b: Poly, kind: str) -> Poly | None:
    """The quotient ("div") or the remainder ("rem") of a by b; None unless 0 <= a and 1 <= b are
    shown.
    """
    if not goals.holds(a) or not goals.holds(b - 1):
        return None
    by = b.constant
    if isinstance(by, int):
        whole = Poly({m: c // by for m, c in a.terms.items() if not m or not np.any(c % by)})
        rest = a - whole * by
        low, high = atoms.bounds(rest)
        if low >= 0 and high < by:
            return whole if kind == "div" else rest
    elif len(b.terms) == 1:  # for example heads / group, where heads is kv_heads * group
        ((monomial, factor),) = b.terms.items()
        parts = a.quotient(monomial, factor, proper=False) if isinstance(factor, int) else None
        if parts is not None and not parts[1].terms:
            return parts[0] if kind == "div" else ZERO
    return atoms.function_of(kind, a, b)


def with_remainder(atoms: Atoms, poly: Poly) -> Poly:
    """The polynomial a - b * (a div b) as an atom, which stays one in sums with other multiples of
    the quotient; any other polynomial as it is.
    """
    for m, c in poly.terms.items():
        if len(m) != 1 or not isinstance(c, int) or c >= 0:
            continue
        atom = atoms[m[0]]
        if atom.kind == "div" and atom.args[1].key == Poly.of(-c).key:
            a, b = atom.args
            if (poly - Poly({m: c})).key == a.key:
                return atoms.function_of("rem", a, b)
    return poly


def as_division(product: Node, value: Poly, by: int, whole: Operand, goals: Goals) -> tuple[Poly, Poly]:
    """The dividend and the divisor of `value >> by`, where `value` is that of the node `product`.

    If it is a product x * m, with m added or not, and m / 2**by is a reciprocal of an integer d that
    is exact enough for all x, they are x and d; else `value` and 2**by. `whole` gives an operand as a
    number.

    With e = m * d - 2**by from 0 on, floor(x * m / 2**by) = floor(x / d) for 0 <= x if x * e < 2**by,
    because x * m / 2**by is x / d plus less than 1 / d. With e = 2**by - m * d above 0,
    floor((x + 1) * m / 2**by) = floor(x / d) if (x + 1) * e <= 2**by: it is (x + 1) / d less at most
    1 / d, and less than (x + 1) / d.
    """
    plain = value, Poly.of(1 << by)
    if product.kind != "apply" or product.data.op.opcode.split(".")[0] not in ("mul", "mad"):
        return plain
    a, b = whole(product, 0), whole(product, 1)
    if a is None or b is None:
        return plain
    x, m = (a, b.constant) if isinstance(b.constant, int) else (b, a.constant)
    if not isinstance(m, int) or not 0 < m < 1 << by:
        return plain
    added = (value - x * m).constant
    if not isinstance(added, int) or added not in (0, m):
        return plain
    most: int | None
    if added:
        d = (1 << by) // m
        above = (1 << by) - m * d
        most = (1 << by) // above - 1 if above else -1
    else:
        d = -(-(1 << by) // m)
        above = m * d - (1 << by)
        most = ((1 << by) - 1) // above if above else None
    exact = most is None or goals.holds(Poly.of(most) - x)
    return (x, Poly.of(d)) if exact else plain  # `divided` asks whether x is negative
