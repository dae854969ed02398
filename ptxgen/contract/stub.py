"""A host's side of a kernel in C or Rust, made of its contract and its text alone: the arguments as a
structure, checks, strides of dense arrays, the grid, and the text inside; and a program that uses it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.contract import SCHEMA
from ptxgen.contract.expressions import TIMES, Expression, formula, operands
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.frames import load_template
from ptxgen.types import scalar_type

__all__ = ["LANGUAGES", "example", "stub"]

C, RUST = "c", "rust"
LANGUAGES: Final = (C, RUST)

_FREE_SHARED_BYTES: Final = 48 << 10  # of dynamic shared memory, which a launch may have unasked
_ELEMENT_BYTES: Final = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "u8": 1, "bool": 1}
_FLOATS: Final = {"f32": ("float", "f32"), "f64": ("double", "f64")}
_AS_BITS: Final = ("f16", "bf16")  # numbers that a host passes as the bits
_MOST_CTAS: Final = ((1 << 31) - 1, 65535, 65535)  # along x, y, z; PTX ISA, "Special Registers: %nctaid"
# Words that are no names: of C and C++ together, because a header is for both.
_OF_C: Final = """
alignas alignof asm auto bool break case catch char class const constexpr continue default delete do double
else enum explicit extern false float for friend goto if inline int long namespace new nullptr operator
private protected public register restrict return short signed sizeof static struct switch template this
throw true try typedef typename union unsigned using virtual void volatile while
"""
_OF_RUST: Final = """
as async await become box break const continue crate do dyn else enum extern false final fn for if impl in
let loop macro match mod move mut override priv pub ref return static struct trait true try type typeof
unsafe unsized use virtual where while yield
"""
_C_WORDS: Final = frozenset(_OF_C.split())
_RUST_WORDS: Final = frozenset(_OF_RUST.split())


@dataclass(frozen=True, slots=True)
class Field:
    """A member of the structure of arguments. `type` is that of the language; `kind` is that of a
    parameter, or "size" for one that is not passed to the kernel.
    """

    name: str
    type: str
    kind: str
    meaning: str
    is_float: bool
    is_signed: bool
    bits: int


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension: how many indices, as code; `stride` is a member of the structure or "", `code` the
    stride of a dense array; `step`: of how many elements a stride must be a multiple.
    """

    extent: str
    stride: str
    code: str
    step: int


@dataclass(frozen=True, slots=True)
class Array:
    """What a pointer points to; `nbytes` is of an element."""

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
    """A size: the name, its value as code, its bounds, and what it must be equal to, as code and in words."""

    name: str
    code: str
    least: int
    most: int
    equal: str
    formula: str
    is_derived: bool


def stub(contract: Mapping[str, Any], text: str, language: str, prefix: str = "") -> str:
    """A header in C99, or a module in Rust 2021, with which a host launches the kernel of a contract and
    its text. The names of a header begin with `prefix`, by default the name of the kernel.

    Raises `ConfigError` for a language that is not in `LANGUAGES`, a prefix that is no name, a text that is
    not that of the contract, and a kernel whose launches need tensor maps, clusters or all CTAs at once.
    """
    return load_template(f"host.{_suffix(language)}.j2").render(_values(contract, text, language, prefix))


def example(contract: Mapping[str, Any], language: str, file: str, prefix: str = "") -> str:
    """A program that launches the kernel of a contract on arrays in files, with the header or the module
    `file`. Raises `ConfigError` as `stub` does, and for a contract that says nothing of arrays.
    """
    if "arrays" not in contract:
        raise ConfigError(
            f"example: the contract of {contract['entry']} does not say how large its arrays are; write the "
            "program by hand"
        )
    if not re.fullmatch(r"[\w.-]+", file):
        raise ConfigError(f"example: the file must be a plain name, got {shown(file)}; rename it")
    values = _values(contract, None, language, prefix)
    return load_template(f"host_example.{_suffix(language)}.j2").render(values, file=file)


def _suffix(language: str) -> str:
    if language not in LANGUAGES:
        hint = did_you_mean(language, LANGUAGES)
        raise ConfigError(f"stub: the language must be {' or '.join(LANGUAGES)}, got {shown(language)}{hint}")
    return {C: "c", RUST: "rs"}[language]


def _values(contract: Mapping[str, Any], text: str | None, language: str, prefix: str) -> dict[str, Any]:
    """What the templates are filled with; without a text what an example needs."""
    _check(contract, text, language)
    prefix = prefix or re.sub(r"\W", "_", contract["entry"])
    if not re.fullmatch(r"[A-Za-z]\w*", prefix, re.ASCII) or prefix in _C_WORDS:
        raise ConfigError(f"stub: the prefix must be a name in C, got {shown(prefix)}")
    code = _Code(contract, language, prefix)
    grid = contract.get("grid")
    return {
        "prefix": prefix,
        "contract": contract,
        "programmatic": contract.get("programmatic", False),
        "fields": code.fields(),
        "sizes": code.sizes(),
        "arrays": code.arrays(),
        "aligned": code.aligned(),
        "passed": [code.member(p["name"]) for p in contract["parameters"]],
        "grid": [code.of(grid[axis]) for axis in "xyz"] if grid else [],
        "grid_formula": grid["formula"] if grid else "",
        "most_ctas": _MOST_CTAS,
        "opts_in": contract["dynamic_shared_bytes"] > _FREE_SHARED_BYTES,
        "lines": (text or "").splitlines(keepends=True),
        "text": text or "",
        "hashes": "#" * _hashes(text or ""),
        "c_string": _c_string,
        "nbytes": len((text or "").encode()),
    }


def _check(contract: Mapping[str, Any], text: str | None, language: str) -> None:
    _suffix(language)
    if contract.get("schema") != SCHEMA:
        raise ConfigError(
            f"stub: the contract must have schema {SCHEMA}, got {shown(contract.get('schema'))}"
        )
    entry = contract["entry"]
    if text is not None and hashlib.sha256(text.encode()).hexdigest() != contract["sha256"]:
        raise ConfigError(f"stub: the text is not that of the contract of {entry}: its sha256 differs")
    maps = [p["name"] for p in contract["parameters"] if p["kind"] == "tensor_map"]
    attributes = ["cooperative"] if contract.get("cooperative") else []
    attributes += ["cluster"] if contract.get("cluster", [1, 1, 1]) != [1, 1, 1] else []
    if maps or attributes:
        has = (
            f"tensor maps ({', '.join(maps)})"
            if maps
            else f"attributes of launches ({', '.join(attributes)})"
        )
        raise ConfigError(
            f"stub: {entry} has {has}, which stubs do not have; launch it by cuLaunchKernelEx as its "
            f"contract says{_OTHER_TARGET if maps and 'arrays' in contract else ''}"
        )


_OTHER_TARGET: Final = ", or emit the kernel for sm_90, where it has none"


class _Code:
    """Names and expressions of a contract in one language."""

    def __init__(self, contract: Mapping[str, Any], language: str, prefix: str) -> None:
        self.contract = contract
        self.is_c = language == C
        self.prefix = prefix
        self.parameters = {p["name"]: p for p in contract["parameters"]}
        self.named = contract.get("sizes", {})
        # Sizes that are computed: neither a parameter nor free.
        self.derived = {n for n, size in self.named.items() if "equal" in size and n not in self.parameters}

    def member(self, name: str) -> str:
        """The name of a member of the structure of arguments."""
        if self.is_c:
            return f"{name}_" if name in _C_WORDS else name
        return f"r#{name}" if name in _RUST_WORDS else name

    def value(self, name: str) -> str:
        """The value of a size or a stride."""
        if name in self.derived:
            return f"{self.prefix}_{name}(a)" if self.is_c else f"self.{name}()"
        return f"(uint64_t)a->{self.member(name)}" if self.is_c else f"self.{self.member(name)} as u64"

    def of(self, expression: Expression) -> str:
        """The value of an expression, an unsigned 64-bit integer that is the greatest if it is too large."""
        if isinstance(expression, int):
            return f"UINT64_C({expression})" if self.is_c else f"{expression}u64"
        if isinstance(expression, str):
            return self.value(expression)
        how, parts = operands(expression)
        codes = [self.of(part) for part in parts]
        found = codes[0]
        for code in codes[1:]:
            found = f"{'ptxgen_' if self.is_c else ''}{how}({found}, {code})"
        return found

    def fields(self) -> list[Field]:
        """The members: parameters in their order, then sizes that are none."""
        found = [self._field(p["name"], p["type"], p["kind"], p["meaning"]) for p in self.parameters.values()]
        free = [name for name in self.named if name not in self.parameters and name not in self.derived]
        return [*found, *(self._field(name, "s64", "size", "not passed to the kernel") for name in free)]

    def _field(self, name: str, type: str, kind: str, meaning: str) -> Field:
        bits, signed = int(type.strip("bfsu")), type.startswith("s")
        if type in _FLOATS:
            written = _FLOATS[type][0 if self.is_c else 1]
        elif self.is_c:
            written = "CUdeviceptr" if kind == "pointer" else f"{'' if signed else 'u'}int{bits}_t"
        else:
            written = f"{'i' if signed else 'u'}{bits}"
        member, is_float = self.member(name), type in _FLOATS
        return Field(member, written, kind, meaning, is_float, signed, bits)

    def sizes(self) -> list[Size]:
        """All sizes; those that are computed behind those that they are made of."""
        return [
            Size(
                name,
                self.value(name),
                size["least"],
                size["most"],
                self.of(size["equal"]) if "equal" in size else "",
                formula(size["equal"]) if "equal" in size else "",
                name in self.derived,
            )
            for name, size in sorted(self.named.items(), key=lambda item: item[0] in self.derived)
        ]

    def arrays(self) -> list[Array]:
        """The arrays; none for a kernel of one's own."""
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
        dims, found = array["dims"], []
        step = max(array["alignment"] // _ELEMENT_BYTES[array["type"]], 1)
        dense: Expression = array["row"]  # elements between two indices, where nothing lies between them
        for dim in reversed(dims):
            stride = dim["stride"]
            is_free = isinstance(stride, str) and self.parameters.get(stride, {}).get("kind") == "stride"
            code = self.of(dense if is_free else stride)
            found.append(Dim(self.of(dim["extent"]), self.member(stride) if is_free else "", code, step))
            dense = {TIMES: [dim["extent"], dense]}
        return found[::-1]

    def aligned(self) -> list[tuple[str, int]]:
        """The pointers of a kernel of one's own that must be aligned, and to what."""
        if "arrays" in self.contract:
            return []
        pointers = [p for p in self.parameters.values() if p["kind"] == "pointer"]
        return [
            (self.member(p["name"]), max(p.get("align", 1), scalar_type(p["element"]).nbytes))
            for p in pointers
        ]


def _c_string(text: str) -> str:
    """A text as a string of C. A question mark is escaped: two of them would begin a trigraph."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "?": "\\?"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'


def _hashes(text: str) -> int:
    """How many # a raw string of Rust needs around a text."""
    return 1 + max((len(run) - 1 for run in re.findall(r'"#*', text)), default=0)
