"""The tensor maps of a host in C or Rust: what its stub encodes for each, as code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.tensormap import DTYPES, MOST_STRIDE, OOB_FILLS, SWIZZLES
from ptxgen.types import TYPES

# The extent or the stride of an array that a host has: the name, which of them, and the axis.
OF_ARRAY: Final = re.compile(r"(\w+)\.(shape|strides)\[(\d)\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Map:
    """A tensor map. `dims` (elements, innermost first) and `strides` (bytes, `rank` of them, the last unused)
    are code; `dtype`, `swizzle` and `fill` are numbers of cuda.h, whose meanings are in `words`; `nbytes` is
    the size of an element in bytes.
    """

    name: str
    address: str
    rank: int
    dims: tuple[str, ...]
    strides: tuple[str, ...]
    box: tuple[int, ...]
    dtype: int
    swizzle: int
    fill: int
    nbytes: int
    words: str


def maps_of(
    contract: Mapping[str, Any], member: Callable[[str], str], of: Callable[[Any], str], array: str
) -> list[Map]:
    """The tensor maps of a contract. `member` gives a member of the structure of arguments, `of` the code of
    an expression, and `array` is that of an element of a member that is an array, as in `a->{}[{}]`.
    """

    def code(expression: Any) -> str:
        match = OF_ARRAY.fullmatch(expression) if isinstance(expression, str) else None
        if match is None:
            return of(expression)
        name, what, axis = match.groups()
        return array.format(member(f"{name}_{what}"), axis)

    return [_map(p["name"], p["tensor_map"], member, code) for p in _described(contract)]


def self_described_maps(contract: Mapping[str, Any]) -> dict[str, int]:
    """The rank of each tensor map of an array of which the host has shape and strides, by name: the maps of
    kernels that a user wrote in the DSL, whose contracts do not have the sizes of arrays.
    """
    return {
        p["name"]: p["tensor_map"]["rank"]
        for p in _described(contract)
        if any(isinstance(n, str) and OF_ARRAY.fullmatch(n) for n in p["tensor_map"]["dims"])
    }


def longest_strides(contract: Mapping[str, Any]) -> dict[str, int]:
    """By array of which there is a tensor map, the largest stride in elements."""
    nbytes = {p["array"]: _nbytes(p["tensor_map"]) for p in _described(contract) if "array" in p}
    return {array: (MOST_STRIDE - 1) // size for array, size in nbytes.items()}


def _described(contract: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [p for p in contract["parameters"] if p["kind"] == "tensor_map"]


def _map(
    name: str, entry: Mapping[str, Any], member: Callable[[str], str], code: Callable[[Any], str]
) -> Map:
    return Map(
        name=name,
        address=member(entry["address"]),
        rank=entry["rank"],
        dims=tuple(map(code, entry["dims"])),
        strides=(*map(code, entry["strides"]), code(0)),
        box=tuple(entry["box"]),
        dtype=DTYPES[entry["dtype"]],
        swizzle=SWIZZLES[entry["swizzle"]],
        fill=OOB_FILLS[entry["oob_fill"]],
        nbytes=_nbytes(entry),
        words=f"{entry['dtype']}, swizzle {entry['swizzle']}, {entry['oob_fill']} outside",
    )


def _nbytes(entry: Mapping[str, Any]) -> int:
    """The number of bytes of an element of an array with a tensor map."""
    dtype: str = entry["dtype"]
    return TYPES[dtype.removesuffix(".ftz").replace("tf32", "f32")].nbytes
