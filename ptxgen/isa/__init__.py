"""The instruction table: importing this package declares every row."""

from ptxgen.isa import (
    async_copy,
    compare,
    control,
    convert,
    floating,
    integer,
    memory,
    warp,
)
from ptxgen.isa.machine import Machine
from ptxgen.isa.spec import (
    ANY,
    Effect,
    Gate,
    Inst,
    Op,
    fits,
    inst,
    op_of,
    recognise,
    rows,
    rows_named,
)
from ptxgen.isa.special import SPECIALS, SpecialRegister
from ptxgen.isa.special import special as special_register

__all__ = [
    "ANY",
    "SPECIALS",
    "Effect",
    "Gate",
    "Inst",
    "Machine",
    "Op",
    "SpecialRegister",
    "async_copy",
    "compare",
    "control",
    "convert",
    "fits",
    "floating",
    "inst",
    "integer",
    "memory",
    "op_of",
    "recognise",
    "rows",
    "rows_named",
    "special_register",
    "warp",
]
