"""The accesses of an instruction to global memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ptxgen.check.prove.program.operands import ROWS_APART, TENSOR, has_rows_apart, pairs, unfollowed
from ptxgen.check.verify.shapes import Shape, shape_of
from ptxgen.ir import Address, Instr, IntImm, Operand, TensorAddress
from ptxgen.isa.spec import BoundOperand, Op
from ptxgen.tensormap import NBYTES
from ptxgen.types import ScalarType

_COPY_BYTES: Final = 16
# Instructions that take an address and access nothing in global memory: hints, conversions, barriers,
# zeros and addresses of tensor memory in shared memory.
_NO_ACCESS: Final = (
    "prefetch",
    "discard",
    "applypriority",
    "isspacep",
    "cvta",
    "mapa",
    "mbarrier",
    "createpolicy",
    "cp.async.mbarrier",
    "cp.async.bulk.prefetch",
    "fence",
    "tcgen05.alloc",
    "tcgen05.commit",
    "ld.param",
    "st.param",
    "st.bulk",
)

_TENSOR_COPIES: Final = ("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")


class GlobalTouch(NamedTuple):
    """One access: up to `nbytes` bytes at an address, or `size` bytes if that is less or `nbytes`
    is 0. `generic` says that the address may be one of another space. If a `box` is copied, its
    tensor map says where. A `reason` says why the proof does not follow the access.
    """

    address: Address
    nbytes: int
    size: Operand | None = None
    counted: ScalarType | None = None
    generic: bool = False
    reason: str = ""
    box: TensorAddress | None = None


def global_touches(instr: Instr) -> Iterable[GlobalTouch]:
    """The accesses of an instruction to global memory and to generic addresses."""
    shape = shape_of(instr)
    if shape.complaints or shape.op is None or shape.accesses or unfollowed(shape.op):
        return _global_touches(instr, shape)
    return ()


def _global_touches(instr: Instr, shape: Shape) -> Iterator[GlobalTouch]:
    if instr.opcode.startswith(_NO_ACCESS):
        return
    words = instr.opcode.split(".")
    if shape.complaints or shape.op is None:
        if "global" in words and words[0] != "mov":
            yield GlobalTouch(Address(None), 1, reason="the instruction is not in the table")
        return
    op = shape.op
    if reason := unfollowed(op):
        yield GlobalTouch(Address(None), 1, reason=reason)
        return
    if instr.opcode.startswith(_TENSOR_COPIES):
        if has_rows_apart(instr):
            yield GlobalTouch(Address(None), 1, reason=ROWS_APART)
            return
        boxes = (operand for operand in instr.operands if isinstance(operand, TensorAddress))
        yield from (GlobalTouch(Address(None), 0, box=box) for box in boxes)
        return
    addresses = [(w, a) for w, a in pairs(op, instr) if w.address and isinstance(a, Address)]
    if not addresses or words[0] == TENSOR or not _is_global(op, words):
        return
    if words[0] in ("ld", "ldu", "st", "atom", "red"):
        yield from _plain(op, words, addresses)
    elif words[0] == "cp":
        yield from _copy(op, instr, addresses)
    else:
        yield from _other(words, addresses)


def _is_global(op: Op, words: list[str]) -> bool:
    if "space" in op.modifiers:
        space = op.modifiers["space"]
        return space is None or str(space) == "global"
    others = any(w in ("param", "const", "local") or w.startswith("shared") for w in words)
    return "global" in words or not others


def _plain(op: Op, words: list[str], addresses: list[tuple[BoundOperand, Address]]) -> Iterator[GlobalTouch]:
    type = op.modifiers.get("type")
    count = max((o.count for o in op.operands if not o.address), default=0) or 1
    for _, address in addresses:
        if isinstance(type, ScalarType):
            yield GlobalTouch(address, type.nbytes * count, generic="global" not in words)
        else:
            yield GlobalTouch(address, 1, reason="how much it accesses is not followed")


def _other(words: list[str], addresses: list[tuple[BoundOperand, Address]]) -> Iterator[GlobalTouch]:
    generic = "global" not in words
    for want, address in addresses:
        if words[0] != "tensormap":
            reason = f"how much {words[0]} accesses is not followed"
            yield GlobalTouch(address, 1, generic=generic, reason=reason)
        elif want.name != "src":  # the other operand is in shared memory
            yield GlobalTouch(address, NBYTES, generic=generic)


def _copy(op: Op, instr: Instr, addresses: list[tuple[BoundOperand, Address]]) -> Iterator[GlobalTouch]:
    by_name = {want.name: (want, got) for want, got in pairs(op, instr)}
    for want, address in addresses:
        if want.type is None or want.type.bits != 64:  # a 32-bit address is in shared memory
            continue
        if ".bulk" in op.opcode:
            counted, size = by_name["size"]
            yield GlobalTouch(address, 0, size, counted.type)
        else:
            read_size = by_name.get("cp_size", (None, None))[1]
            nbytes = read_size.value if isinstance(read_size, IntImm) else _COPY_BYTES
            less, size = by_name.get("src_size", (None, None))
            yield GlobalTouch(address, nbytes, size, less.type if less is not None else None)
