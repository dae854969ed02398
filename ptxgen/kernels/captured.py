"""Variables that the function of a kernel reads while the kernel is built, besides its parameters: variables
of modules and of enclosing functions, in the function and in the functions that it calls.

A kernel is built anew when such a value changes, so that a launch never uses a kernel of another value.
Functions, methods and classes that the code names are followed, except those of the standard library and of
installed packages.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Final

import numpy as np

from ptxgen.kernels.signature import key_of

_MOST_FUNCTIONS: Final = 256
_MOST_PARTS: Final = 4096  # of one value
_DEEPEST: Final = 16  # values in values
_LOADS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN: Final = ("PRECALL", "CACHE", "EXTENDED_ARG")
_PACKAGES: Final = ("site-packages", "dist-packages")
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic)
_FIXED: Final = (ModuleType, type, FunctionType, BuiltinFunctionType)  # the same object is the same value


class _Missing:
    """The class of the value that stands for a captured variable which does not exist."""


_MISSING: Final = _Missing()


class _Same:
    """An object as a key: equal to itself alone. The key holds the object, so that no other object gets its
    id.
    """

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


class Captured:
    """The values that the function of a kernel reads."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._outputs: set[tuple[object, ...]] = set()  # labels of values that the build changes
        self._scan: _Scan | None = None

    def state(self) -> object:
        """An object that stays the same as long as all values are unchanged; None if one has changed since
        the last `key`.
        """
        scan = self._scan
        return scan if scan is not None and scan.is_same() else None

    def key(self) -> object:
        """A hashable key of the captured values: equal for equal values."""
        scan = self._scan
        if scan is None or not scan.is_same():
            scan = self._scan = _Scan(self._function, self._outputs)
        return scan.key

    def built(self) -> None:
        """Note that the kernel has been built: values that changed meanwhile are results, not arguments."""
        before, after = self._scan, _Scan(self._function, self._outputs)
        if before is not None and before.key != after.key:
            self._outputs |= {
                label for label, key in before.values.items() if after.values.get(label, key) != key
            }
            after = _Scan(self._function, self._outputs)
        self._scan = after


class _Scan:
    """The captured values at one time, by the path at which they are read."""

    def __init__(self, function: Callable[..., None], outputs: set[tuple[object, ...]]) -> None:
        self.values: dict[tuple[object, ...], object] = {}
        # The values of names, in namespaces and in cells.
        self._names: list[tuple[Mapping[str, Any], str, object]] = []
        self._cells: list[tuple[CellType, object]] = []
        self._changing: list[tuple[object, object]] = []  # values that may change in place, and their keys
        self._root = _root(function)
        self._outputs = outputs
        self._followed: set[int] = set()
        self._waiting: list[FunctionType] = []
        self._follow(function)
        while self._waiting and len(self._followed) < _MOST_FUNCTIONS:
            self._read(self._waiting.pop())
        self.key = tuple(self.values.values())

    def is_same(self) -> bool:
        """Whether all captured values are unchanged since this scan; called before each launch."""
        for namespace, name, value in self._names:
            if namespace.get(name, _MISSING) is not value:
                return False
        for cell, value in self._cells:
            if _contents(cell) is not value:
                return False
        return not self._changing or all(_Keys().of(value) == key for value, key in self._changing)

    def _follow(self, function: object) -> None:
        """Queue a function, unless it has been queued before, so that the values that it reads are
        captured.
        """
        if isinstance(function, FunctionType) and id(function) not in self._followed:
            self._followed.add(id(function))
            self._waiting.append(function)

    def _read(self, function: FunctionType) -> None:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for path in _paths(function.__code__, frozenset(cells)):
            self._value(cells.get(path[0], function.__globals__), path)

    def _value(self, namespace: Mapping[str, Any] | CellType, path: tuple[str, ...]) -> None:
        """Capture the value at a path: a variable, then attributes."""
        label: tuple[object, ...] = (id(namespace), path)
        if label in self._outputs or label in self.values:
            return
        first, *attributes = path
        if isinstance(namespace, CellType):
            value = _contents(namespace)
            self._cells.append((namespace, value))
        else:
            value = namespace.get(first, _MISSING)
            self._names.append((namespace, first, value))
        for name in attributes:
            inside = None if self._is_foreign(value) else getattr(value, "__dict__", None)
            if inside is None or name not in inside:
                break
            value = inside[name]
            self._names.append((inside, name, value))
        keys = _Keys()
        key = self.values[label] = keys.of(value)
        if keys.changing:
            self._changing.append((value, key))
        for function in keys.functions:
            if not self._is_foreign(function):
                self._follow(function)

    def _is_foreign(self, value: object) -> bool:
        """Whether a module, class or function is of the standard library or an installed package."""
        if not isinstance(value, ModuleType | type | FunctionType):
            return False
        root = value.__name__.partition(".")[0] if isinstance(value, ModuleType) else _root(value)
        return root != self._root and _is_installed(root)


class _Keys:
    """Makes keys of values: `changing` says whether one of the values may change in place, and `functions`
    are the functions in them.
    """

    def __init__(self) -> None:
        self.changing = False
        self.functions: list[FunctionType] = []
        self._parts = 0

    def of(self, value: object, depth: int = 0) -> object:
        """The key of a value; if the value is no data, its identity."""
        self._parts += 1
        if isinstance(value, _PLAIN):
            return key_of(value.item() if isinstance(value, np.generic) else value), type(value)
        if depth > _DEEPEST or self._parts > _MOST_PARTS:
            return _Same(value)
        if isinstance(value, _FIXED):
            self._functions_of(value)
            return _Same(value)
        inside = self._inside(value)
        if inside is None:
            return _Same(value)
        return type(value), *(self.of(part, depth + 1) for part in inside)

    def _inside(self, value: object) -> Iterator[object] | None:
        """The parts of a value, such as the items of a list; None if its parts are not known."""
        if isinstance(value, tuple | frozenset):
            return iter(value if isinstance(value, tuple) else sorted(value, key=repr))
        if isinstance(value, MethodType):
            return iter((value.__func__, value.__self__))
        if isinstance(value, functools.partial):
            return iter((value.func, value.args, value.keywords))
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):  # as of functools.cache
            return iter((wrapped,))
        self.changing = True
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return iter((value.dtype.str, value.shape, hashlib.blake2b(value.tobytes()).digest()))
        if isinstance(value, list):
            return iter(value)
        if isinstance(value, set):
            return iter(sorted(value, key=repr))
        if isinstance(value, dict):
            return (part for item in value.items() for part in item)
        self.changing = False
        return self._attributes(value)

    def _attributes(self, value: object) -> Iterator[object] | None:
        """The attributes of an object; None if its class is of an installed package."""
        kind = type(value)
        held = getattr(value, "__dict__", None)
        if held is None or (kind is not SimpleNamespace and _is_installed(_root(kind))):
            return None
        self.changing = True
        self._functions_of(kind)
        return (part for item in sorted(held.items()) for part in item)

    def _functions_of(self, value: object) -> None:
        if isinstance(value, FunctionType):
            self.functions.append(value)
        elif isinstance(value, type):
            self.functions += [f for f in vars(value).values() if isinstance(f, FunctionType)]


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set yet
        return _MISSING


def _root(function: Callable[..., None] | type) -> str:
    """The top-level package of a function or class, by name."""
    return str(function.__module__).partition(".")[0]


@functools.cache
def _is_installed(root: str) -> bool:
    """Whether a top-level package is of the standard library, of ptxgen or installed, not the user's."""
    if root in sys.stdlib_module_names or root == "ptxgen":
        return True
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is not None and bool({*Path(file).parts} & {*_PACKAGES})


# By the id of a function's code, which is kept, so that the id stays unique.
_known: dict[int, tuple[CodeType, tuple[tuple[str, ...], ...]]] = {}


def _paths(code: CodeType, cells: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """The variables that a function reads (names in `cells` are of enclosing functions), each with the
    attributes that are read of it; inner functions are included.
    """
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = code, tuple(dict.fromkeys(_read_paths(code, cells)))
    return known[1]


def _read_paths(code: CodeType, cells: frozenset[str]) -> Iterator[tuple[str, ...]]:
    path: tuple[str, ...] = ()
    for instr in dis.get_instructions(code):
        if instr.opname in _ATTRIBUTES and path:
            path = (*path, instr.argval)
        elif instr.opname not in _BETWEEN:
            if path:
                yield path
            path = ()
            is_global = instr.opname in _LOADS[:2]
            if is_global or (instr.opname in _LOADS and instr.argval in cells):
                path = (instr.argval,)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _read_paths(const, cells)
