"""The features of a call, applied in order to blocks of scores and weights on the `cpu` backend."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.mods.elements import differentiable
from flash.mods.record import SCORE_MOD
from flash.operands.declared import PER_SCORE
from flash.operands.dtype_names import Causal
from flash.scores.feature import Block, Scored, ScoreFeature, summed_to
from flash.scores.features import asked, scored
from flash.scores.mods import ScoreMod
from flash.scores.window import Window, position_offset

Array = NDArray[Any]
_PLAIN: Final = (type(None), bool, int, float)
Saved = dict[type[ScoreFeature], Array]  # the blocks of scores that features save for their derivatives


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """The rules of a call by which scaled products become scores and weights, and keys are hidden."""

    of: Scored
    features: Sequence[type[ScoreFeature]]
    changing: Sequence[type[ScoreFeature]]  # those that change scores
    hiding: Sequence[type[ScoreFeature]]  # those that hide keys
    dropping: Sequence[type[ScoreFeature]]  # those that change weights
    sinking: Sequence[type[ScoreFeature]]  # those that give rows a score before any key

    @classmethod
    def asked_by(cls, of: Scored) -> ScoreRules:
        """The rules for the features that the arguments of a call ask for."""
        features = tuple(asked(of.arguments))
        return cls(of, features, *_parts_of(features))

    def seen_by_any(self, queries: slice) -> range:
        """The keys that some of these queries may see."""
        keys = range(self.of.shape[3])
        for feature in self.features:
            seen = feature.keys_seen(queries, self.of)
            start = max(keys.start, seen.start)
            keys = range(start, max(start, min(keys.stop, seen.stop)))
        return keys

    def leave_alone(self, queries: slice) -> bool:
        """Whether these queries see the same keys, and nothing changes their scores or weights."""
        if self.changing or self.drops or self.hiding != (Window,):
            return False
        return self.see_the_same(queries)

    def see_the_same(self, queries: slice) -> bool:
        """Whether each of these queries may see the keys that some of them may see."""
        if queries.stop - queries.start == 1:
            return True
        first, last = (slice(n, n + 1) for n in (queries.start, queries.stop - 1))
        return self.seen_by_any(first) == self.seen_by_any(last)

    def apply(self, score: Array, block: Block, saved: Saved | None = None) -> None:
        """Change a block of scaled products, [heads, queries, keys], into scores. The blocks that `lead_back`
        needs go into `saved`.
        """
        for feature in self.changing:
            if saved is not None and feature.keeps == "before":
                saved[feature] = score.copy()
            feature.change_block(score, block)
            if saved is not None and feature.keeps == "after":
                saved[feature] = score.copy()

    def lead_back(self, dscore: Array, saved: Saved, block: Block, sums: Mapping[str, Array]) -> None:
        """Change the gradient of a block of scores into that of scaled products. The block's terms of the
        gradients of arrays are added to `sums`, by the names of their arguments.
        """
        for feature in reversed(self.features):
            if feature.argument in sums:
                part = feature.array_gradient_block(dscore, block)
                if part is not None:
                    _add(sums[feature.argument], part, feature, block)
            if feature is ScoreMod:
                ScoreMod.add_element_gradients(sums, dscore, saved.get(feature), self.of, block)
            feature.gradient_block(dscore, saved.get(feature), block)

    def lead_back_to_sinks(self, lse: Array, delta: Array, block: Block, sums: Mapping[str, Array]) -> None:
        """Add to `sums` the terms of the gradients of sinks of a block's rows; `lse` and `delta`
        are [heads, queries].
        """
        for feature in self.features:
            if feature.argument in sums:
                part = feature.sinks_gradient(lse, delta, block.batch, block.heads, self.of)
                if part is not None:
                    _add(sums[feature.argument], part, feature, block)

    def zeros_for(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Zeros for the gradients of these arrays of features, by the names of their arguments,
        with all axes of their operands; f64 for arrays of `aux`.
        """
        zeros = {name: np.zeros(arrays[name].shape) for name in self._elements if name in arrays}
        for feature in self.features:
            if feature.argument in arrays:
                shape = arrays[feature.argument].shape
                wide = (1,) * (len(feature.axes) - len(shape)) + shape
                zeros[feature.argument] = np.zeros(wide, self.of.dtype)
        return zeros

    def shared_axes(self, sums: Mapping[str, Array]) -> set[str]:
        """The axes of scores along which an element of one of `sums` has several parts."""
        if not sums.keys().isdisjoint(self._elements):
            return set(PER_SCORE)
        return {
            axis
            for feature in self.features
            if feature.argument in sums
            for axis in PER_SCORE
            if _extent(sums[feature.argument], feature, axis) == 1
        }

    @property
    def _elements(self) -> list[str]:
        """The names of the operands of the arrays of `aux` that have gradients."""
        return [array.operand for array in differentiable(self.of.arguments.get(SCORE_MOD))]

    def hidden(self, block: Block) -> Array | None:
        """A mask [heads or 1, queries, keys], True where a query does not see a key; None if all keys are
        seen.
        """
        hidden = None
        for feature in self.hiding:
            part = feature.hidden_in(block)
            if part is not None:
                hidden = part if hidden is None else hidden | part
        return hidden

    def drop(self, weight: Array, block: Block) -> None:
        """Apply dropout to a block of weights, whose sums are computed before."""
        for feature in self.dropping:
            feature.drop_block(weight, block)

    @property
    def drops(self) -> bool:
        """Whether `drop` does anything."""
        return bool(self.dropping)

    def sinks(self, batch: int, heads: slice, rows: int) -> Array | None:
        """The score that each of `rows` rows of these heads has before any key, head by head."""
        for feature in self.sinking:
            sinks = feature.sinks(batch, heads, self.of)
            if sinks is not None:
                return np.repeat(sinks, rows // len(sinks))
        return None


def rules_of(
    shape: tuple[int, int, int, int],
    causal: Causal,
    dtype: np.dtype[Any],
    first_batch: int,
    first_query: int,
    arguments: Mapping[str, Any],
) -> ScoreRules:
    """The rules for a call; see `flash.scores.features.scored`."""
    items = tuple(arguments.items())
    types = tuple(map(type, arguments.values()))
    if _are_numbers(types):
        return _rules_of_plain(shape, causal, dtype, first_batch, first_query, items, types)
    if all(map(_is_plain, arguments.values())):
        return _rules_of_plain(shape, causal, dtype, first_batch, first_query, items, repr(items))
    return ScoreRules.asked_by(scored(shape, causal, dtype, first_batch, arguments, first_query))


@functools.cache
def _are_numbers(types: tuple[type, ...]) -> bool:
    """Whether these are types of immutable numbers, or of None."""
    return set(types) <= set(_PLAIN)


def _is_plain(value: object) -> bool:
    """Whether an argument consists of immutable numbers, so that it can be a key of a cache."""
    return isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value)
    )


@functools.lru_cache(maxsize=64)  # a step of decoding asks for the same in each layer
def _rules_of_plain(
    shape: tuple[int, int, int, int],
    causal: Causal,
    dtype: np.dtype[Any],
    first_batch: int,
    first_query: int,
    arguments: tuple[tuple[str, Any], ...],
    words: object,  # distinguishes 1 from True and 1.0, which are equal
) -> ScoreRules:
    rules = _rules_of_any_shape(causal, dtype, arguments, words)
    of_call: dict[str, Any] = {"shape": shape, "first_batch": first_batch, "first_query": first_query}
    return replace(rules, of=replace(rules.of, offset=position_offset(causal, *shape[2:]), **of_call))


@functools.lru_cache(maxsize=64)  # each token of a sequence asks for another shape
def _rules_of_any_shape(
    causal: Causal,
    dtype: np.dtype[Any],
    arguments: tuple[tuple[str, Any], ...],
    words: object,  # noqa: ARG001  # see `_rules_of_plain`
) -> ScoreRules:
    return ScoreRules.asked_by(scored((0, 0, 0, 0), causal, dtype, 0, dict(arguments)))


@functools.cache
def _parts_of(features: tuple[type[ScoreFeature], ...]) -> list[tuple[type[ScoreFeature], ...]]:
    """Four lists of features: those that change scores, hide keys, change weights, and have sinks."""
    return [_defining(method, features) for method in ("change_block", "hidden_in", "drop_block", "sinks")]


def _defining(method: str, features: Sequence[type[ScoreFeature]]) -> tuple[type[ScoreFeature], ...]:
    """The features that override `method` of `ScoreFeature`, which does nothing."""
    usual = getattr(ScoreFeature, method).__func__
    return tuple(feature for feature in features if getattr(feature, method).__func__ is not usual)


def _extent(total: Array, feature: type[ScoreFeature], axis: str) -> int:
    """The length of a feature's array along an axis of scores; 1 if it has no such axis."""
    return total.shape[feature.axes.index(axis)] if axis in feature.axes else 1


def _add(total: Array, part: Array, feature: type[ScoreFeature], block: Block) -> None:
    """Add a block's terms, `part`, to the gradient `total` of an array, summed over the axes that it
    lacks.
    """
    of_batch = slice(block.batch, block.batch + 1)
    slices = dict(zip(PER_SCORE, (of_batch, block.heads, block.queries, block.keys), strict=True))
    at = (slices[axis] if _extent(total, feature, axis) > 1 else slice(None) for axis in feature.axes)
    target = total[tuple(at)]
    target += summed_to(part[None], target.shape)
