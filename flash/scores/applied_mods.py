"""Functions of scores in kernels: what is emitted for the scores of a tile."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

from flash.mods.emit import Elements, Emitted
from flash.mods.reach import (
    NO_BOUNDS,
    Interval,
    KeyBounds,
    block_flags,
    bounds_keys,
    has_gaps,
    hiding_bounds,
    key_bounds,
    seen_ranges,
    shows_tiles,
)
from flash.mods.tile_bounds import OfCta
from flash.mods.trace import SCORE
from flash.scores.feature import LOG2E, NEG_INF, Applied, Inputs
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import dsl
from ptxgen.dsl.source_regions import marked
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, Value


@dataclass(frozen=True)
class AppliedScoreMod(Applied):
    """A function of scores in natural units."""

    inputs: Inputs
    emitted: Emitted
    derivative: Emitted | None  # None if it is not needed
    # Derivatives by elements that the function reads, and this thread's derivatives of that kind.
    by_elements: Sequence[tuple[Emitted, Fragment]] = ()

    is_natural: ClassVar[bool] = True
    bends: ClassVar[bool] = True

    def change(self, S: Fragment, coordinates: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """See `Applied.change`."""
        k, of = self.inputs.k, OfTile(self.inputs, self.emitted, coordinates)
        for by_element, into in self.by_elements:
            of_element = OfTile(self.inputs, by_element, coordinates)
            for i, j, elements in of_element.each():
                into[i, j].set(elements.at(i, j, of_element.with_score(i, j, S[i, j])))
        if slopes is not None:
            assert self.derivative is not None  # the kernel differentiates
            by_score = OfTile(self.inputs, self.derivative, coordinates)
            for i, j, elements in by_score.each():
                slope = elements.at(i, j, by_score.with_score(i, j, S[i, j]))
                k.mul(slopes[i, j], slope, into=slopes[i, j])
        for i, j, elements in of.each():
            score = S[i, j]
            result = elements.at(i, j, of.with_score(i, j, score))
            if isinstance(result, dsl.Value):
                k.mul(result, LOG2E, into=score)
            else:
                score.set(result * LOG2E)


def _itself(value: Value) -> Value:
    return value


@dataclass(frozen=True)
class OfTile:
    """A function for a thread's scores in a tile."""

    inputs: Inputs
    emitted: Emitted
    coordinates: ScoreCoordinates

    def indices(self, i: int, j: int) -> dict[str, Callable[[], Value]]:
        """The code that computes each index of the score in row i and column j, by the index's name."""
        coordinates = self.coordinates
        return {
            "query": lambda: _query(self.inputs, coordinates.query(i)),
            "head": lambda: self.inputs.first_head + coordinates.head(i, coordinates.query(i)),
            "key": lambda: coordinates.my_first_key + coordinates.keys[j],
            "first_key": lambda: coordinates.my_first_key,
        }

    def with_score(self, i: int, j: int, score: Value) -> dict[str, Callable[[], Value]]:
        """The values of `indices`, and the score itself."""
        return {**self.indices(i, j), SCORE: functools.partial(_itself, score)}

    @property
    def elements(self) -> Elements:
        """The function for the scores of the tile, where no branch has begun."""
        return Elements(self.emitted, self.coordinates.keys)

    @marked("functions of scores: keys of a tile")
    def each(self) -> Iterator[tuple[int, int, Elements]]:
        """The rows and columns, each in a context for the code that is emitted for it. If elements are loaded
        by key, only for keys that exist.
        """
        coordinates, k = self.coordinates, self.inputs.k
        elements = self.elements
        branches = self.emitted.trace.loads_by_key
        if branches:
            for i in range(len(coordinates.rows)):
                elements.prepare(i, self.indices(i, 0))
        for j, apart in enumerate(coordinates.keys):
            # Branched over, so that the assembler does not load for all keys at once, which takes
            # more registers than there are.
            with k.when(coordinates.my_first_key < self.inputs.keys - apart) if branches else nullcontext():
                for i in range(len(coordinates.rows)):
                    yield i, j, elements


def _query(inputs: Inputs, query: Value) -> Value:
    """The index of `query` that functions get: over a cache its position among the keys."""
    return query if inputs.first_query is None else query + inputs.first_query


@dataclass(frozen=True)
class AppliedMaskMod(Applied):
    """A function that says which keys a query sees. The queries of the CTA see keys within `seen`
    only, and do not see all keys only within one of `hiding`; None if any key may be hidden. If keys
    between those that are seen are not, the queries see keys within one of `ranges` only. `indices` are
    the intervals of the batch, the head and the queries.
    """

    inputs: Inputs
    emitted: Emitted
    seen: KeyBounds = NO_BOUNDS
    hiding: list[KeyBounds] | None = None
    ranges: list[KeyBounds] | None = None
    indices: Mapping[str, Interval] = field(default_factory=dict)

    def hide(self, S: Fragment, coordinates: ScoreCoordinates) -> None:
        """See `Applied.hide`."""
        if self.hiding is None:
            self._hide(S, coordinates)
            return
        with self.inputs.k.when(self._meets(self.hiding, coordinates.first_key), uniform=True):
            self._hide(S, coordinates)

    def _meets(self, ranges: list[KeyBounds], first_key: Value) -> Value:
        """Whether the tile that begins with `first_key` has a key in one of the ranges."""
        parts: list[Value] = []
        end = first_key + self.inputs.tile
        for first, last in ranges:
            meets: list[Value] = [] if first is None else [end > first]
            meets += [] if last is None else [first_key <= last]
            parts.append(functools.reduce(operator.and_, meets))
        return functools.reduce(operator.or_, parts)

    def _hide(self, S: Fragment, coordinates: ScoreCoordinates) -> None:
        k, of = self.inputs.k, OfTile(self.inputs, self.emitted, coordinates)
        for i, j, elements in of.each():
            seen = elements.at(i, j, of.indices(i, j))
            if isinstance(seen, dsl.Value):
                k.selp(S[i, j], NEG_INF, seen, into=S[i, j])
            elif not seen:
                S[i, j].set(NEG_INF)

    def hides(self, row: Value, key: Value) -> Value | None:
        """See `Applied.hides`."""
        inputs, packing = self.inputs, self.inputs.packing
        query = row if packing is None else packing.query(row)
        seen = self.emitted.value(
            {
                "query": lambda: _query(inputs, query),
                "head": lambda: (
                    inputs.first_head if packing is None else inputs.first_head + packing.head(row)
                ),
                "key": lambda: key,
            }
        )
        if isinstance(seen, dsl.Value):
            return ~seen
        return None if seen else key == key

    @property
    def narrows(self) -> bool:
        """See `Applied.narrows`."""
        trace = self.emitted.trace
        return bounds_keys(trace) or shows_tiles(trace) or has_gaps(trace)

    def of_queries(self, first_query: Value, last_query: Value) -> AppliedMaskMod:
        """See `Applied.of_queries`."""
        if not self.narrows:
            return self
        inputs, trace, head = self.inputs, self.emitted.trace, self.inputs.first_head
        indices = {
            "batch": Interval(inputs.batch, inputs.batch),
            "head": Interval(head, head if inputs.packing is None else head + (inputs.packing.group - 1)),
            "query": Interval(_query(inputs, first_query), _query(inputs, last_query)),
        }
        call = OfCta(inputs.k, indices, self.emitted.arrays)
        return replace(
            self,
            seen=key_bounds(trace, call) if bounds_keys(trace) else NO_BOUNDS,
            hiding=hiding_bounds(trace, call) if shows_tiles(trace) else None,
            ranges=seen_ranges(trace, call) if has_gaps(trace) else None,
            indices=indices,
        )

    @property
    def has_gaps(self) -> bool:
        """See `Applied.has_gaps`."""
        return has_gaps(self.emitted.trace)

    def sees_tile(self, first_key: Value) -> Value | None:
        """See `Applied.sees_tile`."""
        if not self.has_gaps:
            return None
        keys = Interval(first_key, first_key + (self.inputs.tile - 1))
        call = OfCta(self.inputs.k, {**self.indices, "key": keys}, self.emitted.arrays)
        parts = [] if self.ranges is None else [self._meets(self.ranges, first_key)]
        parts += [call.flag(array, indices) for array, indices in block_flags(self.emitted.trace, call)]
        return functools.reduce(operator.and_, parts)

    @property
    def key_bounds(self) -> KeyBounds:
        """See `Applied.key_bounds`."""
        return self.seen
