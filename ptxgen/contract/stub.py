"""The host code that launches a kernel, in C or Rust, made of the kernel's contract and PTX text: a structure
of arguments, checks, strides of dense arrays, the grid, and the text as a string; and an example program that
uses it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any, Final

from ptxgen.contract import LANGUAGES, RUST, C
from ptxgen.contract.check import check_contract, computed
from ptxgen.contract.expressions import TIMES, Expression, formula, operands
from ptxgen.contract.host_maps import Map, longest_strides, maps_of, self_described_maps
from ptxgen.contract.host_words import Words, c_string, remark, unwritable
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.frames import load_template
from ptxgen.records import dataclass
from ptxgen.types import scalar_type

__all__ = ["example", "stub"]

_FREE_SHARED_BYTES: Final = 48 << 10  # of dynamic shared memory, which a launch may have unasked
_ELEMENT_BYTES: Final = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2} | dict.fromkeys(
    ("e4m3", "e5m2", "e8m0", "e2m1", "int8", "q8_0", "q4_0", "u8", "bool"), 1
)
_FLOATS: Final = {"f32": ("float", "f32"), "f64": ("double", "f64")}
_AS_BITS: Final = ("f16", "bf16")  # numbers that a host passes as the bits
_MOST_CTAS: Final = ((1 << 31) - 1, 65535, 65535)  # along x, y, z; PTX ISA, "Special Registers: %nctaid"


@dataclass(frozen=True, slots=True)
class Field:
    """A member of the structure of arguments. `type` is a type of the language; `kind` is that of the
    parameter, or "size" for a member that is not passed to the kernel. `count` is the number of elements of
    an array, 0 for a scalar.
    """

    name: str
    type: str
    kind: str
    meaning: str
    is_float: bool
    is_signed: bool
    bits: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of an array: its `extent` as code; `stride` is a member of the structure or "", `code` the
    stride of a dense array; the stride in elements must be a multiple of `step` and at most `most`, 0 for no
    limit.
    """

    extent: str
    stride: str
    code: str
    step: int
    most: int


@dataclass(frozen=True, slots=True)
class Array:
    """The array of a pointer parameter, for the templates; `nbytes` is the size of an element."""

    name: str
    pointer: str
    type: str
    nbytes: int
    row: int
    alignment: int
    written: bool
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A size: its name, its value as code, its bounds, and the expression that it must equal, as code
    (`equal`) and as text (`formula`); `function` is the name of the function that computes a computed size.
    """

    name: str
    function: str
    code: str
    least: int
    most: int
    equal: str
    formula: str
    is_derived: bool


def stub(contract: Mapping[str, Any], text: str, language: str, prefix: str = "") -> str:
    """A header in C99, or a module in Rust 2021, with which a host launches the kernel of a contract and
    its text. The names of a header begin with `prefix`, by default the name of the kernel.

    Raises `ConfigError` for a language that is not in `LANGUAGES`, what is no contract
    (`ptxgen.contract.check`), names that two parts of the stub would have, a prefix that is no name, a text
    that is not that of the contract or has control characters, and a kernel whose launches need clusters or
    all CTAs at once.
    """
    return load_template(f"host.{_suffix(language)}.j2").render(_values(contract, text, language, prefix))


def example(contract: Mapping[str, Any], language: str, file: str, prefix: str = "") -> str:
    """A program that launches the kernel of a contract on arrays in files, with the header or the module
    `file`. Raises `ConfigError` as `stub` does, and for a contract without arrays.
    """
    check_contract(contract)
    if "arrays" not in contract:
        raise ConfigError(
            f"example: the contract of {contract['entry']} does not say how large its arrays are; write the "
            "program by hand"
        )
    if not re.fullmatch(r"[\w.-]+", str(file), re.ASCII):
        raise ConfigError(f"example: the file must be a plain name, got {shown(file)}; rename it")
    values = _values(contract, None, language, prefix)
    return load_template(f"host_example.{_suffix(language)}.j2").render(values, file=file)


def _suffix(language: str) -> str:
    if language not in LANGUAGES:
        hint = did_you_mean(language, LANGUAGES)
        raise ConfigError(f"stub: the language must be {' or '.join(LANGUAGES)}, got {shown(language)}{hint}")
    return {C: "c", RUST: "rs"}[language]


def _values(contract: Mapping[str, Any], text: str | None, language: str, prefix: str) -> dict[str, Any]:
    """The values of the templates' fields; without a text only the values that an example needs."""
    check_contract(contract)
    _check(contract, text, language)
    prefix = prefix or re.sub(r"\W", "_", contract["entry"])
    words = Words(language, prefix)
    code = _Code(contract, language, prefix, words)
    grid = contract.get("grid")
    return {
        "prefix": prefix,
        "contract": contract,
        "constraints": [remark(text, language) for text in contract.get("constraints", ())],
        "programmatic": contract.get("programmatic", False),
        "fields": code.fields(),
        "sizes": code.sizes(),
        "arrays": code.arrays(),
        "aligned": code.aligned(),
        "passed": code.passed(),
        "maps": code.maps(),
        "copies": any(p["kind"] != "tensor_map" for p in contract["parameters"]),
        "grid": [code.of(grid[axis]) for axis in "xyz"] if grid else [],
        "grid_formula": remark(grid["formula"], language) if grid else "",
        "most_ctas": _MOST_CTAS,
        "opts_in": contract["dynamic_shared_bytes"] > _FREE_SHARED_BYTES,
        "lines": (text or "").splitlines(keepends=True),
        "text": text or "",
        "hashes": "#" * _hashes(text or ""),
        "c_string": c_string,
        "nbytes": len((text or "").encode()),
    }


def _check(contract: Mapping[str, Any], text: str | None, language: str) -> None:
    _suffix(language)
    entry = contract["entry"]
    if text is not None and hashlib.sha256(text.encode(errors="replace")).hexdigest() != contract["sha256"]:
        raise ConfigError(f"stub: the text is not that of the contract of {entry}: its sha256 differs")
    for number, line in enumerate((text or "").split("\n"), 1):
        bad = unwritable(line)
        if bad:
            raise ConfigError(
                f"stub: the text of {entry} must have no control characters but tabs and newlines, got "
                f"U+{ord(bad):04X} in line {number}; emit it without, with its contract"
            )
    attributes = ["cooperative"] if contract.get("cooperative") else []
    attributes += ["cluster"] if contract.get("cluster", [1, 1, 1]) != [1, 1, 1] else []
    if attributes:
        raise ConfigError(
            f"stub: {entry} has attributes of launches ({', '.join(attributes)}), which stubs do not have; "
            "launch it by cuLaunchKernelEx as its contract says"
        )


class _Code:
    """Names and expressions of a contract in one language."""

    def __init__(self, contract: Mapping[str, Any], language: str, prefix: str, words: Words) -> None:
        self.contract = contract
        self.language = language
        self.is_c = language == C
        self.prefix = prefix
        self.words = words
        self.parameters = {p["name"]: p for p in contract["parameters"]}
        self.named = contract.get("sizes", {})
        # Computed sizes, each after the sizes on which it depends.
        self.derived = list(TopologicalSorter(computed(contract)).static_order())
        self._refuse_twins()

    def _refuse_twins(self) -> None:
        """Raise `ConfigError` for two members or two functions of one name."""
        arrays = [f"{a['name']}_bytes" for a in self.contract.get("arrays", ())]
        maps = [f"encode_{p['name']}" for p in self.parameters.values() if p["kind"] == "tensor_map"]
        functions = [self.words.function(name) for name in self.derived]
        for what, names in (
            ("members", [field.name for field in self.fields()]),
            ("functions", [*functions, *arrays, *(maps if self.is_c else ())]),
        ):
            twins = [name for name, count in Counter(names).items() if count > 1]
            if twins:
                raise ConfigError(
                    f"stub: two {what} of {self.contract['entry']} would have the name {twins[0]}; rename a "
                    "parameter, an array or a size of the kernel"
                )

    def member(self, name: str) -> str:
        """The name of a member of the structure of arguments."""
        return self.words.member(name)

    def value(self, name: str) -> str:
        """The code, in C or Rust, for the value of a size or a stride."""
        if name in self.derived:
            function = self.words.function(name)
            return f"{self.prefix}_{function}(a)" if self.is_c else f"self.{function}()"
        return f"(uint64_t)a->{self.member(name)}" if self.is_c else f"self.{self.member(name)} as u64"

    def of(self, expression: Expression) -> str:
        """Code for the value of an expression, an unsigned 64-bit integer that saturates at the largest
        one.
        """
        if isinstance(expression, int):
            return f"UINT64_C({expression})" if self.is_c else f"{expression}u64"
        if isinstance(expression, str):
            return self.value(expression)
        how, parts = operands(expression)
        codes = [self.of(part) for part in parts]
        code_of_all = codes[0]
        for code in codes[1:]:
            code_of_all = f"{'ptxgen_' if self.is_c else ''}{how}({code_of_all}, {code})"
        return code_of_all

    def fields(self) -> list[Field]:
        """The members: parameters in their order, then sizes that are no parameters. A tensor map of an array
        of which the contract does not have the shape has the address, the shape and the strides of the array.
        """
        ranks, fields = self_described_maps(self.contract), []
        for name, p in self.parameters.items():
            if p["kind"] != "tensor_map":
                fields.append(self._field(name, p["type"], p["kind"], p["meaning"]))
            elif name in ranks:
                fields.append(self._field(name, "u64", "pointer", f"the address; {p['meaning']}"))
                for what, meaning in (("shape", "elements"), ("strides", "bytes")):
                    of = self._field(f"{name}_{what}", "u64", what, f"{meaning}, outermost dimension first")
                    fields.append(self._many(of, ranks[name]))
        free = [name for name in self.named if name not in self.parameters and name not in self.derived]
        return [*fields, *(self._field(name, "s64", "size", "not passed to the kernel") for name in free)]

    def _field(self, name: str, type: str, kind: str, meaning: str) -> Field:
        bits, signed = scalar_type(type).bits, scalar_type(type).is_signed
        if type in _FLOATS:
            written = _FLOATS[type][0 if self.is_c else 1]
        elif self.is_c:
            written = "CUdeviceptr" if kind == "pointer" else f"{'' if signed else 'u'}int{bits}_t"
        else:
            written = f"{'i' if signed else 'u'}{bits}"
        member, is_float = self.member(name), type in _FLOATS
        return Field(member, written, kind, remark(meaning, self.language), is_float, signed, bits)

    def _many(self, of: Field, count: int) -> Field:
        return replace(of, count=count, type=of.type if self.is_c else f"[{of.type}; {count}]")

    def passed(self) -> list[str]:
        """The address of each kernel parameter's value in host memory, as C or Rust code."""
        prefix = ("&a.", "kernel->maps[{}].map") if self.is_c else ("&mut a.", "&mut maps[{}]")
        maps = iter(range(len(self.parameters)))
        return [
            prefix[1].format(next(maps)) if p["kind"] == "tensor_map" else prefix[0] + self.member(name)
            for name, p in self.parameters.items()
        ]

    def maps(self) -> list[Map]:
        """The tensor maps that the host encodes, as code in C or Rust."""
        return maps_of(self.contract, self.member, self.of, "a->{}[{}]" if self.is_c else "self.{}[{}]")

    def sizes(self) -> list[Size]:
        """All sizes of the contract, each after the sizes from which it is computed."""
        return [
            Size(
                name,
                self.words.function(name),
                self.value(name),
                size["least"],
                size["most"],
                self.of(size["equal"]) if "equal" in size else "",
                formula(size["equal"]) if "equal" in size else "",
                name in self.derived,
            )
            for name, size in (
                (name, self.named[name])
                for name in [*(n for n in self.named if n not in self.derived), *self.derived]
            )
        ]

    def arrays(self) -> list[Array]:
        """The arrays of the contract, for the templates; none for a kernel that a user wrote."""
        return [
            Array(
                array["name"],
                self.member(array["name"]),
                array["type"],
                _ELEMENT_BYTES[array["type"]],
                array["row"],
                array["alignment"],
                array["written"],
                tuple(self._dims(array)),
            )
            for array in self.contract.get("arrays", ())
        ]

    def _dims(self, array: Mapping[str, Any]) -> list[Dim]:
        dims, outermost_last = array["dims"], []
        step = max(array["alignment"] // _ELEMENT_BYTES[array["type"]], 1)
        most = longest_strides(self.contract).get(array["name"], 0)
        dense: Expression = array["row"]  # elements between two indices, where nothing lies between them
        for dim in reversed(dims):
            stride = dim["stride"]
            is_free = isinstance(stride, str) and self.parameters.get(stride, {}).get("kind") == "stride"
            code = self.of(dense if is_free else stride)
            outermost_last.append(
                Dim(self.of(dim["extent"]), self.member(stride) if is_free else "", code, step, most)
            )
            dense = {TIMES: [dim["extent"], dense]}
        return outermost_last[::-1]

    def aligned(self) -> list[tuple[str, int]]:
        """The pointers of a user's kernel that must be aligned, and to how many bytes."""
        if "arrays" in self.contract:
            return []
        alignments = {
            p["name"]: max(p.get("align", 1), scalar_type(p["element"]).nbytes)
            for p in self.parameters.values()
            if p["kind"] == "pointer"
        }
        alignments |= {
            n: self.parameters[n]["tensor_map"]["alignment"] for n in self_described_maps(self.contract)
        }
        return [(self.member(name), nbytes) for name, nbytes in alignments.items()]


def _hashes(text: str) -> int:
    """The number of # that a raw string of Rust needs around a text."""
    return 1 + max((len(run) - 1 for run in re.findall(r'"#*', text)), default=0)
