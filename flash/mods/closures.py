"""Functions whose numpy arrays can be indexed by values of a trace. Indexing a numpy array calls no method
of the index, as indexing a tensor of PyTorch does (`__torch_function__`), so that a copy of the function
has arrays of a subclass instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from flash.mods.values import Traced, captured


class _Indexed(np.ndarray[Any, Any]):
    """A numpy array whose elements a traced function may index by its values."""

    def __getitem__(self, indices: Any) -> Any:
        every = indices if isinstance(indices, tuple) else (indices,)
        if any(isinstance(index, Traced) for index in every):
            return captured(self, indices)
        return super().__getitem__(indices)


def with_indexed_arrays(function: Any) -> Any:
    """The function, in which numpy arrays that it closes over, or finds among its defaults and the globals
    of its module, can be indexed by values; likewise those of functions that it calls.
    """
    return _replaced(function, {})


def _replaced(x: Any, known: dict[int, Any]) -> Any:
    """The replacement of `x`, which is `x` itself if nothing in it changes. `known` are the replacements of
    objects by their ids.
    """
    if id(x) in known:
        return known[id(x)]
    known[id(x)] = x  # until it is known, for functions that call each other
    result = x
    if type(x) is np.ndarray and x.ndim:
        result = x.view(_Indexed)
    elif isinstance(x, FunctionType):
        result = _of_function(x, known)
    elif (split := _parts_of(x)) is not None:
        parts, join = split
        new = [_replaced(part, known) for part in parts]
        if any(one is not old for one, old in zip(new, parts, strict=True)):
            result = join(*new)
    known[id(x)] = result
    return result


def _parts_of(x: Any) -> tuple[list[Any], Callable[..., Any]] | None:
    """The parts of an object in which arrays may be, and a function that makes a like object from other
    parts; None for objects without such parts.
    """
    if isinstance(x, MethodType):
        return [x.__func__], lambda function: MethodType(function, x.__self__)
    if isinstance(x, functools.partial):
        return [x.func, x.args, x.keywords], lambda f, args, named: functools.partial(f, *args, **named)
    if type(x) in (list, tuple):
        return list(x), lambda *items: type(x)(items)
    if type(x) is dict:
        return list(x.values()), lambda *items: dict(zip(x, items, strict=True))
    return None


def _of_function(f: FunctionType, known: dict[int, Any]) -> FunctionType:
    """The replacement of a function, as in `_replaced`."""
    changed = {
        name: new
        for name in _names(f.__code__)
        if (old := f.__globals__.get(name)) is not None
        and (type(old) is np.ndarray or (isinstance(old, FunctionType) and old.__globals__ is f.__globals__))
        and (new := _replaced(old, known)) is not old
    }
    cells = tuple([_of_cell(cell, known) for cell in f.__closure__ or ()])
    defaults, named = _replaced(f.__defaults__, known), _replaced(f.__kwdefaults__, known)
    same_cells = all(new is old for new, old in zip(cells, f.__closure__ or (), strict=True))
    if not changed and same_cells and defaults is f.__defaults__ and named is f.__kwdefaults__:
        return f
    copy = FunctionType(
        f.__code__,
        {**f.__globals__, **changed} if changed else f.__globals__,
        f.__name__,
        defaults,
        cells if f.__closure__ else None,
    )
    copy.__kwdefaults__ = named
    copy.__dict__.update(f.__dict__)
    return copy


def _of_cell(cell: CellType, known: dict[int, Any]) -> CellType:
    """The replacement of a variable of a closure, as in `_replaced`."""
    try:
        old = cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
    new = _replaced(old, known)
    return cell if new is old else CellType(new)


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function, and those defined in it, may look up among globals."""
    yield from code.co_names
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            yield from _names(inside)
