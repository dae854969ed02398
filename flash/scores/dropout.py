"""Dropout: weights are set to 0 with a probability, by random numbers that are the same on every
backend and for all tiles (`flash/scores/philox.py`); the others are divided by the probability to
be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

import numpy as np

from flash.operands.declared import Number
from flash.scores.feature import Applied, Array, Block, Inputs, Scored, ScoreFeature, TypeOf
from flash.scores.options import is_scale, number
from flash.scores.philox import KEYS_PER_BLOCK, ROUNDS, STEPS, keep_mask, threshold
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.arguments import in_numbers
from ptxgen.dsl.source_regions import marked
from ptxgen.errors import ConfigError, shown
from ptxgen.records import dataclass
from ptxgen.types import f32, u32, u64

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value

_HALF_BITS: Final = 16
_HALF_BLOCK: Final = KEYS_PER_BLOCK // 2
OCTET: Final = 8  # keys whose random numbers are the same word of different Philox calls


class DropoutSeed(TypedDict, total=False):
    """dropout_seed: from 0 to 2**64 - 1, which decides which weights dropout sets to 0."""

    dropout_seed: int | None


class DropoutArguments(DropoutSeed, total=False):
    """dropout: the probability that a weight is set to 0."""

    dropout: float


@dataclass(frozen=True, kw_only=True)
class DropoutSettings:
    """dropout: the probability, from 0 to less than 1 and in steps of 1/65536, that a weight is set
    to 0; the others are divided by the probability to be kept. Launches give `dropout_seed`.
    """

    dropout: float = 0.0


@dataclass(frozen=True)
class Dropout(ScoreFeature):
    """The dropout of a kernel; probability and seed are scalars of the launch."""

    setting: ClassVar = "dropout"
    argument: ClassVar = "dropout"
    example: ClassVar = "dropout=0.1"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--dropout": {
            "type": number,
            "metavar": "RATE",
            "default": 0.0,
            "help": "weights of keys that are dropped, by a seed of the launch",
        }
    }
    default: ClassVar = 0.0
    schema: ClassVar = "float"
    in_transformers: ClassVar = "dropout"
    uses_query: ClassVar = True
    changes_weights: ClassVar = True
    in_cache: ClassVar = False
    registers: ClassVar = 24
    follows_grid: ClassVar = True

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> float:
        """See `ScoreFeature.normalized`."""
        value = in_numbers(value)
        if not is_scale(value) or not 0 <= value < 1:
            raise ConfigError(
                f"AttentionConfig: dropout must be a probability from 0 to less than 1, got {shown(value)}"
            )
        return float(value)

    @classmethod
    def values(cls, config: Any) -> dict[str, int | float]:
        """The threshold of the random numbers, from the probability; the seed is an argument of the call."""
        return {"dropout_keep": threshold(config.dropout)} if config.dropout else {}

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> Any:
        """The probability in the arguments of a call."""
        return in_numbers(arguments.get("dropout", 0.0))

    @classmethod
    def is_asked(cls, arguments: Mapping[str, Any]) -> bool:
        """Whether the probability is not 0."""
        return bool(arguments.get("dropout"))

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """The declarations of the threshold and the seed."""
        return (
            Number(
                "dropout_keep",
                u32,
                "of 65536, how many of the random numbers keep a weight, 1 to 65535; what is "
                "kept is multiplied by 65536 / dropout_keep",
            ),
            Number("dropout_seed", u64, "key of the random numbers (Philox4x32-7)"),
        )

    def applied(self, inputs: Inputs) -> Applied:
        """The dropout in a kernel."""
        keep, seed = inputs.numbers["dropout_keep"], inputs.numbers["dropout_seed"]
        return AppliedDropout(inputs.k, keep, seed, inputs.head_of_batch)

    @classmethod
    def drop_block(cls, weight: Array, block: Block) -> None:
        """See `ScoreFeature.drop_block`."""
        of, heads = block.of, np.arange(block.heads.start, block.heads.stop)
        numbers = (of.first_batch + block.batch) * of.shape[1] + heads
        queries = np.arange(block.queries.start, block.queries.stop)
        probability, seed = of.arguments["dropout"], of.arguments["dropout_seed"]
        keep = keep_mask(probability, seed, numbers, queries, block.key_indices)
        weight *= np.where(keep, of.dtype.type(STEPS / threshold(probability)), 0)

    @classmethod
    def weight_factor(cls, of: Scored) -> Array:
        """See `ScoreFeature.weight_factor`."""
        probability, seed = of.arguments["dropout"], of.arguments["dropout_seed"]
        batch, heads, *sizes = of.shape
        numbers = np.arange(batch * heads).reshape(batch, heads) + of.first_batch * heads
        keep = [keep_mask(probability, seed, each, *map(np.arange, sizes)) for each in numbers]
        return np.where(np.stack(keep), STEPS / threshold(probability), 0.0)


@dataclass(frozen=True)
class AppliedDropout(Applied):
    """The weights of one head that are kept are those whose random number, of 65536, is below
    `threshold`. `head` is as `Inputs.head_of_batch`.
    """

    k: KernelBuilder
    threshold: Value  # u32
    seed: Value  # u64
    head: Value

    @cached_property
    def output_factor(self) -> Value:
        """The factor of the kept weights: the inverse of the probability that a weight is kept."""
        k = self.k
        return k.rcp_rn(k.cvt(self.threshold, rnd="rn", dtype=f32)) * float(STEPS)

    @marked("dropout: dropped weights")
    def drop(
        self, P: Fragment, coordinates: ScoreCoordinates, also: Callable[[int, int], None] | None = None
    ) -> None:
        """Set the weights that are not kept to 0. A thread's keys are `coordinates.lane` plus distances that
        have no bit in common with it; tiles begin at multiples of 16.
        """
        k = self.k
        lane, half = coordinates.lane, coordinates.lane & 1
        limit = self.threshold << _HALF_BITS
        first_block = (coordinates.first_key >> (KEYS_PER_BLOCK.bit_length() - 1)).as_(u32)
        # The octet, within its block of 32 keys, of the lane's key at distance 0; None is octet 0.
        octet = None
        if not coordinates.begins_block:
            octet = ((coordinates.first_key.as_(u32) + lane) >> 3) & 3
        pair = (lane & (OCTET - 1)) >> 1
        # Of a tile that begins in the middle of a block, the second half of 32 keys is in the next one.
        begins_inside = (coordinates.first_key & _HALF_BLOCK) != 0 if coordinates.crosses_blocks else None
        for i in range(len(coordinates.rows)):
            query = coordinates.query(i)
            head = self.head if coordinates.packing is None else self.head + coordinates.head(i, query)
            row = _RowWords(self, query, head, first_block, pair, begins_inside)
            for j, key in enumerate(coordinates.keys):
                rest = key % KEYS_PER_BLOCK
                word = self._pick(row.words(*divmod(key, KEYS_PER_BLOCK)), octet, rest // OCTET)
                upper = (half + rest % 2) * _HALF_BITS
                number = (word >> upper) << _HALF_BITS
                with k.only_if(number >= limit):
                    if also is not None:
                        also(i, j)
                    P[i, j].set(0.0)

    @marked("dropout: octet")
    def _pick(self, words: list[Value], octet: Value | None, further: int) -> Value:
        """Word (octet + further) % 4 of four words."""
        k = self.k
        if octet is None:
            return words[further]
        one, two = (octet & 1) != 0, (octet & 2) != 0
        a, b, c, d = (words[(further + n) % 4] for n in range(4))
        return k.selp(k.selp(d, c, one), k.selp(b, a, one), two)

    def call(self, at: Value, query: Value, head: Value) -> list[Value]:
        """The four words that Philox makes of the counter (at, query, head, 0)."""
        k = self.k
        words = [at, query.as_(u32), head.as_(u32), k.mov(0, type=u32)]
        key = [k.cvt(self.seed, dtype=u32), k.cvt(self.seed >> 32, dtype=u32)]
        return list(k.philox(words, key, rounds=ROUNDS))


@dataclass(frozen=True)
class _RowWords:
    """The words that Philox makes for the keys of one query, each computed where it is first asked for.

    `first_block` is the block of 32 keys with the first key of the tile, u32, and `pair` that of a lane's
    key at distance 0 in its octet, u32. `begins_inside` says whether the tile begins in the middle of that
    block; None if no key reaches the next block because of that.
    """

    dropout: AppliedDropout
    query: Value
    head: Value
    first_block: Value
    pair: Value
    begins_inside: Value | None
    _known: dict[tuple[int, int, bool], list[Value]] = field(init=False, default_factory=dict)

    def words(self, block: int, rest: int) -> list[Value]:
        """The four words of the key at distance 32 * `block` + `rest`, counted from the tile's first."""
        return self._of(block, rest % OCTET // 2, self.begins_inside is not None and rest >= _HALF_BLOCK)

    def _of(self, block: int, pairs: int, crosses: bool) -> list[Value]:
        """The words of block `block`, counted from the first; if a key `crosses` into the next block because
        the tile begins inside one, of that next block where it does.
        """
        words = self._known.get((block, pairs, crosses))
        if words is None:
            words = self._crossing(block, pairs) if crosses else self._call(block, pairs)
            self._known[block, pairs, crosses] = words
        return words

    def _crossing(self, block: int, pairs: int) -> list[Value]:
        assert self.begins_inside is not None
        k, inside = self.dropout.k, self.begins_inside
        words = zip(self._of(block + 1, pairs, False), self._of(block, pairs, False), strict=True)
        return [k.selp(following, current, inside) for following, current in words]

    def _call(self, block: int, pairs: int) -> list[Value]:
        return self.dropout.call((self.first_block + block) * 4 + (self.pair + pairs), self.query, self.head)
