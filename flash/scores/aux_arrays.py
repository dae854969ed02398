"""The arrays that functions of scores index (`flash/scores/mods.py`): `aux`, a mapping by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, TypedDict, TypeVar, cast

import numpy as np

from flash.mods import captured
from flash.mods.record import MASK_MOD, SCORE_MOD, naming
from flash.mods.trace import AUX, AuxArray
from flash.operands.declared import MAX_ELEMENTS, Number, Operand
from flash.operands.dtypes import AUX_DTYPES, DType, config_name
from flash.scores.feature import ScoreFeature, TypeOf
from flash.scores.options import arrays
from ptxgen.arrays.views import view
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.records import dataclass
from ptxgen.types import u32

Aux = Mapping[str, Any] | tuple[AuxArray, ...] | None


class AuxArguments(TypedDict, total=False):
    """aux: arrays by name, which score_mod and mask_mod index: float32, float16, bfloat16, int32, int64,
    uint8 or bool, of 1 to 4 axes.
    """

    aux: Mapping[str, object] | None


@dataclass(frozen=True, kw_only=True)
class AuxSettings:
    """aux: the arrays that score_mod and mask_mod index, by name: {"slopes": ("f32", 1)} is an array
    of float32 with one axis. Launches give `aux`.
    """

    aux: Aux = None


def aux_arrays(value: object) -> tuple[AuxArray, ...]:
    """The arrays of a config's `aux`, by name. Raises `ConfigError` for anything else."""
    if value is None:
        return ()
    if isinstance(value, tuple) and all(isinstance(array, AuxArray) for array in value):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            "aux must be a mapping of names to (type, axes), such as "
            f'{{"slopes": ("f32", 1)}}, got {shown(value)}'
        )
    return _distinct(_declared(name, value[name]) for name in sorted(map(_name, value)))


def _distinct(declared: Iterable[AuxArray]) -> tuple[AuxArray, ...]:
    """The declared arrays. Raises `ConfigError` if two of them need a parameter of the same name."""
    arrays = tuple(declared)
    names = [name for array in arrays for name in (array.operand, *array.sizes, *array.strides)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two arrays of aux need a parameter {name}; rename one")
    return arrays


def _name(name: object) -> str:
    if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
        raise ConfigError(f"a name in aux must be that of a parameter, got {shown(name)}")
    return name


def _declared(name: str, value: Any) -> AuxArray:
    kind, axes = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, 0)
    dtype = _dtype(kind)
    if dtype is None or isinstance(axes, bool) or axes not in range(1, captured.MOST_AXES + 1):
        names = ", ".join(t.name for t in AUX_DTYPES)
        raise ConfigError(
            f"aux[{name!r}] must be (type, axes), with a type of {names} and 1 to "
            f"{captured.MOST_AXES} axes, got {shown(value)}"
        )
    return AuxArray(name, dtype, int(axes))


def _dtype(kind: object) -> DType | None:
    """The type of a name, as this project or array libraries write it, or of a library's type."""
    name = str(config_name(kind))
    if isinstance(kind, (type, np.dtype)):
        try:
            name = np.dtype(kind).name
        except TypeError:
            return None
    short = name.removeprefix("torch.")
    return next((t for t in AUX_DTYPES if short in (t.name, t.array_name)), None)


def array_arguments(arguments: Mapping[str, Any]) -> Mapping[str, object]:
    """The arrays of a call's `aux`, by name.

    Raises `LaunchError` for anything else.
    """
    value = arguments.get(AUX)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise LaunchError(
            'aux must be a mapping of names to arrays, such as {"slopes": slopes}, where slopes is a '
            f"parameter of score_mod or mask_mod; got {shown(value)}"
        )
    return value


def arrays_of_call(arguments: Mapping[str, Any]) -> tuple[AuxArray, ...]:
    """The declarations of the arrays of a call. Raises `LaunchError` for types and axes that a
    function cannot index.
    """
    value = array_arguments(arguments)
    return _distinct(_of_array(name, value[name]) for name in sorted(map(_name, value)))


def _of_array(name: str, value: object) -> AuxArray:
    kind, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if kind is None or not isinstance(shape, tuple):
        array = view(value, f"{AUX}[{name!r}]")
        kind, shape = array.dtype, array.shape
    dtype, axes = _dtype(kind), len(shape)
    if dtype is None or not 1 <= axes <= captured.MOST_AXES:
        names = ", ".join(t.array_name for t in AUX_DTYPES)
        raise LaunchError(
            f"{AUX}[{name!r}] must be one of {names}, with 1 to {captured.MOST_AXES} axes, got "
            f"{str(kind).removeprefix('torch.')} of shape {list(shape)}; convert it"
        )
    return AuxArray(name, dtype, axes)


_Arguments = TypeVar("_Arguments", bound=Mapping[str, Any])


def with_captured(
    caller: str, arguments: _Arguments, convert: Callable[[Any], Any] | None = None
) -> _Arguments:
    """Arguments of a call of `caller`, with traces instead of functions, and in `aux` also the arrays that
    these index although they are no parameters, by names that `flash.mods.captured.Captured` chooses.
    `convert` converts such an array to the library of the call (None: no need).

    Raises `LaunchError` for an `aux` that is no mapping of names to arrays, and what `traced` raises for the
    functions.
    """
    if all(arguments.get(name) is None for name in (SCORE_MOD, MASK_MOD, AUX)):
        return arguments
    with naming(caller):
        return cast(_Arguments, captured.with_captured(arguments, arrays_of_call(arguments), convert))


def flattened(caller: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch of `caller` with the arrays of `aux` by the names of their operands."""
    result = {name: value for name, value in arguments.items() if name != AUX}
    if arguments.get(AUX) is None:
        return result
    with naming(caller):
        return result | {f"{AUX}_{name}": array for name, array in array_arguments(arguments).items()}


def gathered(operands: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call on the host, from arrays by the names of their operands."""
    prefix = f"{AUX}_"
    result = {name: array for name, array in operands.items() if not name.startswith(prefix)}
    of_mods = {n.removeprefix(prefix): array for n, array in operands.items() if n.startswith(prefix)}
    return result | ({AUX: of_mods} if of_mods else {})


@dataclass(frozen=True)
class AuxArrays(ScoreFeature):
    """The arrays that the functions of a kernel index."""

    arrays: tuple[AuxArray, ...]

    setting: ClassVar = AUX
    argument: ClassVar = AUX
    example: ClassVar = 'aux={"slopes": ("f32", 1)}'
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--aux": {
            "type": arrays,
            "metavar": "NAME:TYPE:AXES,...",
            "help": "the arrays that --score-mod and --mask-mod index, such as slopes:f32:1",
        }
    }
    gives_arrays: ClassVar = True

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> tuple[AuxArray, ...]:
        """See `ScoreFeature.normalized`."""
        with naming("AttentionConfig"):
            result = aux_arrays(value)
        mods = [mod for mod in (of_config.score_mod, of_config.mask_mod) if mod is not None]
        indexed = {array.name for mod in mods for array in mod.arrays}
        for array in result:
            if array.name not in indexed:
                raise ConfigError(
                    f"AttentionConfig: aux has {array.name!r}, which neither score_mod nor mask_mod indexes; "
                    "leave it out"
                )
        return result

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        return cls(config.aux) if config.aux else None

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> tuple[AuxArray, ...]:
        """The declarations of the arrays that are in the `aux` of a call."""
        return arrays_of_call(arguments)

    @classmethod
    def is_asked(cls, arguments: Mapping[str, Any]) -> bool:
        """False: the functions that index the arrays change scores, not the arrays."""
        return False

    @property
    def word(self) -> str:
        """The word for the arrays in the kernel's name."""
        return f"{AUX}{len(self.arrays)}"

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The declarations of the arrays."""
        return tuple(
            Operand(
                array.operand,
                array.dtype,
                array.sizes,
                "indexed by score_mod or mask_mod; an index outside is that of the nearest element",
                steps=array.axes,
                is_whole=True,
            )
            for array in self.arrays
        )

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """The declarations of the lengths of the arrays' axes."""
        return tuple(
            Number(size, u32, f"elements of {array.operand} along axis {axis}", (1, MAX_ELEMENTS))
            for array in self.arrays
            for axis, size in enumerate(array.sizes)
        )
