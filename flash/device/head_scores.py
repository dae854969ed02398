"""The inputs of the features of scores for one head, from a kernel's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

from flash.device.mask import Mask
from flash.device.parameters import ScoreArray
from flash.mods.emit import AuxElements
from flash.mods.trace import AuxArray
from flash.operands.declared import LAST_KEYS
from flash.operands.dtypes import F32, DType
from flash.problem.features import Features
from flash.scores.feature import Applied, ScoreFeature
from flash.scores.heads import PackedNumbers, Packing
from flash.scores.score_coordinates import ScorePlane
from flash.scores.window import Reach
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.records import dataclass
from ptxgen.types import f32, s32


class ScoredKernel(Protocol):
    """The part of a kernel's configuration that concerns its scores."""

    @property
    def causal(self) -> str:
        """The kind of causal mask: "bottom_right", "top_left", or the empty string for none."""

    @property
    def dtype(self) -> DType:
        """The element type of Q, K and V."""

    @property
    def features(self) -> Features:
        """The features of the attention problem that the kernel computes, such as a bias or dropout."""

    @property
    def keys_of_tile(self) -> int:
        """The number of keys in a tile, which a CTA takes at once."""

    @property
    def differentiates(self) -> bool:
        """Whether the kernel needs the derivatives of its score features, as gradient kernels do."""


class ScoreNumbers(Protocol):
    """The arguments of a launch on which scores depend: sizes, scale, scalars and arrays."""

    @property
    def seq_q(self) -> Value:
        """The number of queries of the sequence (seq_q), s32."""

    @property
    def seq_k(self) -> Value:
        """The number of keys of the sequence (seq_k), s32."""

    @property
    def scale(self) -> Value:
        """The softmax scale: the factor of products of Q and K, f32."""

    @property
    def numbers(self) -> Mapping[str, Value]:
        """The scalar arguments of the kernel's features, such as the softcap, by name."""

    @property
    def operands(self) -> Mapping[str, ScoreArray]:
        """The array arguments of the kernel's features, such as a bias, by name."""


@dataclass(frozen=True)
class HeadScores:
    """The inputs of the features for one head (`flash.scores.feature.Inputs`), from the kernel's
    arguments.
    """

    k: KernelBuilder
    config: ScoredKernel
    arguments: ScoreNumbers
    batch: Value
    head: Value  # head of Q, or of K and V if rows are packed
    nth_head: Value  # number of the head among the heads of all batch items
    packing: Packing | None
    diagonal: Value | None

    @classmethod
    def of(
        cls,
        k: KernelBuilder,
        config: ScoredKernel,
        arguments: ScoreNumbers,
        where: tuple[Value, Value, Value],
        packing: Packing | None,
    ) -> HeadScores:
        """The inputs for `where`: batch item, head, and the head's number over all items (with packing, of
        heads of K and V). Bottom-right aligns the last query with the last key, top-left the first query with
        the first key.
        """
        batch, head, of_batch = where
        diagonal = None
        if config.causal or config.features.uses_position:
            aligned = config.causal != "top_left"
            diagonal = arguments.seq_k - arguments.seq_q if aligned else k.mov(0, type=s32)
        return cls(k, config, arguments, batch, head, of_batch, packing, diagonal)

    @property
    def head_of_batch(self) -> Value:
        """The index batch * heads + head; for packed rows, with the first head of the group."""
        if self.packing is None:
            return self.nth_head
        return self.nth_head * self.packing.group

    @property
    def first_head(self) -> Value:
        """The index of the head of Q; for packed rows, of the first head of the group."""
        return self.head if self.packing is None else self.head * self.packing.group

    @property
    def keys(self) -> Value:
        """The number of keys of the sequence, s32."""
        return self.arguments.seq_k

    @property
    def tile(self) -> int:
        """The number of keys in a tile of K and V."""
        return self.config.keys_of_tile

    @property
    def first_query(self) -> Value | None:
        """The offset that functions of scores add to the index of a query: over a cache, the position of the
        first query.
        """
        return self.diagonal if self.config.features.cached else None

    def elements(self, array: AuxArray) -> AuxElements:
        """The elements of `array`, which functions of scores index."""
        of = self.arguments.operands[array.operand]
        steps = [stride * of.dtype.nbytes for stride in of.strides.values()]
        return AuxElements(of.first, steps, [self.numbers[size] - 1 for size in array.sizes])

    @property
    def scale(self) -> Value:
        """The softmax scale, f32, times the fp8 scale of K if K has one."""
        return self.arguments.scale

    @property
    def numbers(self) -> Mapping[str, Value]:
        """The scalar arguments of the launch on which scores depend, by name."""
        return self.arguments.numbers

    @property
    def differentiates(self) -> bool:
        """Whether the kernel needs the derivatives of its features by the scores."""
        return self.config.differentiates

    @property
    def rounds_once(self) -> bool:
        """Whether features divide with one rounding (`div.rn`), not by an approximation."""
        return self.config.dtype is F32

    def plane(self, name: str) -> ScorePlane:
        """The elements of a feature's array, such as a bias, for the scores of this head."""
        array, arguments = self.arguments.operands[name], self.arguments
        columns, begin = arguments.seq_k, None
        if LAST_KEYS in array.strides:
            columns = arguments.numbers[LAST_KEYS].as_(s32)
            begin = arguments.seq_k - columns
        extent = self.k, self.batch, self.head, arguments.seq_q, columns, begin
        if self.packing is None:
            return array.plane(*extent)
        return array.packed_plane(*extent, self.packing)

    def of_head(self, name: str) -> Value | PackedNumbers:
        """The element of an f32 operand for this head; for packed rows, those of all heads."""
        array = self.arguments.operands[name]
        if self.packing is None:
            return self.k.load(Pointer(array.head(self.k, self.batch, self.head), "global", f32))
        first = array.head(self.k, self.batch, self.head * self.packing.group)
        step_bytes = array.strides["heads"] * array.dtype.nbytes
        return PackedNumbers(first, step_bytes, self.packing)

    @cached_property
    def _planes(self) -> dict[ScoreFeature, Applied]:
        """The features that may hide any key, the last one first."""
        hiding = [feature for feature in self.config.features.scores if feature.hides]
        return {feature: feature.applied(self) for feature in reversed(hiding)}

    def mask(self) -> Mask:
        """The mask of this head: which keys each query sees."""
        return Mask(self.reach(), tuple(self._planes.values()))

    def reach(self) -> Reach:
        """The range of keys that each query sees by its position."""
        left, right = (self.numbers.get(f"window_{side}") for side in ("left", "right"))
        return Reach(self.diagonal, bool(self.config.causal), left, right, self.arguments.seq_k)

    def features(self) -> list[tuple[ScoreFeature, Applied]]:
        """The features of the kernel in their order, applied to this head."""
        return [
            (feature, self._planes[feature] if feature.hides else feature.applied(self))
            for feature in self.config.features.scores
        ]
