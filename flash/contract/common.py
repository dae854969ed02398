"""What a host program in any language needs to launch a kernel, as plain data for JSON: the part
that is the same for all kernels. `flash/contract/forward.py`, `cache.py` and
`gradient_launches.py` add the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flash.contract.built_kernel import BuiltKernel
from flash.operands.declared import LAST_KEYS, Operand
from flash.problem.features import K_BLOCKS, Q_BLOCKS
from flash.problem.limits import MAX_CTAS
from flash.problem.tensor_maps import map_name
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.verify.budget import static_shared_bytes
from ptxgen.contract import SCHEMA
from ptxgen.contract.expressions import Expression, expression, formula, product
from ptxgen.kernels.tensor_maps import described
from ptxgen.tensormap import Boxes

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
class Words:
    """What one kind of kernel adds to the contract: what it computes, what each parameter means,
    how many CTAs it has along x, and what it relies on. `meanings` are by the names of the text's
    parameters. `equal` is what sizes must be equal to beside what the proof takes.
    """

    kind: str
    computes: Mapping[str, Any]
    meanings: Mapping[str, str]
    ctas: Expression
    constraints: Iterable[str]
    more: Mapping[str, Any]
    equal: Mapping[str, Expression] = field(default_factory=dict)


def launch_contract(made: BuiltKernel, words: Words) -> dict[str, Any]:
    """The contract of a kernel. Sizes and offsets are in bytes unless the key says otherwise."""
    kernel, sizes = made.kernel, _sizes(made, words.equal)
    strides = {
        parameter: dimension
        for operand in made.arrays
        for parameter, dimension in zip(operand.strides, dimensions(operand), strict=False)
    }
    maps = {
        map_name(array.name): {
            "kind": "tensor_map",
            "array": array.name,
            "tensor_map": _described(array, made.maps[array.name]),
        }
        for array in made.arrays
        if array.name in made.maps
    }
    return {
        "schema": SCHEMA,
        "kind": words.kind,
        "entry": kernel.name,
        "target": made.module.target,
        "ptx_version": ".".join(str(part) for part in made.module.version),
        "sha256": hashlib.sha256(made.text.encode()).hexdigest(),
        **words.computes,
        "parameters": [
            {
                "name": strides[s.name].stride if s.name in strides else s.name,
                **(maps[s.name] if s.name in maps else _kind(s.name, made.arrays, strides, sizes)),
                "type": s.type,
                "offset": s.offset,
                "size": s.nbytes,
                "meaning": words.meanings[s.name],
            }
            for s in made.slots
        ],
        "arrays": [_array(operand) for operand in made.arrays],
        "sizes": sizes,
        "block": [made.threads, 1, 1],
        "grid": {"formula": f"({formula(words.ctas)}, 1, 1)", "x": words.ctas, "y": 1, "z": 1},
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "static_shared_bytes": static_shared_bytes(kernel),
        **({"programmatic": True} if made.attributes.programmatic else {}),
        **words.more,
        "constraints": [*words.constraints, *_constraints_of_all(made)],
    }


def _described(array: Operand, boxes: Boxes) -> dict[str, Any]:
    """What a host encodes for the tensor map of an array with rows."""
    dims = dimensions(array)[::-1]
    return described(
        array.name,
        boxes,
        [array.columns, *(dim.extent for dim in dims)],
        [product(array.dtype.nbytes, dim.stride) for dim in dims],
    )


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of an array in a contract. `stride`, in elements, is the name of a parameter, or an
    expression for an array that is dense.
    """

    array: str
    name: str
    extent: Expression
    stride: Any


def dimensions(operand: Operand) -> list[Dimension]:
    """The dimensions of an array before its rows, outermost first."""
    words = operand.steps or operand.axes
    names = [_DIMENSIONS.get(word, word) for word in words] if operand.strides else _names(operand)
    found = []
    for n, (name, axis) in enumerate(zip(names, operand.axes, strict=True)):
        stride: Expression = f"{operand.name}_{name}_stride"
        if operand.is_dense:  # the elements of all later axes lie between two of an axis
            stride = product(*map(expression, operand.axes[n + 1 :]), max(operand.columns, 1))
        found.append(Dimension(operand.name, name, expression(operand.extent(axis)), stride))
    return found


def _names(operand: Operand) -> list[str]:
    """The names of the dimensions of a dense array, of which one may be a product of several."""
    return ["_".join(_DIMENSIONS.get(each, each) for each in axis.split(" * ")) for axis in operand.axes]


def _kind(
    name: str, arrays: Sequence[Operand], strides: Mapping[str, Dimension], sizes: Mapping[str, object]
) -> dict[str, str]:
    """What kind of parameter the text's parameter `name` is, and what of."""
    if name in strides:
        return {"kind": "stride", "array": strides[name].array, "dim": strides[name].name}
    if any(array.name == name for array in arrays):
        return {"kind": "pointer", "array": name}
    return {"kind": "size" if name in sizes else "number"}


def _array(operand: Operand) -> dict[str, Any]:
    """An array of a contract."""
    return {
        "name": operand.name,
        "type": operand.dtype.name,
        "written": operand.is_written,
        "dims": [
            {"name": dim.name, "extent": dim.extent, "stride": dim.stride} for dim in dimensions(operand)
        ],
        "row": max(operand.columns, 1),
        "alignment": operand.alignment,
    }


def promised_array(operand: Operand) -> GlobalArray:
    """An array as the proof of global accesses takes it."""
    nbytes = operand.dtype.nbytes
    strides = [f"{nbytes} * {stride}" for stride in operand.strides]
    if operand.is_dense:  # the elements of all later axes lie between two of an axis
        later = [operand.axes[n + 1 :] for n in range(len(operand.axes))]
        strides = [" * ".join((str(operand.nbytes), *axes)) for axes in later]
    axes = zip(operand.axes, strides, strict=True)
    return GlobalArray(
        operand.name,
        tuple(Axis(_size(operand.extent(axis)), _size(stride)) for axis, stride in axes),
        operand.nbytes,
        operand.alignment,
    )


def _size(expression: str) -> int | str:
    """An expression of sizes; a number as such."""
    return int(expression) if expression.isdigit() else expression


def promised_launch(
    arrays: Sequence[Operand],
    bounds: Mapping[str, tuple[int, int]],
    blocks: str,
    equal: Mapping[str, str],
    mapped: Collection[str] = (),
) -> GlobalContract:
    """The contract of a kernel's launches, of `blocks` CTAs, as the proof of global accesses takes
    it. The arrays in `mapped` have tensor maps, too.
    """
    strides = tuple(stride for operand in arrays for stride in operand.strides)
    found = [promised_array(operand) for operand in arrays]
    found += [replace(array, pointer=map_name(array.pointer)) for array in found if array.pointer in mapped]
    return GlobalContract(tuple(found), strides, bounds, (blocks, 1, 1), equal)


def _sizes(made: BuiltKernel, equal: Mapping[str, Expression]) -> dict[str, dict[str, Any]]:
    """The bounds of each size, and the expression of other sizes that it must be equal to: that in
    `equal`, or what the proof takes.
    """
    promised = made.promised
    found: dict[str, dict[str, Any]] = {}
    for name, (least, most) in promised.bounds.items():
        found[name] = {"least": least, "most": most}
        if name in equal:
            found[name]["equal"] = equal[name]
        elif name in promised.equal:
            found[name]["equal"] = expression(promised.equal[name])
    return found


def _constraints_of_all(made: BuiltKernel) -> list[str]:
    target, shared = made.target, made.kernel.dynamic_shared_bytes
    constraints = [
        f"the grid has 1 to {MAX_CTAS} CTAs: with no query there is nothing to launch",
        f"the device runs {target}"
        + (" and nothing else (architecture-specific target)" if target.suffix else " or later"),
    ]
    if made.attributes.programmatic:
        constraints.append(
            "a launch may have CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION (cuLaunchKernelEx): the "
            "kernel then begins before the one before it in the stream has ended, and waits for it by "
            "griddepcontrol.wait before it reads or writes memory; without it, it begins later"
        )
    if shared > target.shared_per_block:
        constraints.append(
            "before the first launch set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the "
            f"function to {shared}"
        )
    return constraints


def meanings_of_pointers(arrays: Iterable[Operand]) -> dict[str, str]:
    """The meaning of the pointer to each array, by parameter."""
    return {
        array.name: (
            f"device address of {array.role or f'{array.name}, read'}: {array.dtype.name} "
            f"[{array.dims}], {'dense' if array.is_dense else 'strides as below'}"
            f"{f'; {array.meaning}' if array.meaning else ''}"
        )
        for array in arrays
    }


def meanings_of_maps(arrays: Iterable[Operand], mapped: Collection[str]) -> dict[str, str]:
    """The meaning of the tensor map of each array in `mapped`, by parameter."""
    return {
        map_name(array.name): f"CUtensorMap of {array.name} [{array.dims}], by value"
        for array in arrays
        if array.name in mapped
    }


def meanings_of_strides(arrays: Iterable[Operand], mapped: Collection[str] = ()) -> dict[str, str]:
    """The meaning of each stride of arrays, by parameter. Those of arrays in `mapped` are also in a
    tensor map.
    """
    return {
        stride: (
            f"elements (of {array.dtype.nbytes} bytes) from "
            f"{_APART.get(step, f'one to the next of {step}')} in {array.name}; "
            f"{'above 0' if array.name in mapped else 'any sign, 0 repeats'}"
        )
        for array in arrays
        for step, stride in zip(array.step_words, array.strides, strict=True)
    }
