"""The parameters of a kernel function: the kernel's own, and static ones, which are known when it is
built.
"""

from __future__ import annotations

import functools
import inspect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np

from ptxgen.dsl import PointerType
from ptxgen.dsl.grid import block_extents, threads_problem
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.target import Target
from ptxgen.tensormap import TensorMapType
from ptxgen.types import ScalarType

Type = PointerType | TensorMapType | ScalarType

_WANTED: Final = (
    "a pointer such as ptxgen.Pointer[f32], a tensor map such as ptxgen.TensorMap[f16], or a scalar type "
    "such as ptxgen.u32"
)
_NOT_LOADED: Final = ("pred", "f16x2", "bf16x2")  # no parameter has these types
_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel function.

    `parameters` are those of the kernel, by name and in their order; `statics` are the names of
    those that are known when the kernel is built, and `defaults` the values of the ones that have
    a default.
    """

    name: str
    parameters: Mapping[str, Type]
    statics: tuple[str, ...]
    defaults: Mapping[str, Any]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the kernel's parameters, in their order."""
        return tuple(self.parameters)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """The signature of `def function(k, X: Pointer[f32], n: u32, *, tile=32)`: the first
        parameter is the builder, annotated ones are the kernel's, and keyword-only ones are known
        when the kernel is built. Raises `ConfigError` for another form.
        """
        if not isinstance(function, FunctionType):
            raise ConfigError(f"kernel: a kernel must be a Python function, got {shown(function)}")
        name = function.__name__
        signature = inspect.signature(function)
        every = list(signature.parameters.values())
        if not every or every[0].kind not in _BY_POSITION:
            raise ConfigError(
                f"kernel {name}: the first parameter must be the builder, as in def {name}(k, ...)"
            )
        declared = every[1:]
        scope = _scope(function)
        if _is_type(every[0].annotation, scope):
            raise ConfigError(
                f"kernel {name}: the first parameter must be the builder, but {every[0].name} is a parameter "
                f"of the kernel; put it first, as in def {name}(k, {every[0].name}: ..., ...)"
            )
        parameters = {p.name: _type(name, p, scope) for p in declared if p.kind in _BY_POSITION}
        statics = [p for p in declared if p.kind is p.KEYWORD_ONLY]
        if len(parameters) + len(statics) != len(declared):
            raise ConfigError(f"kernel {name}: * and ** parameters are not possible; name each parameter")
        defaults = {p.name: p.default for p in statics if p.default is not p.empty}
        return cls(name, parameters, tuple(p.name for p in statics), defaults)

    def static_values(self, statics: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each static parameter, in their order. Raises TypeError for a name that is
        none, and for one without a value.
        """
        for name in statics:
            if name not in self.statics:
                known = (*self.statics, *self.parameters)
                raise TypeError(
                    f"{self.name}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}"
                )
        values = {**self.defaults, **statics}
        missing = [name for name in self.statics if name not in values]
        if missing:
            raise TypeError(
                f"{self.name}() needs {' and '.join(missing)}, which the kernel is built for; pass it by name"
            )
        return {name: _plain(values[name]) for name in self.statics}

    def chosen(self, what: str, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """The result of a function of the static parameters, such as `threads=`; `what` names it in errors.
        Raises TypeError for one that does not take all of them by name.
        """
        try:
            return function(**values)
        except TypeError:
            try:
                inspect.signature(function).bind(**values)
            except TypeError as error:
                raise TypeError(
                    f"kernel {self.name}: the function for {what} must take all keyword-only parameters of "
                    f"the kernel, but it {error}; write `lambda *, {', '.join(values)}: ...`, or add "
                    "**others to its parameters"
                ) from None
            raise

    def bind(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The kernel's arguments in the parameters' order, and the static ones by name. Raises TypeError for
        a call that does not fit, as Python does.
        """
        names = self.names
        if len(arguments) == len(names) and not named:
            return list(arguments), {}
        if len(arguments) > len(names):
            raise TypeError(
                f"{self.name}() takes {len(names)} arguments ({', '.join(names)}), got {len(arguments)}; "
                "what it is built for is passed by name"
            )
        statics = dict(named)
        values = list(arguments)
        for name in names[: len(arguments)]:
            if name in statics:
                raise TypeError(f"{self.name}() got multiple values for argument {name!r}")
        for name in names[len(arguments) :]:
            if name not in statics:
                raise TypeError(f"{self.name}() needs the argument {name!r}")
            values.append(statics.pop(name))
        return values, statics


def block_of(name: str, threads: object, target: Target) -> tuple[int, int, int]:
    """The threads of a CTA along x, y and z. Raises `ConfigError` for what the target does not allow."""
    extents = block_extents(threads, target)
    if extents is None:
        raise ConfigError(f"kernel {name}: {threads_problem(threads, target)}")
    return extents


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, which operators of values take; anything else as it is."""
    return value.item() if isinstance(value, np.bool | np.integer | np.floating) else value


def key_of(value: Any) -> object:
    """A hashable key of a static value: equal only for values that are the same in every kernel. 1, 1.0 and
    True have different keys, and so have 0.0 and -0.0, also in tuples, frozen sets and fields of data
    classes; NaN equals itself. Raises TypeError for what is not hashable.
    """
    if isinstance(value, float):
        return type(value), struct.pack("<d", value)
    if isinstance(value, complex):
        return type(value), key_of(value.real), key_of(value.imag)
    if isinstance(value, tuple):
        return type(value), tuple(map(key_of, value))
    if isinstance(value, frozenset):
        return type(value), frozenset(map(key_of, value))
    hash(value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), value, tuple(key_of(getattr(value, field.name)) for field in fields(value))
    return type(value), value


def _scope(function: FunctionType) -> dict[str, Any]:
    """The names that an annotation may use: of the module, and of enclosing functions if the
    function uses them.
    """
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # it is set later
            continue
    return scope


def _is_type(annotation: object, scope: dict[str, Any]) -> bool:
    """Whether an annotation is a type of kernel parameters."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, scope)  # the author's own annotation
        except Exception:  # one that only type checkers know
            return False
    return isinstance(annotation, PointerType | TensorMapType | ScalarType)


def _type(caller: str, parameter: inspect.Parameter, scope: dict[str, Any]) -> Type:
    annotation = parameter.annotation
    if parameter.default is not parameter.empty:
        raise ConfigError(
            f"kernel {caller}: {parameter.name} is a parameter of the kernel and has no default; put it "
            "after a * if the kernel is built for it"
        )
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, scope)  # the author's own annotation
        except Exception as error:
            raise ConfigError(
                f"kernel {caller}: the annotation {annotation!r} of {parameter.name} cannot be evaluated "
                f"({error}); use names of the module, not variables of an enclosing function, or leave out "
                "`from __future__ import annotations`, which makes text of annotations"
            ) from error
    if isinstance(annotation, PointerType) and annotation.dtype.nbytes:
        return annotation
    if isinstance(annotation, TensorMapType):
        return annotation
    if isinstance(annotation, ScalarType) and annotation.name not in _NOT_LOADED:
        return annotation
    got = "no annotation" if annotation is parameter.empty else shown(annotation)
    raise ConfigError(f"kernel {caller}: {parameter.name} must be annotated with {_WANTED}, got {got}")
