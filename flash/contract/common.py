"""What a host program in any language needs to launch a kernel, as plain data for JSON: the part
that is the same for all kernels. `flash/contract/forward.py` and `flash/contract/cache.py` add the
rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flash.contract.built_kernel import BuiltKernel
from flash.operands.declared import Operand
from flash.problem.limits import MAX_CTAS
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.verify.budget import static_shared_bytes

SCHEMA: Final = 1  # version of the dictionary, raised when a key changes its meaning

_APART: Final = {
    "batch": "one batch to the next",
    "head": "one head to the next",
    "row": "one sequence position to the next",
    "page": "one page to the next",
    "split": "what one split writes to what the next one does",
}


@dataclass(frozen=True)
class Words:
    """What one kind of kernel adds to the contract: what it computes, what each parameter means,
    how many CTAs it has, and what it relies on.
    """

    kind: str
    computes: Mapping[str, Any]
    meanings: Mapping[str, str]
    grid: Mapping[str, Any]
    constraints: Iterable[str]
    more: Mapping[str, Any]


def launch_contract(made: BuiltKernel, words: Words) -> dict[str, Any]:
    """The contract of a kernel. Sizes and offsets are in bytes unless the key says otherwise."""
    kernel = made.kernel
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
                "name": s.name,
                "type": s.type,
                "offset": s.offset,
                "size": s.nbytes,
                "meaning": words.meanings[s.name],
            }
            for s in made.slots
        ],
        "arrays": [_array(operand) for operand in made.arrays],
        "sizes": _sizes(made),
        "block": [made.threads, 1, 1],
        "grid": {**words.grid, "y": 1, "z": 1},
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "static_shared_bytes": static_shared_bytes(kernel),
        **words.more,
        "constraints": [*words.constraints, *_constraints_of_all(made)],
    }


def _array(operand: Operand) -> dict[str, Any]:
    """An array of a contract."""
    promised = promised_array(operand)
    return {
        "name": operand.name,
        "type": operand.dtype.name,
        "written": operand.is_written,
        "dims": [{"extent": axis.extent, "stride": axis.stride} for axis in promised.axes],
        "row": max(operand.columns, 1),
        "alignment": operand.alignment,
    }


def promised_array(operand: Operand) -> GlobalArray:
    """An array as the proof of global accesses takes it."""
    nbytes = operand.dtype.nbytes
    strides = [f"{nbytes} * {stride}" for stride in operand.strides]
    if operand.is_dense:  # the elements of all later axes lie between two of an axis
        later = [operand.axes[n + 1 :] for n in range(len(operand.axes))]
        strides = [" * ".join((str(nbytes), *axes)) for axes in later]
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
    arrays: Sequence[Operand], bounds: Mapping[str, tuple[int, int]], blocks: str, equal: Mapping[str, str]
) -> GlobalContract:
    """The contract of a kernel's launches, of `blocks` CTAs, as the proof of global accesses takes
    it.
    """
    strides = tuple(stride for operand in arrays for stride in operand.strides)
    return GlobalContract(tuple(map(promised_array, arrays)), strides, bounds, (blocks, 1, 1), equal)


def _sizes(made: BuiltKernel) -> dict[str, dict[str, int | str]]:
    """The bounds of each size, and the expression of other sizes that it must be equal to."""
    promised = made.promised
    found: dict[str, dict[str, int | str]] = {}
    for name, (least, most) in promised.bounds.items():
        found[name] = {"least": least, "most": most}
        if name in promised.equal:
            found[name]["equal"] = promised.equal[name]
    return found


def _constraints_of_all(made: BuiltKernel) -> list[str]:
    target, shared = made.target, made.kernel.dynamic_shared_bytes
    constraints = [
        f"the grid has 1 to {MAX_CTAS} CTAs: with no query there is nothing to launch",
        f"the device runs {target}"
        + (" and nothing else (architecture-specific target)" if target.suffix else " or later"),
    ]
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


def meanings_of_strides(arrays: Iterable[Operand]) -> dict[str, str]:
    """The meaning of each stride of arrays, by parameter."""
    return {
        stride: (
            f"elements (of {array.dtype.nbytes} bytes) from "
            f"{_APART.get(step, f'one to the next of {step}')} in {array.name}; any sign, 0 repeats"
        )
        for array in arrays
        for step, stride in zip(array.step_words, array.strides, strict=True)
    }
