"""The arguments of a launch as `ptxgen run --arg` accepts them, and the files of results."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ptxgen.commands.parts.files import FileError
from ptxgen.errors import ConfigError, LaunchError, did_you_mean
from ptxgen.interpreter.arguments import Argument
from ptxgen.ir import Param
from ptxgen.tensormap import SWIZZLES, TensorMap
from ptxgen.texture import ADDRESSES, FILTERS, GEOMETRIES, OF_SURFACES, Surface, Texture
from ptxgen.types import TYPES

Array = NDArray[Any]

STDIN: Final = "-"

NUMBERS: Final[dict[str, np.dtype[Any]]] = {
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_ELEMENTS: Final[dict[str, np.dtype[Any]]] = {
    **NUMBERS,
    **{dtype.name: dtype for dtype in NUMBERS.values()},
    "bool": np.dtype(np.bool_),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_NOT_OF_NUMPY: Final = 2  # `isbuiltin` of a dtype that another package defines
_ARRAYS: Final = ("inout", "out", "zeros", "random")
_FORMS: Final = (*NUMBERS, "hex", *_ARRAYS, "map", "texture", "surface")
_TEXTURE_WORDS: Final = {
    **dict.fromkeys(GEOMETRIES, "kind"),
    **dict.fromkeys(FILTERS, "filter"),
    **dict.fromkeys(ADDRESSES, "address"),
    "normalized": "normalized",
    "fractions": "read",
}


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """One argument as it was written. `make` takes its index among the arguments and returns its
    value; `output` is the file to which the array is written after the run, if any.
    """

    text: str
    make: Callable[[int], Argument]
    output: Path | None = None


def argument_text(text: str) -> ArgumentText:
    """An argument from its text. Raises `argparse.ArgumentTypeError`."""
    form, colon, rest = text.partition(":")
    if colon and form in NUMBERS:
        number = _number(text, NUMBERS[form], rest)
        return ArgumentText(text, lambda _: number)
    if colon and form in _OTHERS:
        return _OTHERS[form](text, rest)
    if text.endswith(".npy"):
        return ArgumentText(text, lambda _: _read_only(Path(text)))
    hint = did_you_mean(form, _FORMS) if colon else ""
    raise argparse.ArgumentTypeError(
        f"must be FORM:VALUE with a form of {', '.join(_FORMS)}, or a .npy file, got {text!r}{hint}"
    )


def bound(text: str) -> tuple[str, int | tuple[int, int] | ArgumentText]:
    """The bound of a parameter: its name, and its value, its least and greatest value, or a tensor
    map. Raises `argparse.ArgumentTypeError`.
    """
    name, equals, words = text.partition("=")
    if name and equals and words.startswith("map:"):
        return name, argument_text(words)
    ends = words.split("..")
    if not name or len(ends) > 2 or not all(re.fullmatch(r"-?\d+", end) for end in ends):
        raise argparse.ArgumentTypeError(
            f"must be NAME=NUMBER, NAME=LOWEST..HIGHEST or NAME=map:…, got {text!r}"
        )
    low, high = int(ends[0]), int(ends[-1])
    return name, low if len(ends) == 1 else (low, high)


def array_of(value: Argument) -> Argument:
    """The array of a tensor map, a texture or a surface; other arguments as they are."""
    if isinstance(value, (Texture, Surface)):
        return value.array
    return value.base if isinstance(value, TensorMap) else value


def extents(text: str) -> tuple[int, ...]:
    """One to three sizes of a grid, a block or a cluster. Raises `argparse.ArgumentTypeError`."""
    words = re.split("[,x]", text)
    if not 1 <= len(words) <= 3 or not all(w.isdecimal() and int(w) for w in words):
        raise argparse.ArgumentTypeError(
            f"must be one to three numbers from 1, such as 4, 4,2 or 4x2x1, got {text!r}"
        )
    return tuple(map(int, words))


def values_of(arguments: Sequence[ArgumentText]) -> tuple[Argument, ...]:
    """The values of arguments. Raises `LaunchError` and `FileError`."""
    return tuple([argument_value(number, what) for number, what in enumerate(arguments)])


def argument_value(number: int, what: ArgumentText) -> Argument:
    """The value of an argument with this index. Raises `LaunchError` and `FileError`."""
    try:
        return what.make(number)
    except LaunchError:
        raise
    except (MemoryError, ValueError) as error:  # numpy raises either for an array that is too large
        raise LaunchError(f"there is no memory here for {what.text}; give a smaller shape") from error


def checked_values(arguments: Sequence[ArgumentText], params: Sequence[Param]) -> tuple[Argument, ...]:
    """The values of arguments. Raises `FileError`, and `LaunchError`, also for a number of another type than
    its parameter.
    """
    values = values_of(arguments)
    for n, (argument, param, value) in enumerate(zip(arguments, params, values, strict=False)):
        _check_type(n, argument, param, value)
    return values


def _check_type(number: int, argument: ArgumentText, param: Param, value: Argument) -> None:
    """Raise `LaunchError` for a number whose size differs from that of its parameter, or if only
    one of the two is an integer. Signs may differ: compilers declare all integers as unsigned.
    """
    type = TYPES[param.type]
    if not isinstance(value, np.generic) or param.count:
        return
    integer = isinstance(value, np.integer)
    if value.nbytes != type.nbytes or (type.kind != "b" and integer == type.is_float):
        raise LaunchError(f"argument {number} ({param.name}) must have the type {type}, got {argument.text}")


# -------------------------------------------------------------------------------------------- forms


def _number(text: str, dtype: np.dtype[Any], words: str) -> np.generic:
    try:
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            value: int | float = int(words, 0)
            if not limits.min <= value <= limits.max:
                raise argparse.ArgumentTypeError(f"must be from {limits.min} to {limits.max}, got {text!r}")
        else:
            value = float(words)
    except ValueError:
        kind = "an integer" if dtype.kind in "iu" else "a number"
        raise argparse.ArgumentTypeError(f"must be {kind}, got {text!r}") from None
    with np.errstate(over="ignore"):  # a number too large for its type is infinite
        number: np.generic = np.asarray(value).astype(dtype).reshape(1)[0]
    return number


def _hex(text: str, rest: str) -> ArgumentText:
    try:
        data = bytes.fromhex(rest)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be bytes of two hexadecimal digits each, got {text!r}"
        ) from None
    return ArgumentText(text, lambda _: data)


def _inout(text: str, rest: str) -> ArgumentText:
    path = _path(text, rest)
    return ArgumentText(text, lambda _: _read(path), path)


def _out(text: str, rest: str) -> ArgumentText:
    name, dtype, shape = _fields(text, rest, "out:FILE.npy:TYPE:SHAPE", 3)
    element, extents = _element(text, dtype), _shape(text, shape)
    return ArgumentText(text, lambda _: np.zeros(extents, element), _path(text, name))


def _zeros(text: str, rest: str) -> ArgumentText:
    dtype, shape = _fields(text, rest, "zeros:TYPE:SHAPE", 2)
    element, extents = _element(text, dtype), _shape(text, shape)
    return ArgumentText(text, lambda _: np.zeros(extents, element))


def _random(text: str, rest: str) -> ArgumentText:
    words = rest.split(":")
    seed = words.pop() if len(words) == 3 else None
    dtype, shape = _fields(text, ":".join(words), "random:TYPE:SHAPE or random:TYPE:SHAPE:SEED", 2)
    if seed is not None and not seed.isdecimal():
        raise argparse.ArgumentTypeError(f"must end in a seed from 0, got {text!r}")
    element, extents = _element(text, dtype), _shape(text, shape)
    return ArgumentText(text, lambda n: _numbers(element, extents, n if seed is None else int(seed)))


def _is_array(text: str) -> bool:
    form = text.partition(":")[0]
    return form in _ARRAYS or (form not in _FORMS and text.endswith(".npy"))


def _texture(text: str, rest: str) -> ArgumentText:
    """A texture: an array, in the form of array arguments, and words for the sampler."""
    words, _, array = rest.partition(":")
    options: dict[str, Any] = {}
    for word in words.split(","):
        option = _TEXTURE_WORDS.get(word)
        if option is None or option in options:
            raise argparse.ArgumentTypeError(
                f"must be texture:KIND,WORDS:ARRAY with words of {', '.join(_TEXTURE_WORDS)}, one "
                f"for each property, got {word!r} in {text!r}{did_you_mean(word, _TEXTURE_WORDS)}"
            )
        options[option] = {"normalized": True, "fractions": "normalized"}.get(word, word)
    return _bound_array(text, array, lambda bound: Texture(bound, **options))


def _surface(text: str, rest: str) -> ArgumentText:
    kind, _, array = rest.partition(":")
    if kind not in OF_SURFACES:
        raise argparse.ArgumentTypeError(
            f"must be surface:KIND:ARRAY with a kind of {', '.join(OF_SURFACES)}, got {text!r}"
        )
    return _bound_array(text, array, lambda bound: Surface(bound, kind))


def _bound_array(text: str, words: str, bind: Callable[[Array], Texture | Surface]) -> ArgumentText:
    if not _is_array(words):
        raise argparse.ArgumentTypeError(
            f"must end in an array such as x.npy or zeros:f32:64x64, got {text!r}"
        )
    array = argument_text(words)

    def make(number: int) -> Texture | Surface:
        try:
            return bind(np.asarray(array.make(number)))
        except ConfigError as error:
            raise LaunchError(f"{text}: {error}") from error

    return ArgumentText(text, make, array.output)


def _map(text: str, rest: str) -> ArgumentText:
    """A tensor map: an array, in the form of array arguments."""
    words = rest.split(":", 2)
    array = words[-1]
    if len(words) < 3 or not _is_array(array):
        raise argparse.ArgumentTypeError(
            f"must be map:BOX:SWIZZLE:ARRAY, such as map:64x8:128B:zeros:f16:512x64, got {text!r}"
        )
    box, swizzle = _shape(text, words[0]), words[1]
    if swizzle not in SWIZZLES:
        raise argparse.ArgumentTypeError(
            f"must have a swizzle of {', '.join(SWIZZLES)}, got {swizzle!r} in {text!r}"
        )
    tensor = argument_text(array)

    def make(number: int) -> TensorMap:
        try:
            return TensorMap(np.asarray(tensor.make(number)), box, swizzle=swizzle)
        except ConfigError as error:
            raise LaunchError(f"{text}: {error}") from error

    return ArgumentText(text, make, tensor.output)


_OTHERS: Final[dict[str, Callable[[str, str], ArgumentText]]] = {
    "hex": _hex,
    "inout": _inout,
    "out": _out,
    "zeros": _zeros,
    "random": _random,
    "map": _map,
    "texture": _texture,
    "surface": _surface,
}


def _fields(text: str, rest: str, form: str, count: int) -> list[str]:
    words = rest.rsplit(":", count - 1)
    if len(words) != count or not all(words):
        raise argparse.ArgumentTypeError(f"must be {form}, got {text!r}")
    return words


def _path(text: str, name: str) -> Path:
    if not name.endswith(".npy"):
        raise argparse.ArgumentTypeError(f"must name a .npy file, got {text!r}")
    return Path(name)


def _element(text: str, name: str) -> np.dtype[Any]:
    if name not in _ELEMENTS:
        raise argparse.ArgumentTypeError(
            f"unknown type {name!r} in {text!r}{did_you_mean(name, _ELEMENTS)}; the types are "
            f"{', '.join(_ELEMENTS)}"
        )
    return _ELEMENTS[name]


def _shape(text: str, words: str) -> tuple[int, ...]:
    sizes = words.split("x")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(
            f"must have a shape such as 1024 or 1024x64, got {words!r} in {text!r}"
        )
    return tuple(map(int, sizes))


def _numbers(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """Random numbers: normal for floating-point types, else uniform over all values of the type."""
    random = np.random.default_rng(seed)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return random.standard_normal(shape).astype(dtype)


# -------------------------------------------------------------------------------------------- files


def ptx_text(name: str) -> str:
    """The text of a PTX file, or of standard input. Raises `FileError`."""
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise FileError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"cannot read {name}: it is no text, so it is no PTX") from error


def _read(path: Path) -> Array:
    """The array in a .npy file, in C order and native byte order."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise FileError(f"cannot read {path}: it is no .npy file of numbers") from error
    if not isinstance(array, np.ndarray):
        raise FileError(f"cannot read {path}: it holds several arrays, and one is wanted")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def _read_only(path: Path) -> Array:
    array = _read(path)
    array.setflags(write=False)
    return array


def npy(array: Array) -> bytes:
    """An array as the bytes of an .npy file; one of a type that numpy lacks, as bytes (`V2`, `V1`)."""
    if array.dtype.isbuiltin == _NOT_OF_NUMPY:  # numpy could not read the dtype again
        array = array.view(f"V{array.itemsize}")
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
