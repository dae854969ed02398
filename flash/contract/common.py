"""What a host program in any language needs to launch a kernel, as plain data for JSON: the part
that is the same for all kernels. `flash/contract/forward.py` and `flash/contract/cache.py` add the
rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flash.contract.built_kernel import Made
from flash.operands.declared import Operand
from flash.operands.dtypes import DType
from flash.problem.limits import MAX_CTAS
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
    the types of its arrays, which of them it writes, how many CTAs it has, and what it relies on.
    """

    kind: str
    computes: Mapping[str, Any]
    meanings: Mapping[str, str]
    types: Mapping[str, DType]
    written: tuple[str, ...]
    grid: Mapping[str, Any]
    constraints: Iterable[str]
    more: Mapping[str, Any]


def launch_contract(made: Made, words: Words) -> dict[str, Any]:
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
        "arrays": [
            {
                "name": array.pointer,
                "type": words.types[array.pointer].name,
                "written": array.pointer in words.written,
                "dims": [{"extent": axis.extent, "stride": axis.stride} for axis in array.axes],
                "row": array.nbytes // words.types[array.pointer].nbytes,
                "alignment": array.align,
            }
            for array in made.promised.arrays
        ],
        "sizes": _sizes(made),
        "block": [made.threads, 1, 1],
        "grid": {**words.grid, "y": 1, "z": 1},
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "static_shared_bytes": static_shared_bytes(kernel),
        **words.more,
        "constraints": [*words.constraints, *_constraints_of_all(made)],
    }


def _sizes(made: Made) -> dict[str, dict[str, int | str]]:
    """The bounds of each size, and the expression of other sizes that it must be equal to."""
    promised = made.promised
    found: dict[str, dict[str, int | str]] = {}
    for name, (least, most) in promised.bounds.items():
        found[name] = {"least": least, "most": most}
        if name in promised.equal:
            found[name]["equal"] = promised.equal[name]
    return found


def _constraints_of_all(made: Made) -> list[str]:
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


def stride_meanings(name: str, steps: Iterable[str], dtype: DType) -> dict[str, str]:
    """The meaning of each stride of an array, by parameter."""
    return {
        f"{name}_{step}_stride": (
            f"elements (of {dtype.nbytes} bytes) from {_APART[step]} in {name}; any sign, 0 repeats"
        )
        for step in steps
    }


def operand_meanings(operands: Iterable[Operand]) -> dict[str, str]:
    """The meaning of each pointer to an operand, by parameter."""
    return {
        operand.name: (
            f"device address of {operand.name}: {operand.dtype.name} "
            f"[{operand.dims}], read, strides as below; "
            f"{operand.meaning}"
        )
        for operand in operands
    }


def operand_stride_meanings(operands: Iterable[Operand]) -> dict[str, str]:
    """The meaning of each stride of operands, by parameter."""
    return {
        operand.stride(axis): (
            f"elements (of {operand.dtype.nbytes} bytes) from one to the next of {axis} in "
            f"{operand.name}; any sign, 0 repeats"
        )
        for operand in operands
        for axis in operand.axes
    }
