"""The record of a proof without faults: its verdicts as JSON, without what the module itself says.

A record has the index of each instruction; its text and its origin are those of the module that the record
is read for, so a record is right for every module with the same text. A proof that shows a fault, or has a
problem to report, has no record: it is made anew each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, Proof, Verdict
from ptxgen.ir import Instr, Module

if TYPE_CHECKING:
    from ptxgen.check.prove.proof import Proofs

# Lists of verdicts: those of `Proof` by the names of its fields, and those of the accesses to global memory.
_OF_SHARED: Final = ("accesses", "barriers", "convergence", "tensor_memory")
_GLOBAL: Final = "global_memory"
_KEYS: Final = {"kernel", "block", "dynamic_smem", _GLOBAL, *_OF_SHARED}
_ROW: Final = (str, str, int, str, str, int, int)  # verdict, kernel, number, reason, allocation, first, last
_AXES: Final = 3

Row = list[Any]


def recorded(proofs: Proofs) -> bytes | None:
    """The record of a kernel's proofs as JSON data; None if they show a fault or report a problem."""
    shared, everywhere = proofs.shared, proofs.global_memory
    if shared.problems or shared.unfenced or shared.violations:
        return None
    if everywhere is not None and everywhere.violations:
        return None
    record = {
        "kernel": shared.kernel,
        "block": shared.block,
        "dynamic_smem": shared.dynamic_smem,
        **{name: _rows(getattr(shared, name)) for name in _OF_SHARED},
        _GLOBAL: None if everywhere is None else _rows(everywhere.accesses),
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _rows(verdicts: Iterable[Verdict]) -> list[Row]:
    return [
        [v.verdict, v.kernel, int(v.number), v.reason, v.allocation, int(v.first), int(v.last)]
        for v in verdicts
    ]


def read_record(data: bytes, module: Module) -> dict[str, Any] | None:
    """The record in `data` if it can be one of a proof of the module's one kernel, else None."""
    try:
        record = json.loads(data)
    except ValueError:
        return None
    (kernel,) = module.kernels
    if not isinstance(record, dict) or set(record) != _KEYS or record["kernel"] != kernel.name:
        return None
    lists = [record[name] for name in _OF_SHARED]
    if record[_GLOBAL] is not None:
        lists.append(record[_GLOBAL])
    counts = {name: len(instrs) for name, instrs in _instructions(module).items()}
    is_right = (
        _is_counts(record["block"], _AXES)
        and _is_counts([record["dynamic_smem"]], 1)
        and all(isinstance(rows, list) and all(_is_row(row, counts) for row in rows) for rows in lists)
    )
    return record if is_right else None


def _is_counts(values: object, length: int) -> bool:
    return (
        isinstance(values, list) and len(values) == length and all(type(n) is int and n >= 0 for n in values)
    )


def _is_row(row: object, counts: dict[str, int]) -> bool:
    """Whether a row is a verdict on an instruction of the module, and shows no fault."""
    if not isinstance(row, list) or tuple(map(type, row)) != _ROW:
        return False
    verdict, owner, number, *_ = row
    return verdict in (PROVED, UNKNOWN) and 0 <= number < counts.get(owner, 0)


def _instructions(module: Module) -> dict[str, list[Instr]]:
    """The instructions of each kernel and function of a module, by name."""
    bodies = {f.name: f.body or () for f in module.functions} | {k.name: k.body for k in module.kernels}
    return {name: [s for s in body if isinstance(s, Instr)] for name, body in bodies.items()}


def proofs_of(record: dict[str, Any], module: Module) -> Proofs:
    """The proofs of a record that `read_record` has read for this module."""
    # Imported here, because a launch, which needs no more than that there is a record, does not need it.
    from ptxgen.check.prove.global_verdicts import GlobalProof
    from ptxgen.check.prove.listing.search import Finding
    from ptxgen.check.prove.program.inlining import Source
    from ptxgen.check.prove.proof import Proofs
    from ptxgen.check.prove.subject import judged

    instructions = _instructions(module)

    def verdicts(rows: list[Row]) -> tuple[Verdict, ...]:
        return tuple(
            [
                judged(
                    Source(owner, number, instructions[owner][number]),
                    0,
                    Finding(verdict, reason, allocation, first, last),
                )[2]
                for verdict, owner, number, reason, allocation, first, last in rows
            ]
        )

    kernel, (x, y, z) = record["kernel"], record["block"]
    accesses, barriers, convergence, tensor_memory = (verdicts(record[name]) for name in _OF_SHARED)
    shared = Proof(
        kernel, (x, y, z), record["dynamic_smem"], accesses, barriers, (), (), convergence, tensor_memory
    )
    everywhere = None
    if record[_GLOBAL] is not None:
        everywhere = GlobalProof(kernel, (x, y, z), verdicts(record[_GLOBAL]))
    return Proofs(shared, everywhere)
