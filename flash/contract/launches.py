"""The contract of the launches of a kernel, declared once: `Launch`. The contract that proofs take, that for
host programs of any language (plain data for JSON), and the constraints that follow from the declarations
of arrays are made of it. `forward.py`, `cache.py` and `gradient_launches.py` declare the launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from flash.operands.declared import LAST_KEYS, Number, Operand
from flash.problem.features import K_BLOCKS, Q_BLOCKS
from flash.problem.limits import MAX_CTAS
from flash.problem.tensor_maps import map_name
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.contract.expressions import CEIL_DIV, PLUS, TIMES, Expression, expression, operands, product
from ptxgen.kernels.tensor_maps import described
from ptxgen.runtime.plan import ParamSlot
from ptxgen.tensormap import Boxes
from ptxgen.types import f32, u32

_APART: Final = {
    "batch": "one batch to the next",
    "head": "one head to the next",
    "row": "one sequence position to the next",
    "page": "one page to the next",
    "split": "what one split writes to what the next one does",
}
# The names of dimensions in a contract, by the words for axes in the names of the text's parameters.
_DIMENSIONS: Final = {
    "heads": "head",
    "kv_heads": "head",
    "seq_q": "query",
    "seq_k": "key",
    LAST_KEYS: "key",
    "n": "row",
    "positions": "row",
    "kv_batch": "sequence",
    "table_columns": "column",
    "total_q": "query",
    "max_seqlen_q": "query",
    "bias_batch": "batch",
    "bias_heads": "head",
    Q_BLOCKS: "block",
    K_BLOCKS: "block",
    "splits": "split",
}


@dataclass(frozen=True)
class Launch:
    """The launches of a kernel: what it computes, the `arrays` that its pointers point to, its scalars,
    `ctas` along x, and what else it relies on. `scalars` with bounds are the sizes; those without a meaning
    are no parameters. The proof eliminates the last size first, so that factors of others come first. `equal`
    has for a size the expression that it is equal to, `of_hosts` the same for sizes that only hosts need it
    for. Arrays in `maps` have tensor maps.
    """

    kind: str
    computes: Mapping[str, Any]
    arrays: Sequence[Operand]
    scalars: Sequence[Number]
    ctas: Expression
    constraints: Iterable[str]
    more: Mapping[str, Any]
    equal: Mapping[str, Expression] = field(default_factory=dict)
    of_hosts: Mapping[str, Expression] = field(default_factory=dict)
    maps: Mapping[str, Boxes] = field(default_factory=dict)

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The least and the largest value of each size."""
        return {one.name: one.bounds for one in self.scalars if one.bounds is not None}

    @property
    def meanings(self) -> dict[str, str]:
        """The meaning of each parameter, by its name in the text."""
        meanings = {array.name: meaning_of(array) for array in self.arrays}
        meanings |= {one.name: one.meaning for one in self.scalars if one.meaning}
        for array in self.arrays:
            sign = "above 0" if array.name in self.maps else "any sign, 0 repeats"
            for step, stride in zip(array.step_words, array.strides, strict=True):
                apart = _APART.get(step, f"one to the next of {step}")
                meanings[stride] = (
                    f"elements (of {array.dtype.nbytes} bytes) from {apart} in {array.name}; {sign}"
                )
            if array.name in self.maps:
                meanings[map_name(array.name)] = f"CUtensorMap of {array.name} [{array.dims}], by value"
        return meanings

    def parameters(self, slots: Iterable[ParamSlot]) -> list[dict[str, Any]]:
        """The parameters of a kernel, which lie in `slots`, for hosts in other languages."""
        sizes, meanings = self.bounds, self.meanings
        kinds: dict[str, dict[str, Any]] = {}
        for array in self.arrays:
            of = {"array": array.name}
            kinds[array.name] = {"name": array.name, "kind": "pointer", **of}
            for dim, parameter in zip(dimensions(array), array.strides, strict=False):
                kinds[parameter] = {"name": dim.stride, "kind": "stride", **of, "dim": dim.name}
            if array.name in self.maps:
                name, boxes = map_name(array.name), _described(array, self.maps[array.name])
                kinds[name] = {"name": name, "kind": "tensor_map", **of, "tensor_map": boxes}
        return [
            {
                **kinds.get(s.name, {"name": s.name, "kind": "size" if s.name in sizes else "number"}),
                "type": s.type,
                "offset": s.offset,
                "size": s.nbytes,
                "meaning": meanings[s.name],
            }
            for s in slots
        ]

    @property
    def promised(self) -> GlobalContract:
        """The launches as the proof of global accesses takes them."""
        strides = tuple(stride for array in self.arrays for stride in array.strides)
        arrays = [_promised(array) for array in self.arrays]
        arrays += [replace(one, pointer=map_name(one.pointer)) for one in arrays if one.pointer in self.maps]
        equal = {name: rounded_down(of) for name, of in self.equal.items()}
        grid = rounded_down(self.ctas), 1, 1
        return GlobalContract(tuple(arrays), strides, self.bounds, grid, equal)

    @property
    def sizes(self) -> dict[str, dict[str, Any]]:
        """The bounds of each size, and the expression of others that it must be equal to, if any."""
        equal = {**self.equal, **self.of_hosts}
        return {
            name: {"least": least, "most": most} | ({"equal": equal[name]} if name in equal else {})
            for name, (least, most) in self.bounds.items()
        }


HEADS: Final = product("group", "kv_heads")  # the heads of Q
WHOLE_GROUPS: Final = "heads is a multiple of kv_heads"
EXACTLY: Final = "block and grid are exactly as given"
NO_LSE: Final = "not written: the kernel was made with return_lse=False"


def size(name: str, most: int, meaning: str = "", *, least: int = 1) -> Number:
    """A size of a launch; without a meaning it is no parameter."""
    return Number(name, u32, meaning, (least, most))


def sizes_of_heads(queries: Number, keys: Number, scale: str, most_group: int = MAX_CTAS) -> Iterator[Number]:
    """The scalars of a kernel over all heads, with the numbers of its queries and keys; `scale` is a text
    about the scale of scores.
    """
    yield size(
        "group",
        most_group,
        "heads / kv_heads, a whole number: query head h reads key/value head h / group, rounded down",
    )
    yield from (queries, keys, size("batch", MAX_CTAS), size("kv_heads", MAX_CTAS))
    yield size("heads", MAX_CTAS, "heads of Q and of the output, at least 1")
    yield Number("softmax_scale", f32, f"factor of Q K^T before the softmax, {scale}")


def rounded_down(of: Expression) -> int | str:
    """An expression as the proof reads it, whose quotients are rounded down."""
    if not isinstance(of, dict):
        return of
    how, parts = operands(of)
    texts = [f"({rounded_down(part)})" if isinstance(part, dict) else str(part) for part in parts]
    if how == CEIL_DIV:
        above, below = texts
        return f"({above} + {below} - 1) // {below}"
    return {TIMES: " * ", PLUS: " + "}[how].join(texts)


def _described(array: Operand, boxes: Boxes) -> dict[str, Any]:
    """The fields that a host encodes in the tensor map of an array with rows."""
    dims = dimensions(array)[::-1]
    return described(
        array.name,
        boxes,
        [array.columns, *(dim.extent for dim in dims)],
        [product(array.dtype.nbytes, dim.stride) for dim in dims],
    )


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of an array in a contract. `stride`, in elements, is the name of a parameter, which is
    `in_text` in the text of the kernel, or for an array that is dense an expression.
    """

    name: str
    extent: Expression
    stride: Expression
    in_text: Expression


def dimensions(operand: Operand) -> list[Dimension]:
    """The dimensions of an array before its rows, outermost first."""
    dims = []
    for n, (word, axis) in enumerate(zip(operand.steps or operand.axes, operand.axes, strict=True)):
        name = "_".join([_DIMENSIONS.get(each, each) for each in word.split(" * ")])
        stride: Expression = f"{operand.name}_{name}_stride"
        in_text: Expression = operand.strides[n] if operand.strides else ""
        if operand.is_dense:  # the elements of all later axes lie between two of an axis
            stride = in_text = product(*map(expression, operand.axes[n + 1 :]), max(operand.columns, 1))
        dims.append(Dimension(name, expression(operand.extent(axis)), stride, in_text))
    return dims


def described_array(operand: Operand) -> dict[str, Any]:
    """An array, for hosts in other languages."""
    return {
        "name": operand.name,
        "type": operand.dtype.name,
        "written": operand.is_written,
        "dims": [
            {"name": dim.name, "extent": dim.extent, "stride": dim.stride} for dim in dimensions(operand)
        ],
        "row": max(operand.columns, 1),
        "alignment": operand.alignment,
        **({} if operand.initial is None else {"initial": str(operand.initial)}),
    }


def _promised(operand: Operand) -> GlobalArray:
    """An array as the proof of global accesses takes it."""
    nbytes = operand.dtype.nbytes
    axes = [
        Axis(rounded_down(d.extent), rounded_down(product(nbytes, d.in_text))) for d in dimensions(operand)
    ]
    return GlobalArray(operand.name, tuple(axes), operand.nbytes, operand.alignment)


def meaning_of(array: Operand) -> str:
    """The meaning of the pointer to an array."""
    return (
        f"device address of {array.role or f'{array.name}, read'}: {array.dtype.name} "
        f"[{array.dims}], {'dense' if array.is_dense else 'strides as below'}"
        f"{f'; {array.meaning}' if array.meaning else ''}"
    )


def constraints_of_arrays(arrays: Sequence[Operand]) -> Iterator[str]:
    """The constraints that follow from the declarations of arrays: alignments, dense rows, and what is
    written.
    """
    aligned: dict[str, list[str]] = {}
    for array in arrays:
        of = f"{array.align} bytes" if array.align else "an element's size"
        aligned.setdefault(of, []).append(array.name)
    (most, first), *others = aligned.items()
    whose = "their" if len(first) > 1 else "its"
    more = "".join(f"; those of {listed(names)} of {of}" for of, names in others)
    yield f"{listed(first)}, and {whose} strides in bytes, are multiples of {most}{more}"
    if rows := [array.name for array in arrays if array.columns and not array.is_dense]:
        yield f"the last dimension of {listed(rows)} is dense (stride 1)"
    for array in arrays:
        if array.initial is not None:
            bits = int(np.float32(array.initial).view(np.uint32))
            yield f"each element of {array.name} is {array.initial} ({bits:#x}) before a launch"
    written = [array.name for array in arrays if array.is_written]
    strided = [array.name for array in arrays if array.is_written and not array.is_dense]
    unique = f", and no two indices of {' or of '.join(strided)} name one element" if strided else ""
    yield f"{listed(written)} share{'' if len(written) > 1 else 's'} no memory with any other array{unique}"


def mapped_strides(mapped: Iterable[str]) -> str:
    """The constraint on the strides of arrays with tensor maps."""
    return (
        f"the strides of {listed([*mapped])} are positive and below 2**40 bytes, as tensor maps take "
        "them; of a dimension with one element any such number will do"
    )


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    return " and ".join(", ".join(names).rsplit(", ", 1))
