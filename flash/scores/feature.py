"""What a feature of scores declares. Each feature is one file: its setting, command-line words, operands,
scalars, PTX, numpy and float64 with derivatives, and rounding errors. Other code loops over `SCORES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from flash.mods.emit import AuxElements
from flash.mods.reach import KeyBounds
from flash.mods.trace import AuxArray
from flash.operands.declared import PER_KEY, Number, Operand
from flash.operands.dtypes import DType
from flash.scores.adapter_face import AdapterFace
from flash.scores.heads import PackedNumbers, Packing
from flash.scores.options import flag
from flash.scores.score_coordinates import ScoreCoordinates, ScorePlane
from ptxgen.arguments import in_numbers
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value

LOG2E: Final = math.log2(math.e)  # exp(x) == exp2(x * LOG2E), and the GPU has exp2
LN2: Final = math.log(2)
NEG_INF: Final = float("-inf")
# The least f32 whose product with log2(e), in f32, is infinite: 2^128 ln 2, about 2.3587e38. A
# kernel adds scores in units of log2.
FIRST_INFINITE: Final = float.fromhex("0x1.62e43p127")
# In units of the last place of a result: the error of one f32 rounding, relative to the result.
UNIT: Final = 2.0**-24

Array = NDArray[Any]
TypeOf = Callable[[object, str], str]  # a config's name of the dtype of an array, given with a name


def as_scores(value: Array) -> Array:
    """A bias, sinks or slopes as every backend takes them: f32 or f64, where values of magnitude
    `FIRST_INFINITE` and more become infinity with their sign.
    """
    infinite = np.abs(value) >= FIRST_INFINITE
    return np.where(infinite, np.copysign(np.inf, value), value) if infinite.any() else value


def summed_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of an array of `shape`, from the `gradient` of what the array was broadcast to: the sum
    over the axes along which it was broadcast.
    """
    ahead = gradient.ndim - len(shape)
    wide = tuple(n for n in range(gradient.ndim) if n < ahead or shape[n - ahead] == 1)
    result: Array = gradient.sum(axis=wide).reshape(shape)
    return result


# ---------------------------------------------------------------------------------- in a kernel


class Inputs(Protocol):
    """The values of a kernel from which a feature is applied to one head, or to the packed rows of
    all heads that share a head of K and V.
    """

    @property
    def k(self) -> KernelBuilder:
        """The kernel that is being built."""

    @property
    def scale(self) -> Value:
        """softmax_scale, in natural units."""

    @property
    def diagonal(self) -> Value | None:
        """A query's position among the keys less its index, s32; None if no feature asks for positions."""

    @property
    def numbers(self) -> Mapping[str, Value]:
        """The scalars of the launch by name."""

    @property
    def packing(self) -> Packing | None:
        """The packing of rows of several heads; None if all rows are of one head."""

    @property
    def rounds_once(self) -> bool:
        """Whether divisions are rounded once: not in kernels that round weights to 16 bits."""

    @property
    def head_of_batch(self) -> Value:
        """batch * heads + head, s32; for packed rows that of the first head of the group."""

    @property
    def batch(self) -> Value:
        """The batch item, or the sequence of packed ones, s32."""

    @property
    def first_head(self) -> Value:
        """The head of Q, s32; for packed rows the first of the group."""

    @property
    def keys(self) -> Value:
        """The number of keys, s32."""

    @property
    def tile(self) -> int:
        """Keys of a tile."""

    @property
    def first_query(self) -> Value | None:
        """The offset, s32, of a query's index in functions of scores: its position over a cache; or None."""

    @property
    def differentiates(self) -> bool:
        """Whether the derivatives of features are needed."""

    def elements(self, array: AuxArray) -> AuxElements:
        """The elements of `array`, which functions of scores index."""

    def plane(self, name: str) -> ScorePlane:
        """The elements of an operand for the scores of this head."""

    def of_head(self, name: str) -> Value | PackedNumbers:
        """The element of an f32 operand for this head; for packed rows, those of all heads."""


class Applied:
    """A feature in a kernel, with the values that one CTA works with. A method that a feature does
    not define emits nothing.
    """

    scales: ClassVar[bool] = False  # whether `change` also multiplies products by the scale
    # Whether `change` takes scores in natural units; it gives them in units of log2, as all do.
    is_natural: ClassVar[bool] = False
    bends: ClassVar[bool] = False  # whether `change` has a derivative other than 1

    def row_gradients(self, dS: Fragment, coordinates: ScoreCoordinates) -> list[Value]:
        """The terms of this thread's gradients of scores in the gradient of the feature's number, for each
        row. Features with `gradient_of` "rows" define it; others raise TypeError.
        """
        raise TypeError(_undefined(self, "row_gradients", "rows"))

    def first_gradient(self, lse: Value, delta: Value) -> Value:
        """The term of a row with this LSE and D in the gradient of the feature's number. Features with
        `gradient_of` "first" define it; others raise TypeError.
        """
        raise TypeError(_undefined(self, "first_gradient", "first"))

    @property
    def begin(self) -> Value | None:
        """The first key that the feature may hide, s32; None if it may hide any key."""
        return None

    def times(self, factor: Value) -> Applied:
        """The feature for products that are multiplied by `factor` first."""
        return self

    def change(self, S: Fragment, coordinates: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """Change this thread's scores, in units of log2; multiply `slopes` by the derivatives."""

    def hide(self, S: Fragment, coordinates: ScoreCoordinates) -> None:
        """Set this thread's scores of hidden keys to -inf, if `change` has not."""

    def hides(self, row: Value, key: Value) -> Value | None:
        """Whether the feature hides an existing key from an existing row; None: never."""
        return None

    @property
    def narrows(self) -> bool:
        """Whether the feature can tell from the queries of a CTA which keys it hides."""
        return False

    def of_queries(self, first_query: Value, last_query: Value) -> Applied:
        """The feature for a CTA with these queries."""
        return self

    @property
    def has_gaps(self) -> bool:
        """Whether `sees_tile` may be false for a tile between tiles that are seen."""
        return False

    def sees_tile(self, first_key: Value) -> Value | None:
        """Whether some query of the CTA may see a key of the tile that begins with `first_key`; None:
        yes.
        """
        return None

    @property
    def key_bounds(self) -> KeyBounds:
        """The first and the last key that the feature lets some query of the CTA see, s32; None for
        no bound.
        """
        return KeyBounds(None, None)

    def first_logits(self, rows: Sequence[Value] | None) -> list[Value]:
        """The scores, in units of log2, of a key without a value that each row has before all
        others: one for all rows, or with packed rows one for each of `rows`.
        """
        return []

    def drop(
        self, P: Fragment, coordinates: ScoreCoordinates, also: Callable[[int, int], None] | None = None
    ) -> None:
        """Set weights of this thread, which are summed already, to 0. `also(i, j)` emits the code that runs
        before weight [i, j] is set.
        """

    @property
    def output_factor(self) -> Value | None:
        """A factor of the outputs; None: 1."""
        return None


def _undefined(applied: Applied, method: str, kind: str) -> str:
    return (
        f"{type(applied).__qualname__} must define {method}, which kernels call for a feature with "
        f"gradient_of={kind!r}"
    )


# ------------------------------------------------------------------------------------- on the host


@dataclass(frozen=True)
class Scored:
    """The scores of a call on the host: `shape` is [batch, heads, seq_q, seq_k], `dtype` is the
    type of the arithmetic. `arguments` holds the call's arguments by name, arrays broadcast to the
    axes of their operands. Query i is at the position of key i + `offset`.
    """

    shape: tuple[int, int, int, int]
    is_causal: bool
    offset: int
    dtype: np.dtype[Any]
    first_batch: int = 0  # the index that batch item 0 has for dropout and functions of scores
    first_query: int = 0  # the index that query 0 has for functions of scores
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def whole(self, feature: type[ScoreFeature]) -> Array:
        """A feature's array, in its own type: [batch, heads], or with keys as the last and queries,
        or 1, as the third axis.
        """
        return _with_queries(self.arguments[feature.argument], feature)


def _with_queries(array: Array, feature: type[ScoreFeature]) -> Array:
    """The array with an axis of queries, if it has one of keys."""
    return array[..., None, :] if feature.axes == PER_KEY else array


class Block(NamedTuple):  # a NamedTuple: a dataclass takes four times as long to make
    """A block of the scores of one batch item: [heads, queries, keys]."""

    of: Scored
    batch: int
    heads: slice
    queries: slice
    keys: slice

    def take(self, feature: type[ScoreFeature]) -> Array:
        """The part of a feature's array for this block, in its own type: [heads], or with keys as
        the last and queries, or 1, as the second axis.
        """
        part = {"seq_q": self.queries, "seq_k": self.keys}
        value = self.of.arguments[feature.argument]
        result: Array = value[self.batch, self.heads, *[part[axis] for axis in feature.axes[2:]]]
        return _with_queries(result, feature)

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of queries and keys of the block."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start

    @property
    def positions(self) -> Array:
        """The positions of the queries among the keys, [queries, 1]."""
        return (np.arange(self.queries.start, self.queries.stop) + self.of.offset)[:, None]

    @property
    def key_indices(self) -> Array:
        """The indices of the keys, [keys]."""
        return np.arange(self.keys.start, self.keys.stop)


@dataclass(frozen=True, slots=True)
class StepError:
    """The rounding error of one step of f32 scores. Errors from before the step are multiplied by
    `slope`. The step adds an error of the variance of one rounding of `rounded`, and an error
    `shared` whose relative size all keys of a row share. `adds` says whether the step is a sum.
    """

    rounded: Array
    shared: Array
    slope: Any = 1.0
    adds: bool = True


# --------------------------------------------------------------------------------------- declared


@dataclass(frozen=True)
class ScoreFeature(AdapterFace):
    """One change of scores or weights. An instance holds the settings that the text of a kernel depends on;
    the class methods are about all calls.
    """

    # The setting of `AttentionConfig`, and the argument of a call; the setting may be the argument.
    setting: ClassVar[str]
    argument: ClassVar[str]
    # The axes of its array, to which the caller's is broadcast; none if it has no array.
    axes: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str]  # the setting as a user writes it, for messages
    options: ClassVar[Mapping[str, Mapping[str, Any]]]  # of the command line, for argparse

    # Whether scores are more than products times a scale, or are compared with unscaled ones.
    changes_scores: ClassVar[bool] = False
    hides: ClassVar[bool] = False  # whether it may hide any key from any query
    uses_position: ClassVar[bool] = False  # of queries among the keys
    uses_query: ClassVar[bool] = False  # whether the rows of a CTA have to know their query
    changes_weights: ClassVar[bool] = False
    begins_softmax: ClassVar[bool] = False  # whether rows have a score before any key
    # What its array has an element for, if packed sequences cannot have such an array: "score".
    of_each: ClassVar[str] = ""
    in_cache: ClassVar[bool] = True  # whether kernels over a KV cache have it
    excludes: ClassVar[str] = ""  # the setting of a feature that it cannot be combined with
    # Registers that a kernel may need for it, by what the assembler was seen to take; those of a
    # feature with `adds_registers`, at work together with others, are added to the largest of the others.
    registers: ClassVar[int] = 0
    adds_registers: ClassVar[bool] = False
    # The block of scores on which its derivative depends: "before" or "after" it, or "".
    keeps: ClassVar[str] = ""
    is_function: ClassVar[bool] = False  # whether its setting is the trace of a user's function
    counts_from_keys: ClassVar[bool] = False  # whether it counts queries of a cache by positions
    # From what kernels sum the gradient of its array: "rows", numbers by rows that follow from the
    # gradients of scores; "first", numbers by rows that follow from LSE and D; "keys", the sums of
    # gradients of scores by keys; "scores", these gradients themselves; "", it has none.
    gradient_of: ClassVar[str] = ""
    gives_arrays: ClassVar[bool] = False  # whether its argument holds the arrays of its setting
    follows_grid: ClassVar[bool] = False  # whether its scalars follow those of the grid

    # ---- what is asked

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> Any:
        """The setting as a config keeps it: by default a flag. Raises `ConfigError` for an invalid
        one.
        """
        return flag(cls.setting, value)

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """The feature of an `AttentionConfig`; None if the config does not ask for it."""
        return cls() if getattr(config, cls.setting) else None

    @classmethod
    def values(cls, config: Any) -> dict[str, int | float]:
        """The scalars of the launch that the config determines."""
        return {}

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> Any:
        """The setting that the arguments of a call ask for: by default the argument itself, or of
        an array whether it is given.
        """
        value = arguments.get(cls.argument)
        return value is not None if cls.axes else in_numbers(value)

    @classmethod
    def is_asked(cls, arguments: Mapping[str, Any]) -> bool:
        """Whether the arguments of a call ask for the feature."""
        return arguments.get(cls.argument) is not None

    # ---- what a kernel has

    @property
    def word(self) -> str:
        """The word for the feature in the kernel's name."""
        return self.setting

    @property
    def dtype(self) -> DType | None:
        """The type of the feature's array, if a config chooses that."""
        return None

    @property
    def needed_registers(self) -> int:
        """Registers that a kernel may need for the feature."""
        return self.registers

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The declarations of the feature's arrays. `cached`: whether K and V are in a cache."""
        return ()

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """The declarations of the feature's scalars, in the order of the kernel's parameters."""
        return ()

    def applied(self, inputs: Inputs) -> Applied:
        """The feature in a kernel. The code that loads its values is emitted."""
        return Applied()

    # ---- in numpy, for the cpu backend

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """Change a block of scores in place, in natural units."""

    @classmethod
    def hidden_in(cls, block: Block) -> Array | None:
        """[heads or 1, queries, keys]: True where a query does not see a key; None: all seen."""
        return None

    @classmethod
    def keys_seen(cls, queries: slice, of: Scored) -> range:
        """The keys that some of these queries may see."""
        return range(of.shape[3])

    @classmethod
    def drop_block(cls, weight: Array, block: Block) -> None:
        """Multiply a block of weights, which are summed already, by factors in place; gradients of
        weights get the same factors.
        """

    @classmethod
    def sinks(cls, batch: int, heads: slice, of: Scored) -> Array | None:
        """A score of each head that all its rows have before any key; None if there is none."""
        return None

    @classmethod
    def gradient_block(cls, dscore: Array, saved: Array | None, block: Block) -> None:
        """Change the gradient of a block of scores after `change_block`, in place, into that of the scores
        before it. `saved` is the block of scores that the feature `keeps`, else None.
        """

    @classmethod
    def array_gradient_block(cls, dscore: Array, block: Block) -> Array | None:
        """The term of a block in the gradient of the feature's array, from `dscore`, the gradient of the
        scores after `change_block`: [heads], or with its other axes [heads, …]; None: none.
        """
        return None

    @classmethod
    def sinks_gradient(cls, lse: Array, delta: Array, batch: int, heads: slice, of: Scored) -> Array | None:
        """The terms of rows in the gradient of `sinks`, [heads]; None if there are none. `lse` and `delta`,
        [heads, queries], are as in `first_gradient`.
        """
        return None

    # ---- in float64, for the reference; dense, and written apart from numpy's

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """The scores after this step."""
        return scores

    @classmethod
    def visible(cls, of: Scored) -> Array | None:
        """True where a query sees a key, of a shape that broadcasts to that of the scores."""
        return None

    @classmethod
    def weight_factor(cls, of: Scored) -> Array | None:
        """The factor of each weight after the sum, and of its gradient; None: 1."""
        return None

    @classmethod
    def first_scores(cls, of: Scored) -> Array | None:
        """The score that each row has before any key: [batch, heads]."""
        return None

    @classmethod
    def gradient(cls, dafter: Array, before: Array, after: Array, of: Scored) -> Array:
        """The gradient of the scores before this step, from `dafter`, the gradient of the scores after it."""
        return dafter

    @classmethod
    def array_gradient(cls, dafter: Array, of: Scored) -> Array | None:
        """The gradient of the feature's array, broadcast to its axes, from `dafter`, the gradient of the
        scores after this step; None if the array has none.
        """
        return None

    @classmethod
    def first_gradient(cls, lse: Array, delta: Array, of: Scored) -> Array | None:
        """The gradient of `first_scores`, [batch, heads]; None if there are none. `lse` and `delta`
        are [batch, heads, seq_q]; `delta` is the sum of O times its gradient over a row, less the
        gradient of LSE.
        """
        return None

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError | None:
        """The rounding error of this step in f32; None if it changes no score."""
        return None
