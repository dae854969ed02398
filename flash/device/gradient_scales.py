"""Scales of Q, K, V and dO of fp8 in the kernels of their gradients: of a head, or of blocks of rows
(`AttentionConfig.scale_block`). The 64 rows that a warpgroup owns have one scale, and so have those of a tile
that it walks over. The scales of Q and K are part of that of scores, those of V and dO multiply dP. The
factors of the products that sum gradients have been multiplied by theirs
(`flash/kernels/widened_rows.py`).
"""

from __future__ import annotations

from flash.device.gradient_parts import GradientParameters
from flash.device.gradient_scores import ScoreGradients
from flash.problem.features import GRADIENT_SCALE, SCALES
from flash.problem.gradients import KEYS, GradientConfig
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.types import u32

_OF_QUERIES = (SCALES[0], GRADIENT_SCALE)  # of a factor of scores, and of one of dP
_OF_KEYS = SCALES[1:]


class GradientScales:
    """The scales of the rows that a warpgroup owns, from `first_row` on, and of the tiles of the others.
    `where` are the batch item and the heads of Q and of K and V.
    """

    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        of: GradientParameters,
        where: tuple[Value, Value, Value],
        first_row: Value,
    ) -> None:
        self._k, self._of = k, of
        self._block = config.features.scale_block
        by_keys = config.owner == KEYS
        self._walked = not by_keys
        owned = self._load(where, first_row, of_keys=by_keys)
        if not self._block:
            others = self._load(where, first_row, of_keys=self._walked)
            owned = [a * b for a, b in zip(owned, others, strict=True)]
        self._owned = owned

    def tile(
        self, gradients: ScoreGradients, where: tuple[Value, Value, Value], first_row: Value
    ) -> ScoreGradients:
        """The gradients of scores with the tile of other rows that begins with `first_row`."""
        scores, products = self._owned
        if self._block:
            others = self._load(where, first_row, of_keys=self._walked)
            scores, products = scores * others[0], products * others[1]
        return gradients.scaled(scores, products)

    def _load(self, where: tuple[Value, Value, Value], row: Value, *, of_keys: bool) -> list[Value]:
        """The fp8 scales, f32, for row `row` of K and V, or of Q and dO."""
        k, (batch, head, kv_head) = self._k, where
        arrays = [self._of.operands[name] for name in (_OF_KEYS if of_keys else _OF_QUERIES)]
        if not self._block:
            return [array.of_sequence(k, batch, kv_head) for array in arrays]
        rows, head = (self._of.seq_k, kv_head) if of_keys else (self._of.seq_q, head)
        # A warpgroup may own rows after the last one. Of a tile the minimum states for the proof that its
        # block exists.
        block = k.min(row.as_(u32), (rows - 1).as_(u32)) // self._block
        return [array.of_sequence(k, batch, head, block) for array in arrays]
