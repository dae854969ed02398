"""The names that C++ gave to the symbols of a PTX text, and the types of kernels' parameters.

Symbols are read by `__cxa_demangle` of the C++ runtime library (Itanium C++ ABI, "External Names");
where there is no such library, symbols are shown as they are and types are not known.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_LIBRARIES: Final = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
_SYMBOL: Final = re.compile(r"(?<![\w$])_Z[\w$]+")
_ENTRY: Final = re.compile(r"\.entry\s+([\w$]+)")
# The definition of a kernel in C++, with its parameters; attributes such as __launch_bounds__(256)
# may stand before the name.
_DEFINITION: Final = re.compile(
    r"__global__[^;{}()]*(?:\([^()]*\)[^;{}()]*?)*?\b(\w+)\s*\(([^(){};]*)\)\s*\{"
)
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# A bracket of a declaration; names with brackets are words of their own.
_BRACKET: Final = re.compile(
    r"\(anonymous namespace\)|\{lambda\([^()]*\)#\d+\}|operator *(?:\(\)|<=>|[<>]{1,2}=?|->\*?)|[<>()]"
)
_LAST_NAME: Final = re.compile(r"\w+$")
# The numpy dtypes that a C++ type may point to.
_ELEMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "float": ("float32",),
    "double": ("float64",),
    "__half": ("float16",),
    "__nv_bfloat16": ("bfloat16",),
    "short": ("int16", "uint16"),
    "unsigned short": ("uint16", "int16"),
    "int": ("int32", "uint32"),
    "unsigned int": ("uint32", "int32"),
    "long": ("int64", "uint64"),
    "unsigned long": ("uint64", "int64"),
    "long long": ("int64", "uint64"),
    "unsigned long long": ("uint64", "int64"),
}


class Pointee(NamedTuple):
    """A C++ pointer type, and the numpy dtypes of arrays that fit it."""

    type: str
    dtypes: tuple[str, ...]


class Names(NamedTuple):
    """The C++ names of the symbols of a text, and by the symbols of its kernels the parameters, by number,
    that point to elements of a known type.
    """

    of_symbols: dict[str, str]
    pointees: dict[str, dict[int, Pointee]]


def cpp_names(ptx: str, source: str = "", instances: Mapping[str, str] | None = None) -> Names:
    """The C++ names of a PTX text. The names of kernels lack the parameters' types, those of variables their
    scopes; `instances` are names of kernels by symbol, known from elsewhere. Parameters have their names if
    the source defines the kernel once, and types if the symbol or the source has them.
    """
    names = {symbol: short for symbol in set(_SYMBOL.findall(ptx)) if (short := _short(symbol))}
    names.update(instances or {})
    declared = _declared_in(source)
    pointees = {}
    for entry in _ENTRY.finditer(ptx):
        symbol = entry[1]
        name = names.get(symbol, symbol)
        head = ptx[entry.end() : ptx.find(")", entry.end())]
        params = set(re.findall(rf"(?<![\w$]){re.escape(symbol)}_param_\d+", head))
        declarations = declared.get(re.sub(r"<.*", "", name).rpartition("::")[2], ())
        if len(declarations) != len(params):  # a macro expands to some of them
            declarations = ()
        types = _split(_outer(demangled(symbol))[1]) or [re.sub(r"\w+$", "", d) for d in declarations]
        pointees[symbol] = {n: to for n, type in enumerate(types) if (to := _pointee(type)) is not None}
        for param in params:
            number = int(param.rpartition("_")[2])
            known = _LAST_NAME.search(declarations[number]) if number < len(declarations) else None
            names[param] = known[0] if known else f"{name}_param_{number}"
    return Names(names, pointees)


def _pointee(type: str) -> Pointee | None:
    """The pointer type of a C++ parameter; None for a type that is no pointer, or to unknown elements."""
    words = re.sub(r"\b(const|volatile|restrict|__restrict(__)?)\b", " ", type)
    words = re.sub(r"\s+", " ", words).strip()
    element = words.removesuffix("*").strip()
    if words == element or element not in _ELEMENTS:
        return None
    return Pointee(f"{element}*", _ELEMENTS[element])


def demangled(symbol: str) -> str:
    """The C++ declaration of a symbol, such as `saxpy(int, float*)`; empty if it is none."""
    demangle = _demangler()
    if demangle is None or not symbol.startswith("_Z"):
        return ""
    status = ctypes.c_int()
    address = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return ""
    try:
        return ctypes.string_at(address).decode()
    finally:
        _free()(address)


def _short(symbol: str) -> str:
    """A symbol's C++ name: of a kernel with template arguments, of a variable without its function."""
    whole = re.sub(r"\[abi:\w+\]", "", demangled(symbol))
    head, parameters, tail = _outer(whole)
    if tail.startswith("::"):
        return tail[2:]
    if parameters and "<" in head:  # templates of functions have their result's type in front
        head = head.rpartition(" ")[2] if " " not in head.partition("<")[2] else _without_result(head)
    return head


def _without_result(head: str) -> str:
    before, bracket, rest = head.partition("<")
    return before.rpartition(" ")[2] + bracket + rest


def _outer(declaration: str) -> tuple[str, str, str]:
    """The text before, in and after the parentheses of a function's parameters, which are not those of a
    template's arguments, such as (mode)1 or &(silu(float)).
    """
    start = depth = 0
    for word in _BRACKET.finditer(declaration):
        if word[0] == "(" and not depth and word.start():
            start = word.start()
            break
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(word[0], 0)
    if not start:
        return declaration, "", ""
    depth = 0
    for at in range(start, len(declaration)):
        depth += {"(": 1, ")": -1}.get(declaration[at], 0)
        if not depth:
            return declaration[:start], declaration[start + 1 : at], declaration[at + 1 :]
    return declaration, "", ""


def _split(parameters: str) -> list[str]:
    """Parameters that commas separate, outside of brackets."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += {"<": 1, "(": 1, "[": 1, ">": -1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _declared_in(source: str) -> dict[str, tuple[str, ...]]:
    """The parameters of the kernels that a source defines once, without default values and arrays'
    sizes, as in `const float *x`.
    """
    declared: dict[str, list[tuple[str, ...]]] = {}
    for name, parameters in _DEFINITION.findall(_COMMENT.sub(" ", source)):
        bare = tuple(parameter.partition("=")[0].strip() for parameter in _split(parameters))
        declared.setdefault(name, []).append(tuple(re.sub(r"(\w+)\s*\[[^]]*\]$", r"*\1", b) for b in bare))
    return {name: several[0] for name, several in declared.items() if len(several) == 1}


@functools.cache
def _demangler() -> Callable[..., Any] | None:
    for library in _LIBRARIES:
        try:
            function = ctypes.CDLL(library).__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        return function
    return None


@functools.cache
def _free() -> Callable[..., Any]:
    function = ctypes.CDLL(None).free
    function.argtypes = [ctypes.c_void_p]
    return function
