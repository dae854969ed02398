"""The lanes and columns of tensor memory that an instruction uses, counted from the addresses that it has
(PTX ISA, "TensorCore 5th Generation Family Instructions": "Data Movement Shape", "Data Path Layout
Organization", "Scale Factor Layout").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ptxgen.check.prove.listing.products import kind_of, operands_of
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, IntImm
from ptxgen.isa.mma_descriptor import Product
from ptxgen.isa.tcgen05_work import FACTORS
from ptxgen.isa.tensor_memory import (
    COPIES,
    LANES,
    QUARTER,
    SCALES_ADDRESS,
    cells,
    columns_of_d,
    columns_of_scales,
    lanes_of_copy,
)

_COLUMN_BYTES: Final = 4
_A_COLUMNS: Final = 8  # 32 bytes of each row along K
_HALF: Final = 16  # lanes


class Use(NamedTuple):
    """An operand in tensor memory, `what` of several: columns `first` to `last` and lanes 0 to `height` - 1,
    counted from an `address` of which the bits of `mask` count. It begins at one of the lanes `starts`: of
    tensor memory, or `by_warp` of the quarter that the warp of the thread has. `wrong` is the reason why the
    operand is a mistake at any address; empty if it is none.
    """

    what: str
    address: Address
    first: int
    last: int
    height: int
    starts: tuple[int, ...] = (0,)
    by_warp: bool = False
    mask: int = 0xFFFFFFFF
    wrong: str = ""


def use_of_registers(instr: Instr) -> Use:
    """The cells of tensor memory (lanes and columns) that a warp loads or stores."""
    operands, op = operands_of(instr), shape_of(instr).op
    assert op is not None
    shape, num = str(op.modifiers["shape"]), int(str(op.modifiers["num"]).removeprefix("x"))
    packed = any(op.modifiers.get(name) is not None for name in ("pack", "unpack"))
    split, address = operands.get("split"), operands["a"]
    assert isinstance(address, Address)
    lane, column = cells(shape, num, split.value if isinstance(split, IntImm) else 0, packed=packed)
    height = int(lane.max()) + 1
    starts = (0,) if height > _HALF else (0, _HALF)
    return Use("", address, int(column.min()), int(column.max()) + packed, height, starts, True)


def use_of_copy(instr: Instr) -> Use:
    """The cells of tensor memory (lanes and columns) that a copy from shared memory writes."""
    operands, op = operands_of(instr), shape_of(instr).op
    assert op is not None
    shape, address = str(op.modifiers["shape"]), operands["d"]
    assert isinstance(address, Address)
    height = int(lanes_of_copy(shape, str(op.modifiers.get("warps", ""))).max()) + 1
    starts = tuple(range(LANES - height + 1))
    return Use("", address, 0, COPIES[shape][1] // _COLUMN_BYTES - 1, height, starts)


def uses_of_product(instr: Instr, product: Product) -> Iterator[Use]:
    """The cells of tensor memory that a product uses: those of D, scale factors, and A if it is there."""
    operands = operands_of(instr)
    starts = (0, _HALF) if product.m == LANES // 2 else (0,)
    for name, columns in (("d", columns_of_d(product)), ("a", _A_COLUMNS)):
        address = operands[name]
        if isinstance(address, Address):
            yield Use(name.upper(), address, 0, columns - 1, LANES, starts)
    for name, rows, byte in zip(
        ("a", "b"), (product.m // product.group, product.n), product.scale_bytes, strict=True
    ):
        scales = operands.get(f"scales_{name}")
        if isinstance(scales, Address):
            count = FACTORS[kind_of(instr), _vector(instr)]
            wrong = ""
            if byte + count > _COLUMN_BYTES:
                wrong = f"{count} factors of a row do not fit in a column of 4 bytes from byte {byte} on"
            what = f"scale factors of {name.upper()}"
            last = columns_of_scales(rows) - 1
            yield Use(what, scales, 0, last, QUARTER, mask=SCALES_ADDRESS, wrong=wrong)


def _vector(instr: Instr) -> str:
    return next((w for w in instr.opcode.split(".") if w.startswith(("scale_vec::", "block1", "block3"))), "")
