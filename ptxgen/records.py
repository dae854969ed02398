"""`dataclass`, as that of the standard library, for classes whose creation a process waits for.

The standard library compiles up to six methods of each class one by one, 0.3 to 0.7 ms together in Python
3.11, and a process that emits PTX makes more than a hundred classes. Here `__init__` is compiled when it is
first read, `__eq__` and `__hash__` when they are first called, and the other methods are closures over the
names of the fields. Classes behave the same, also in `fields`, `replace` and `asdict` of
`dataclasses`, by which they are data classes.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers know data classes by this name alone
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        repr: bool = True,
        eq: bool = True,
        unsafe_hash: bool = False,
    ) -> Any:
        """Make a class a data class: `dataclasses.dataclass` without the options `init`, `order`,
        `match_args` and `weakref_slot`, and without `InitVar`.

        Frozen classes and others may not inherit from each other, nor from frozen classes of the
        standard library's `dataclass`, which raises TypeError.
        """

        def decorated(cls: type) -> type:
            hashed = unsafe_hash or (eq and frozen)
            defines_hash = _defines_hash(cls)
            if unsafe_hash and defines_hash:
                raise TypeError(f"{cls.__qualname__}: unsafe_hash=True, and the class has its own __hash__")
            _require_alike(cls, frozen)
            record = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(
                cls
            )
            fields = dataclasses.fields(record)
            if "__init__" not in record.__dict__:
                record.__init__ = _Initializer(record, fields, frozen)
            if repr:
                _add(record, "__repr__", _representation(tuple(f.name for f in fields if f.repr)))
            if eq:
                names = [f.name for f in fields if f.compare]
                same = f"{_tuple('self', names)} == {_tuple('other', names)}"
                body = f"return {same} if other.__class__ is self.__class__ else NotImplemented"
                _add(record, "__eq__", _at_first_call(record, "__eq__", "self, other", body))
            if hashed and not defines_hash:
                names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
                body = f"return hash({_tuple('self', names)})"
                record.__hash__ = _at_first_call(record, "__hash__", "self", body)
            elif eq and not defines_hash:
                record.__hash__ = None
            if frozen:
                _freeze(record, tuple(f.name for f in fields), slots)
            return record

        return decorated if cls is None else decorated(cls)


_FROZEN = "__frozen_record__"  # an attribute of classes: whether they are frozen


class _Factory:
    """The default of a parameter that is made anew for each object, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


def _require_alike(cls: type, frozen: bool) -> None:
    for base in cls.__mro__[1:]:
        if dataclasses.is_dataclass(base) and base.__dict__.get(_FROZEN, frozen) is not frozen:
            is_, base_is = ("frozen", "not") if frozen else ("not frozen", "frozen")
            raise TypeError(f"{cls.__qualname__} is {is_}, and its base {base.__qualname__} is {base_is}")
    setattr(cls, _FROZEN, frozen)


def _defines_hash(cls: type) -> bool:
    """Whether the body of the class defines `__hash__`; with `__eq__` alone, Python sets it to None."""
    absent = object()
    defined = cls.__dict__.get("__hash__", absent)
    return not (defined is absent or (defined is None and "__eq__" in cls.__dict__))


def _add(cls: type, name: str, method: Callable[..., Any]) -> None:
    """Add a method, unless the body of the class defines it."""
    if name not in cls.__dict__:
        method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)


class _Initializer:
    """The `__init__` of a class: compiles itself and replaces itself in the class when it is first read."""

    def __init__(self, cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> None:
        self._of = (cls, fields, frozen)

    def __get__(self, record: Any, _: type | None = None) -> Any:
        cls = self._of[0]
        compiled = cls.__dict__["__init__"]
        if compiled is self:  # no other thread was quicker
            compiled = _initializer(*self._of)
            compiled.__name__, compiled.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
            cls.__init__ = compiled  # type: ignore[misc]
        return compiled if record is None else compiled.__get__(record)


def _initializer(cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> Callable[..., None]:
    """`__init__`, compiled in the scope of the module of the class, where its annotations have a meaning."""
    values: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _Factory()}
    positional: list[str] = ["self"]
    keywords: list[str] = []
    body: list[str] = []
    for field in fields:
        name = value = field.name
        parameter = name
        if field.default_factory is not dataclasses.MISSING:
            values[f"_new_{name}"] = field.default_factory
            parameter = f"{name}=_FACTORY"
            value = f"_new_{name}() if {name} is _FACTORY else {name}" if field.init else f"_new_{name}()"
        elif field.default is not dataclasses.MISSING:
            values[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue
        if field.init:
            (keywords if field.kw_only else positional).append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    taken = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    lines = "".join(f"\n  {line}" for line in body or ["pass"])
    scope: dict[str, Any] = {}
    exec(
        f"def make({', '.join(values)}):\n def __init__({taken}):{lines}\n return __init__",
        sys.modules[cls.__module__].__dict__,
        scope,
    )
    function: Callable[..., None] = scope["make"](**values)
    function.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return function


def _representation(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def text(self: Any) -> str:
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({fields})"

    return text


def _at_first_call(cls: type, name: str, parameters: str, body: str) -> Callable[..., Any]:
    """A method that compiles itself and replaces itself in the class when it is first called."""

    def method(*arguments: Any) -> Any:
        scope: dict[str, Any] = {}
        exec(f"def {name}({parameters}):\n {body}", {}, scope)
        setattr(cls, name, scope[name])
        return scope[name](*arguments)

    return method


def _tuple(record: str, names: list[str]) -> str:
    """The source text of the tuple of some fields."""
    return f"({''.join(f'{record}.{name}, ' for name in names)})"


def _freeze(cls: Any, names: tuple[str, ...], slots: bool) -> None:
    """Let no field of the class be assigned or deleted, nor any attribute of an object of just this class."""

    def assign(self: Any, name: str, value: Any) -> None:
        if self.__class__ is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if self.__class__ is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    _add(cls, "__setattr__", assign)
    _add(cls, "__delattr__", delete)
    if slots:  # pickle and copy would assign them
        _add(cls, "__getstate__", state)
        _add(cls, "__setstate__", restore)
