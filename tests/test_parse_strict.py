"""Texts with something twice or too much, which neither we nor the assembler take."""

from __future__ import annotations

import pytest

from ptxgen.errors import AssemblerError, ParseError
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler

NO_STATEMENT = "there is no statement before this ';'; remove it"
# What is wrong: column and message of the error.
REFUSED = {
    ".visible .entry k() { bar.sync 0;; ret; }": (34, NO_STATEMENT),
    ".visible .entry k() { ; ret; }": (23, NO_STATEMENT),
    ".visible .entry k() { ret;; }": (27, NO_STATEMENT),
    ".visible .entry k() { L: ; ret; }": (26, NO_STATEMENT),
    ".visible .entry k() { { ret; }; }": (31, NO_STATEMENT),
    ".visible .entry k() { .reg .b32 %x;; ret; }": (36, NO_STATEMENT),
    '.visible .entry k() { .pragma "nounroll";; ret; }': (42, NO_STATEMENT),
    ".global .v2 .v2 .f32 g;": (13, "wanted a type such as .u32, got '.v2'"),
    ".global .v2 .align 8 .f32 g;": (13, "wanted a type such as .u32, got '.align'"),
    ".visible .entry k(.param .u64 .ptr .ptr p) { ret; }": (36, "wanted the parameter's name, got '.ptr'"),
    ".visible .entry k(.param .u64 .ptr .global .global p) { ret; }": (
        44,
        "wanted the parameter's name, got '.global'",
    ),
    ".visible .entry k(.param .u64 .ptr .align 8 .global p) { ret; }": (
        45,
        "wanted the parameter's name, got '.global'",
    ),
    ".visible .entry k(.param .u64 .ptr .align 3 p) { ret; }": (
        43,
        "an alignment must be a power of two, got 3",
    ),
    ".func f() .noreturn .noreturn { trap; }": (21, ".noreturn is said twice; remove one"),
    ".visible .entry k() .maxntid 32 .reqntid 32 { ret; }": (
        33,
        ".reqntid and .maxntid exclude each other; remove one",
    ),
    ".visible .entry k() .reqnctapercluster 1 .maxclusterrank 4 { ret; }": (
        42,
        ".maxclusterrank and .reqnctapercluster exclude each other; remove one",
    ),
    ".visible .entry k() .maxnctapersm 1 { ret; }": (
        21,
        "wanted a directive such as .maxntid, or {, got '.maxnctapersm'; did you mean '.minnctapersm'?",
    ),
}


def whole(line: str) -> str:
    return f".version 8.0\n.target sm_90\n.address_size 64\n{line}\n"


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_too_much_is_refused(line: str) -> None:
    column, message = REFUSED[line]
    with pytest.raises(ParseError) as refused:
        parse(whole(line))
    caret = " " * (column - 1) + "^"
    assert str(refused.value) == (f"PTX text, line 4, column {column}: {message}\n{line}\n{caret}")


@pytest.mark.parametrize("line", REFUSED)
def test_the_assembler_refuses_it_too(line: str, assembler: Assembler) -> None:
    with pytest.raises(AssemblerError):
        assembler.assemble(whole(line), "sm_90")
