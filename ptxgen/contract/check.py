"""Whether data from elsewhere is a launch contract: as its JSON Schema says, and with names and numbers that
agree with each other. Contracts that pass can be turned into code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from ptxgen.contract import SCHEMA_FILE, schema
from ptxgen.contract.expressions import Expression, names_in
from ptxgen.contract.host_maps import OF_ARRAY
from ptxgen.contract.schema_rules import Path, misfits
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.tensormap import NBYTES
from ptxgen.types import scalar_type

_MOST_THREADS: Final = 1024  # of a CTA
_ADDRESS_TYPES: Final = ("u64", "b64")

Contract = Mapping[str, Any]


def check_contract(contract: object) -> None:
    """Raise `ConfigError` with the first misfit unless `contract`, such as the data of a JSON file, is a
    contract of version `ptxgen.contract.SCHEMA`.

    It is checked against `ptxgen.contract.schema()`; names must be of existing parameters, arrays and sizes;
    sizes must not depend on themselves; and parameters must have the sizes of their types.
    """
    misfit = next(misfits(contract, _schema()), None)
    if misfit is None and isinstance(contract, Mapping):  # which the schema says
        misfit = next(_disagreements(contract), None)
    if misfit is not None:
        path, text = misfit
        raise ConfigError(f"contract: {_words(path)} {text}; it must be as {SCHEMA_FILE} says")


@cache
def _schema() -> Contract:
    return schema()


def _words(path: Path) -> str:
    """A path in a contract as text for messages, such as `parameters[2].name`."""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path)
    return words.removeprefix(".") or "it"


def _key(name: str) -> str:
    return name if re.fullmatch(r"\w{1,80}", name, re.ASCII) else shown(name)


def _disagreements(contract: Contract) -> Iterator[tuple[Path, str]]:
    """The contradictions in a contract that fits the schema: the path and a message for each."""
    parameters, sizes = contract["parameters"], contract.get("sizes", {})
    yield from _of_parameters(parameters)
    by_name = {p["name"]: p for p in parameters}
    threads = math.prod(contract["block"])
    if threads > _MOST_THREADS:
        yield ("block",), f"must have at most {_MOST_THREADS} threads, got {threads}"
    for name, size in sizes.items():
        if name in by_name and by_name[name]["kind"] != "size":
            yield ("sizes", name), f"must not be the parameter of kind {by_name[name]['kind']} of this name"
        if size["least"] > size["most"]:
            yield ("sizes", name), f"must have least <= most, got {size['least']} and {size['most']}"
    for index, p in enumerate(parameters):
        if p["kind"] == "size" and p["name"] not in sizes:
            yield ("parameters", index), f"is a size, and sizes does not have {p['name']}"
    yield from _of_expressions(contract, by_name)
    yield from _of_arrays(contract, by_name)
    for index, p in enumerate(parameters):
        if p["kind"] == "tensor_map":
            yield from _of_map(p, by_name, {*sizes, *_strides(by_name)}, ("parameters", index, "tensor_map"))


def _of_parameters(parameters: list[Any]) -> Iterator[tuple[Path, str]]:
    """The contradictions in the names, types and offsets of parameters, as `_disagreements` yields them."""
    end, seen = 0, set[str]()
    for index, p in enumerate(parameters):
        path: Path = ("parameters", index)
        if p["name"] in seen:
            yield (*path, "name"), f"must be one that no other parameter has, got {p['name']!r}"
        seen.add(p["name"])
        type = scalar_type(p["type"])
        nbytes = NBYTES if p["kind"] == "tensor_map" else type.nbytes
        if p["size"] != nbytes:
            yield (*path, "size"), f"must be {nbytes} bytes ({p['kind']}, {type}), got {p['size']}"
        if p["offset"] < end:
            yield (
                (*path, "offset"),
                f"must be at least {end}, where the parameter before ends, got {p['offset']}",
            )
        end = p["offset"] + p["size"]
        if p["kind"] == "pointer" and type.name not in _ADDRESS_TYPES:
            yield (*path, "type"), f"of a pointer must be {' or '.join(_ADDRESS_TYPES)}, got {type}"
        if p["kind"] in ("size", "stride") and not type.is_integer:
            yield (*path, "type"), f"of a {p['kind']} must be that of an integer, got {type}"


def _of_expressions(contract: Contract, by_name: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Unknown names and cycles in the expressions of sizes and of the grid, as `_disagreements` yields
    them.
    """
    sizes = contract.get("sizes", {})
    for name, size in sizes.items():
        yield from _unknown(size.get("equal", 0), sizes, ("sizes", name, "equal"))
    try:
        TopologicalSorter(computed(contract)).prepare()
    except CycleError as error:
        yield ("sizes",), f"must not be computed of themselves, got {' of '.join(error.args[1])}"
    known = {*sizes, *_strides(by_name)}
    for axis in "xyz":
        yield from _unknown(contract.get("grid", {}).get(axis, 0), known, ("grid", axis))


def _of_arrays(contract: Contract, by_name: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The contradictions between arrays, their dimensions and the pointer parameters, as `_disagreements`
    yields them.
    """
    sizes, arrays = contract.get("sizes", {}), contract.get("arrays", [])
    pointers = {name for name, p in by_name.items() if p["kind"] == "pointer"}
    seen = set[str]()
    for index, array in enumerate(arrays):
        name, path = array["name"], ("arrays", index)
        if name not in pointers:
            yield (*path, "name"), f"must be that of a pointer{_got(name, pointers)}"
        if name in seen:
            yield (*path, "name"), f"must be one that no other array has, got {name!r}"
        seen.add(name)
        for axis, dim in enumerate(array["dims"]):
            of = (*path, "dims", axis)
            yield from _unknown(dim["extent"], sizes, (*of, "extent"))
            yield from _unknown(dim["stride"], {*sizes, *_strides(by_name)}, (*of, "stride"))
    for index, p in enumerate(contract["parameters"]):
        if "arrays" in contract and "array" in p and p["array"] not in seen:
            yield ("parameters", index, "array"), f"must be one of arrays{_got(p['array'], seen)}"


def _of_map(
    p: Mapping[str, Any], by_name: Mapping[str, Any], known: set[str], path: Path
) -> Iterator[tuple[Path, str]]:
    """The contradictions in a tensor map's rank, address and expressions, as `_disagreements` yields them."""
    of, name = p["tensor_map"], p["name"]
    rank = of["rank"]
    for what, count in (("dims", rank), ("strides", rank - 1), ("box", rank), ("element_strides", rank)):
        if len(of[what]) != count:
            yield (*path, what), f"must have {count} entries for rank {rank}, got {len(of[what])}"
    of_itself = any(isinstance(dim, str) and OF_ARRAY.fullmatch(dim) for dim in of["dims"])
    if of_itself and of["address"] != name:
        yield (*path, "address"), f"must be {name}, whose shape dims has, got {of['address']!r}"
    pointers = [n for n, each in by_name.items() if each["kind"] == "pointer"]
    if not of_itself and of["address"] not in pointers:
        yield (*path, "address"), f"must be that of a pointer{_got(of['address'], pointers)}"
    for what in ("dims", "strides"):
        for axis, expression in enumerate(of[what]):
            match = OF_ARRAY.fullmatch(expression) if isinstance(expression, str) else None
            if match is None:
                yield from _unknown(expression, known, (*path, what, axis))
            elif match[1] != name or int(match[3]) >= rank or not of_itself:
                yield (*path, what, axis), f"must be of {name} with {rank} dimensions, got {expression!r}"


def computed(contract: Contract) -> dict[str, set[str]]:
    """The sizes that a host computes, because they are neither parameters nor free, each with the computed
    sizes on which it depends.
    """
    passed = {p["name"] for p in contract["parameters"]}
    sizes = {n: s for n, s in contract.get("sizes", {}).items() if "equal" in s and n not in passed}
    return {name: sizes.keys() & names_in(size["equal"]) for name, size in sizes.items()}


def _strides(by_name: Mapping[str, Any]) -> Iterator[str]:
    return (name for name, p in by_name.items() if p["kind"] == "stride")


def _unknown(of: Expression, known: Mapping[str, Any] | set[str], path: Path) -> Iterator[tuple[Path, str]]:
    for name in names_in(of):
        if name not in known:
            yield path, f"must be made of sizes and strides{_got(name, known)}"


def _got(name: str, known: Any) -> str:
    return f", got {name!r}{did_you_mean(name, sorted(known))}"
