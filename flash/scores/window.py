"""The keys that a query sees by its position: causality, and a window of keys before and after."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypedDict

import numpy as np

from flash.operands.declared import MAX_WINDOWED_SEQ, Number
from flash.operands.dtype_names import Causal
from flash.scores.feature import NEG_INF, Array, Block, Scored, ScoreFeature, TypeOf
from flash.scores.options import number
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.arguments import in_numbers, integer
from ptxgen.dsl.source_regions import marked
from ptxgen.errors import ConfigError, shown
from ptxgen.records import dataclass
from ptxgen.types import s32

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value

Sides = tuple[int | None, int | None] | None

_SIDES: Final = 2  # sides of a window
_UNLIMITED: Final = -1  # a side of a window, as flash-attn writes it
_MOST_PARTS: Final = 3  # parts of a split window text: two sides, and an empty one that is appended


def causal_offset(causal: Causal, seq_q: int, seq_k: int) -> int:
    """`offset` such that query i sees the keys j <= i + offset.

    `True` and `"bottom_right"` let the last query see every key, as flash-attn and decoding with
    a KV cache do; `"top_left"` lets query i see keys 0 to i, as PyTorch SDPA's `is_causal` does;
    `False` lets every query see every key. Raises ConfigError for any other word.
    """
    if causal is False:
        return seq_k
    if causal is True or causal == "bottom_right":
        return seq_k - seq_q
    if causal == "top_left":
        return 0
    raise ConfigError(
        f"attention: causal must be False, True, 'bottom_right' or 'top_left', got {shown(causal)}"
    )


def position_offset(causal: Causal, seq_q: int, seq_k: int) -> int:
    """The offset such that query i is at the position of key i + offset: the last query is at the
    last key, or with "top_left" the first query at the first key. Raises ConfigError for an unknown
    word.
    """
    causal_offset(causal, seq_q, seq_k)
    return 0 if causal == "top_left" else seq_k - seq_q


def key_limits(is_causal: bool, window: Sides) -> tuple[int | None, int | None]:
    """How many keys before its own position, and after it, a query sees; None for all."""
    before, after = window or (None, None)
    return before, 0 if is_causal else after


def _limits_of(of: Scored) -> tuple[int | None, int | None]:
    return key_limits(of.is_causal, of.arguments.get("window"))


@functools.lru_cache(maxsize=4)
def _hidden(first: int, sizes: tuple[int, int], before: int | None, after: int | None) -> Array:
    """[1, queries, keys]: True where a query does not see a key; the first query is at the position of key
    `first`, counted from the first key. Results are cached: the blocks on a diagonal are alike.
    """
    queries, keys = sizes
    position, key = np.arange(first, first + queries)[:, None], np.arange(keys)
    limits = [] if before is None else [key < position - before]
    limits += [] if after is None else [key > position + after]
    hidden: Array = limits[0] if len(limits) == 1 else limits[0] | limits[1]
    hidden.flags.writeable = False
    return hidden[None]


class WindowArguments(TypedDict, total=False):
    """window: (left, right), how many keys before and after its own position a query sees; None or
    -1 for no limit on that side.
    """

    window: Sides


def sides_of(caller: str, window: object) -> tuple[int | None, int | None]:
    """The keys that a query sees to its left and right, None for no limit; both None for no window. Raises
    `ConfigError`, in the name of `caller`, for anything but two numbers of keys of any class, None or -1.
    """
    pair = (None, None) if window is None else in_numbers(window)
    sides = pair if isinstance(pair, tuple | list) else ()
    counts = [_UNLIMITED if side is None else integer(side, _UNLIMITED, MAX_WINDOWED_SEQ) for side in sides]
    if len(counts) != _SIDES or None in counts:
        raise ConfigError(
            f"{caller}: window must be (left, right), each a number of keys from 0 to {MAX_WINDOWED_SEQ}, or "
            f"None or -1 for no limit, got {shown(window)}"
        )
    left, right = (None if count == _UNLIMITED else count for count in counts)
    return left, right


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """window: (left, right), how many keys before and after its own position a query sees; None or
    -1 for no limit on that side. Positions are aligned as `causal` says; if it is False, the last
    query is at the last key. With causality no later key is seen anyway.
    """

    window: Sides = None


class _Unhashable(tuple[Any, ...]):
    """A tuple that cannot be a key of a cache."""

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Window(ScoreFeature):
    """The sides on which a kernel limits the keys; the limits are scalars of the launch."""

    left: bool
    right: bool

    setting: ClassVar = "window"
    argument: ClassVar = "window"
    example: ClassVar = "window=(128, 0)"
    schema: ClassVar = "SymInt[]?"
    uses_position: ClassVar = True

    @classmethod
    def plain(cls, argument: Any) -> list[int] | None:
        """See `AdapterFace.plain`: lists of numbers have no None."""
        return None if argument is None else [_UNLIMITED if side is None else side for side in argument]

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> Sides:
        """The window without the side that causality hides anyway; None if it hides nothing
        else.
        """
        left, right = sides_of("AttentionConfig", value)
        right = None if of_config.causal else right
        return None if (left, right) == (None, None) else (left, right)

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> Any:
        """The window; without a hash if sides are of another class than int. (1.0, True) is equal to (1, 1),
        and must not get the kernel that a call with (1, 1) has made.
        """
        sides = super().setting_of_call(arguments, type_of)
        if isinstance(sides, tuple) and not all(side is None or type(side) is int for side in sides):
            return _Unhashable(sides)
        return sides

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        if config.window is None:
            return None
        left, right = config.window
        return cls(left is not None, right is not None)

    @classmethod
    def values(cls, config: Any) -> dict[str, int | float]:
        """The values of the scalars that limit the window on its two sides."""
        sides = zip(("window_left", "window_right"), config.window or (None, None), strict=True)
        return {name: count for name, count in sides if count is not None}

    @property
    def word(self) -> str:
        """The words in the kernel's name for the sides on which the window is limited."""
        sides = {"left": self.left, "right": self.right}
        return "_".join(word for word, there in sides.items() if there)

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """The declarations of the kernel's scalars that limit the window on its two sides."""
        return tuple(
            Number(
                f"window_{side}",
                s32,
                f"query i sees no key {'below' if sign == '-' else 'above'} i + offset {sign} "
                f"window_{side}; offset is seq_k - seq_q, or 0 with top_left causality",
                (0, MAX_WINDOWED_SEQ),
            )
            for side, there, sign in (("left", self.left, "-"), ("right", self.right, "+"))
            if there
        )

    @staticmethod
    def parsed(text: str) -> tuple[Any, Any]:
        """The sides from the command line."""
        sides = [None if part == "" else number(part) for part in (*text.split(","), "")]
        if len(sides) > _MOST_PARTS or sides[:2] == [None, None]:
            raise argparse.ArgumentTypeError(f"must be LEFT,RIGHT such as 128,0, got {text!r}")
        return sides[0], sides[1]

    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--window": {
            "type": parsed,
            "metavar": "LEFT,RIGHT",
            "help": "keys before and behind its own position that a query sees, nothing for no "
            "limit: 128,0 or 128, or ,4; 128 alone is 128,",
        }
    }

    @classmethod
    def is_asked(cls, arguments: Mapping[str, Any]) -> bool:
        """True: causality may hide keys without a window."""
        return True

    @classmethod
    def keys_seen(cls, queries: slice, of: Scored) -> range:
        """See `ScoreFeature.keys_seen`."""
        before, after = _limits_of(of)
        seq_k = of.shape[3]
        first = 0 if before is None else queries.start + of.offset - before
        last = seq_k if after is None else queries.stop + of.offset + after
        begin, end = max(first, 0), min(max(last, 0), seq_k)
        return range(begin, max(end, begin))

    @classmethod
    def hidden_in(cls, block: Block) -> Array | None:
        """See `ScoreFeature.hidden_in`."""
        before, after = _limits_of(block.of)
        nearest = block.queries.start + block.of.offset
        farthest = block.queries.stop - 1 + block.of.offset
        if (before is None or farthest - block.keys.start <= before) and (
            after is None or block.keys.stop - 1 - nearest <= after
        ):
            return None
        return _hidden(nearest - block.keys.start, block.sizes, before, after)

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        seq_q, seq_k = of.shape[2:]
        before, after = _limits_of(of)
        distance = np.arange(seq_q)[:, None] + of.offset - np.arange(seq_k)
        visible: Array = np.ones((seq_q, seq_k), bool)
        if before is not None:
            visible &= distance <= before
        if after is not None:
            visible &= -distance <= after
        return visible


@dataclass(frozen=True)
class Reach:
    """Query `row` sees no keys but those from row + diagonal - left to row + diagonal + right that
    exist. A `left` or `right` of None is no limit; `is_causal` alone is a `right` of 0. `diagonal`
    is None where nothing depends on positions.

    All values are s32, so that rows before the first key (seq_q > seq_k, bottom-right) see nothing
    instead of wrapping round.
    """

    diagonal: Value | None
    is_causal: bool
    left: Value | None
    right: Value | None
    seq_k: Value

    @property
    def is_limited(self) -> bool:
        """Whether the keys that a query sees depend on its position."""
        return self.is_causal or self.left is not None or self.right is not None

    @marked("window: last key")
    def last_key(self, k: KernelBuilder, row: Value) -> Value:
        """The last key that a row may see; -1 or less if it sees none."""
        last = self.seq_k - 1
        if self.diagonal is None or not (self.is_causal or self.right is not None):
            return last
        reach = row + self.diagonal
        return k.min(reach if self.right is None else reach + self.right, last)

    def first_key(self, k: KernelBuilder, row: Value) -> Value:
        """The first key that a row may see; seq_k or more if it sees none."""
        if self.diagonal is None or self.left is None:
            return k.mov(0, type=s32)
        return k.max(row + self.diagonal - self.left, 0)

    def queries(
        self, k: KernelBuilder, first_key: Value, last_key: Value, seq_q: Value
    ) -> tuple[Value, Value]:
        """The first query and the end, exclusive, of a range of the `seq_q` queries outside of which no query
        sees a key from `first_key` to `last_key`.
        """
        first, end = k.mov(0, type=s32), seq_q
        if self.diagonal is not None and (self.is_causal or self.right is not None):
            nearest = first_key - self.diagonal
            first = k.max(nearest if self.right is None else nearest - self.right, 0)
        if self.diagonal is not None and self.left is not None:
            farthest = last_key - self.diagonal + self.left
            end = k.max(k.min(farthest + 1, seq_q), 0)
        return k.min(first, end), end

    def end_tile(self, k: KernelBuilder, last_row: Value, tile: int) -> Value:
        """The end (exclusive) of the tiles of which the rows up to `last_row` see a key."""
        return k.divide_up(self.end_key(k, last_row), tile)

    @marked("window: end of keys")
    def end_key(self, k: KernelBuilder, last_row: Value) -> Value:
        """The end (exclusive) of the keys that the rows up to `last_row` may see."""
        return k.max(self.last_key(k, last_row) + 1, 0)

    @marked("window: unseen keys")
    def hide(self, k: KernelBuilder, S: Fragment, coordinates: ScoreCoordinates, *, in_front: bool) -> None:
        """Set this thread's scores of unseen keys to -inf. `in_front` says that all rows see all
        keys of the tile except those before their first key.
        """
        first_key, keys = coordinates.my_first_key, coordinates.keys
        for i, scores in enumerate(S):
            if not in_front:
                # Keys at this distance or nearer are seen.
                reach = self.last_key(k, coordinates.query(i)) - first_key
                for key, score in zip(keys, scores, strict=True):
                    with k.only_if(reach < key):
                        score.set(NEG_INF)
            if self.left is not None:
                start = self.first_key(k, coordinates.query(i)) - first_key
                for key, score in zip(keys, scores, strict=True):
                    with k.only_if(start > key):
                        score.set(NEG_INF)
