"""Polynomials with integer coefficients, one for all threads or one for each thread: the numbers of
the proof of global accesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

Lanes = np.ndarray[Any, np.dtype[Any]]
Coefficient = Any  # an int, or int64 with one value for each thread
Monomial = tuple[int, ...]  # numbers of atoms, sorted; an atom occurs as often as its power

_MOST_TERMS: Final = 1 << 10  # terms of a product
_MOST_DEGREE: Final = 12
_MOST_DEEP: Final = 40  # nesting of atoms in atoms
_NUMBER_BITS: Final = 32  # of the number of an atom
_MOST: Final = 1 << 62  # the largest coefficient, so that int64 never overflows
UNBOUNDED: Final = 1 << 200  # an infinite bound


class TooLargeError(ArithmeticError):
    """Raised where a coefficient of a polynomial may not fit int64, or a product has too many terms."""


def _largest(c: Coefficient) -> int:
    return abs(c) if isinstance(c, int) else max(abs(int(c.min())), abs(int(c.max())))


def _plain(c: Coefficient) -> Coefficient:
    """A coefficient, as one int if it is the same for all threads."""
    if isinstance(c, int):
        return c
    first = int(c[0])
    return first if bool((c == first).all()) else c


def _add(a: Coefficient, b: Coefficient) -> Coefficient:
    if a.__class__ is int and b.__class__ is int:
        return a + b
    if _largest(a) + _largest(b) > _MOST:
        raise TooLargeError
    return _plain(a + b)


def _mul(a: Coefficient, b: Coefficient) -> Coefficient:
    if a.__class__ is int and b.__class__ is int:
        return a * b
    if _largest(a) * _largest(b) > _MOST:
        raise TooLargeError
    return _plain(a * b)


def _degree(terms: Mapping[Monomial, Coefficient]) -> int:
    return max(map(len, terms), default=0)


class Poly:
    """A polynomial of integer atoms: a sum of monomials with coefficients; immutable."""

    __slots__ = ("_key", "_tight", "bounds", "terms")

    def __init__(self, terms: Mapping[Monomial, Coefficient]) -> None:
        self.terms = {m: c for m, c in terms.items() if c.__class__ is not int or c}
        self._key: Hashable = None
        self._tight: Poly | None = None
        self.bounds: tuple[int, int] | None = None  # kept by `Atoms.bounds`

    @classmethod
    def of(cls, value: int | Lanes) -> Poly:
        """The polynomial that has a constant value and no atoms."""
        return cls({(): _plain(value if isinstance(value, int) else value.astype(np.int64))})

    @property
    def key(self) -> Hashable:
        """A hashable key of the polynomial, equal for equal polynomials."""
        if self._key is None:
            self._key = frozenset(
                [(m, c if c.__class__ is int else c.tobytes()) for m, c in self.terms.items()]
            )
        return self._key

    @property
    def constant(self) -> Coefficient | None:
        """The value of a polynomial without atoms; None if it has any."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def is_uniform(self) -> bool:
        """Whether all coefficients but the constant term are the same for all threads."""
        return not any(c.__class__ is not int and m for m, c in self.terms.items())

    def atoms(self) -> set[int]:
        """The numbers of the polynomial's atoms."""
        return {a for m in self.terms for a in m}

    def __add__(self, other: Poly | int) -> Poly:
        terms = dict(self.terms)
        for m, c in _terms(other).items():
            terms[m] = _add(terms[m], c) if m in terms else c
        return Poly(terms)

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly | int) -> Poly:
        terms = dict(self.terms)
        for m, c in _terms(other).items():
            terms[m] = _add(terms[m], -c) if m in terms else -c
        return Poly(terms)

    def __mul__(self, other: Poly | int) -> Poly:
        terms: dict[Monomial, Coefficient] = {}
        of = _terms(other)
        if len(self.terms) * len(of) > _MOST_TERMS:
            raise TooLargeError
        if len(of) == 1 and () in of:  # a number: the monomials stay as they are
            by = of[()]
            return Poly({m: _mul(c, by) for m, c in self.terms.items()})
        if _degree(self.terms) + _degree(of) > _MOST_DEGREE:
            raise TooLargeError
        for m, c in self.terms.items():
            for n, d in of.items():
                both = tuple(sorted(m + n))
                product = _mul(c, d)
                terms[both] = _add(terms[both], product) if both in terms else product
        return Poly(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: int) -> Poly:
        return -self + other

    def modulo(self, bits: int) -> Poly:
        """A polynomial that is equal modulo 2**bits, with coefficients as near to zero as possible."""
        half = 1 << (bits - 1)
        if all(_largest(c) < min(half, _MOST) for c in self.terms.values()):
            return self
        mask = 2 * half - 1
        if bits == 64 and any(not isinstance(c, int) for c in self.terms.values()):
            return self
        return Poly({m: _plain(((c + half) & mask) - half) for m, c in self.terms.items()})

    def tightened(self) -> Poly:
        """A polynomial that is at least 0 for the same integer values of the atoms: divided by the
        common divisor of all coefficients but the constant term, which is rounded down.
        """
        if self._tight is None:
            self._tight = self._tightened()
        return self._tight

    def _tightened(self) -> Poly:
        divisor = 0
        for m, c in self.terms.items():
            if m:
                divisor = math.gcd(divisor, c) if isinstance(c, int) else 1
        if divisor <= 1 or (divisor > _MOST and not isinstance(self.terms.get((), 0), int)):
            return self
        return Poly({m: _plain(c // divisor) for m, c in self.terms.items()})

    def split(self, atom: int) -> tuple[Poly, Poly] | None:
        """`c` and `e` with `self = c * atom + e`; None if a higher power of the atom occurs."""
        factor, rest = {}, {}
        for m, c in self.terms.items():
            power = m.count(atom)
            if power > 1:
                return None
            if power:
                factor[_without(m, (atom,))] = c
            else:
                rest[m] = c
        return Poly(factor), Poly(rest)

    def quotient(self, divisor: Monomial, by: int, *, proper: bool) -> tuple[Poly, Poly] | None:
        """The factor of `by * divisor`, and the rest; None if a coefficient is no multiple of `by`.
        With `proper` the monomial `divisor` alone stays in the rest.
        """
        quotient, rest = {}, {}
        for m, c in self.terms.items():
            if not _contains(m, divisor) or (proper and m == divisor):
                rest[m] = c
            elif np.any(c % by):
                return None
            else:
                quotient[_without(m, divisor)] = _plain(c // by)
        return Poly(quotient), Poly(rest)

    def for_thread(self, thread: int) -> Poly:
        """The polynomial with the coefficients of one thread."""
        return Poly({m: c if isinstance(c, int) else int(c[thread]) for m, c in self.terms.items()})

    def __repr__(self) -> str:
        return f"Poly({self.terms})"


def _terms(value: Poly | int) -> Mapping[Monomial, Coefficient]:
    return value.terms if isinstance(value, Poly) else {(): value} if value else {}


def put(terms: dict[Monomial, Coefficient], m: Monomial, c: Coefficient) -> None:
    """Add a monomial with a coefficient to the terms of a polynomial, in place."""
    if m not in terms:
        terms[m] = c
        return
    total = _add(terms[m], c)
    if total.__class__ is int and not total:
        del terms[m]  # so that a later term is the last one
    else:
        terms[m] = total


def _contains(m: Monomial, part: Monomial) -> bool:
    return all(m.count(a) >= part.count(a) for a in set(part))


def _without(m: Monomial, part: Monomial) -> Monomial:
    left = list(m)
    for atom in part:
        left.remove(atom)
    return tuple(left)


ZERO: Final = Poly({})
ONE: Final = Poly.of(1)


class Case(NamedTuple):
    """One value of an `either` atom: taken where each of `conditions` is at least 0."""

    value: Poly
    conditions: tuple[Poly, ...]


class Atom(NamedTuple):
    """An integer variable of polynomials, with bounds `low` and `high`.

    `kind` is `size` or `index` (a parameter, or a special register), `unknown`, `iteration` (the number
    of completed iterations of the loop at its block), or a function of the polynomials `args`:
    `div` (rounded down; args[1] is positive, args[0] at least 0), `rem`, `min`, `max`; `either` has
    one of the values of `cases`. An `unknown` atom may have another value in another iteration of
    the loops around its `blocks`.
    """

    number: int
    kind: str
    name: str
    low: int
    high: int
    blocks: frozenset[int] = frozenset()
    args: tuple[Poly, ...] = ()
    cases: tuple[Case, ...] = ()

    @property
    def poly(self) -> Poly:
        """The polynomial that is this atom alone, with the coefficient 1."""
        return Poly({(self.number,): 1})


class Atoms:
    """All atoms, the integer variables of polynomials, that a proof uses, each once."""

    def __init__(self) -> None:
        self._all: list[Atom] = []
        self._settled: list[bool] = []  # by atom: same for all threads and iterations?
        self._depths: list[int] = []  # by atom: how deep other atoms are nested in it
        self._by_key: dict[Any, Atom] = {}
        self._products: dict[Monomial, tuple[int, int]] = {}
        self._nested: list[frozenset[int]] = []  # by atom: itself, and all atoms nested in it

    def __getitem__(self, number: int) -> Atom:
        return self._all[number]

    def order(self, number: int) -> tuple[bool, int]:
        """The sort key by which a goal's atoms are replaced, the highest first: atoms that differ
        between threads and iterations come before those that do not, so that sums of the latter are
        left to compare.
        """
        return not self._settled[number], number

    def nested_first(self, number: int) -> tuple[bool, int]:
        """A sort key of atoms: atoms in which others are nested come before these, whichever were made first,
        so that a row modulo the heads of a group comes before the index of the CTA that is in it.
        """
        return not self._settled[number], (self._depths[number] << _NUMBER_BITS) + number

    def named(self, kind: str, name: str, low: int, high: int, *blocks: int) -> Poly:
        """The atom of this name, made when it is first asked for."""
        return self._atom((kind, name), kind, name, low, high, frozenset(blocks)).poly

    def function_of(self, kind: str, *args: Poly) -> Poly:
        """A `div`, `rem`, `min` or `max` of two polynomials; a quotient by 1 is the dividend
        itself.
        """
        a, b = args
        if kind == "div" and b.constant is not None and np.all(b.constant == 1):
            return a
        low, high = _BOUNDS[kind](self.bounds(a), self.bounds(b))
        return self._atom((kind, a.key, b.key), kind, kind, low, high, args=args).poly

    def either(self, cases: tuple[Case, ...]) -> Poly:
        """The atom that takes one of several values, each under its conditions."""
        bounds = [self.bounds(case.value) for case in cases]
        key = ("either", *[(c.value.key, *[g.key for g in c.conditions]) for c in cases])
        low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
        return self._atom(key, "either", "either", low, high, cases=cases).poly

    def _atom(
        self,
        key: Any,
        kind: str,
        name: str,
        low: int,
        high: int,
        blocks: frozenset[int] = frozenset(),
        args: tuple[Poly, ...] = (),
        cases: tuple[Case, ...] = (),
    ) -> Atom:
        atom = self._by_key.get(key)
        if atom is None:
            atom = Atom(len(self._all), kind, name, low, high, blocks, args, cases)
            parts = [*args, *(p for c in cases for p in (c.value, *c.conditions))]
            inner = {a for p in parts for a in p.atoms()}
            below = max((self._depths[a] for a in inner), default=-1)
            if below == _MOST_DEEP:
                raise TooLargeError
            self._depths.append(below + 1)
            self._nested.append(frozenset({atom.number}).union(*(self._nested[a] for a in inner)))
            self._all.append(atom)
            self._settled.append(self._is_settled(atom))
            self._by_key[key] = atom
        return atom

    def _is_settled(self, atom: Atom) -> bool:
        if atom.args:
            return all(self._settled[a] for p in atom.args for a in p.atoms())
        return atom.kind == "size" or (atom.kind == "unknown" and not atom.blocks)

    # ------------------------------------------------------------------------------ bounds

    def bounds(self, poly: Poly) -> tuple[int, int]:
        """The bounds of a polynomial over all threads, from the bounds of its atoms alone."""
        if poly.bounds is None:
            poly.bounds = self._bounds(poly)
        return poly.bounds

    def _bounds(self, poly: Poly) -> tuple[int, int]:
        low = high = 0
        for m, c in poly.terms.items():
            first, last = self.product(m)
            if c.__class__ is int:
                low, high = (
                    (low + first * c, high + last * c) if c > 0 else (low + last * c, high + first * c)
                )
                continue
            least, most = int(c.min()), int(c.max())
            corners = [x * y for x in (first, last) for y in (least, most)]
            low, high = low + min(corners), high + max(corners)
        return max(low, -UNBOUNDED), min(high, UNBOUNDED)

    def product(self, m: Monomial) -> tuple[int, int]:
        """The lowest and the highest value of a monomial, from the bounds of its atoms."""
        known = self._products.get(m)
        if known is not None:
            return known
        low = high = 1
        for number in m:
            atom = self._all[number]
            corners = [x * y for x in (low, high) for y in (atom.low, atom.high)]
            low, high = max(min(corners), -UNBOUNDED), min(max(corners), UNBOUNDED)
        self._products[m] = low, high
        return low, high

    # ----------------------------------------------------------------------- substitution

    def within(self, poly: Poly) -> Iterator[Atom]:
        """The atoms of a polynomial and, recursively, the atoms of their arguments."""
        return (self._all[n] for n in frozenset().union(*(self._nested[a] for a in poly.atoms())))

    def depends(self, poly: Poly, atom: int) -> bool:
        """Whether an atom is one of a polynomial, or nested in one."""
        return any(atom in self._nested[a] for a in poly.atoms())

    def replaced(self, poly: Poly, atom: int, by: Poly) -> Poly:
        """The polynomial with `by` in place of an atom, also inside other atoms."""
        return self._with_another(poly, atom, by, {})

    def _with_another(self, poly: Poly, atom: int, by: Poly, known: dict[int, Poly]) -> Poly:
        if not self.depends(poly, atom):
            return poly
        nested = self._nested
        result: dict[Monomial, Coefficient] = {}
        for m, c in poly.terms.items():
            if not any(atom in nested[number] for number in m):
                put(result, m, c)
                continue
            term = Poly({(): c})
            for number in m:
                if number not in known:
                    known[number] = self._replaced(number, atom, by, known)
                term = term * known[number]
            for n, d in term.terms.items():
                put(result, n, d)
        return Poly(result)

    def _replaced(self, number: int, atom: int, by: Poly, known: dict[int, Poly]) -> Poly:
        if number == atom:
            return by
        old = self._all[number]
        if atom not in self._nested[number]:
            return old.poly

        def replaced(polys: Iterable[Poly]) -> tuple[Poly, ...]:
            return tuple(self._with_another(p, atom, by, known) for p in polys)

        if old.cases:
            values = replaced(c.value for c in old.cases)
            conditions = (replaced(c.conditions) for c in old.cases)
            return self.either(tuple(map(Case, values, conditions)))
        return self.function_of(old.kind, *replaced(old.args))

    def all_replaced(self, polys: Iterable[Poly], atom: int, by: Poly) -> tuple[Poly, ...]:
        """Each polynomial with `by` in place of an atom."""
        return tuple(self.replaced(p, atom, by) for p in polys)


Bounds = tuple[int, int]


def _div(a: Bounds, b: Bounds) -> Bounds:
    return max(a[0], 0) // b[1] if b[1] > 0 else 0, max(a[1], 0) // max(b[0], 1)


_BOUNDS: Final[dict[str, Callable[[Bounds, Bounds], Bounds]]] = {
    "div": _div,
    "rem": lambda a, b: (0, max(min(a[1], b[1] - 1), 0)),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
