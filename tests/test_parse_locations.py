"""`.file` and `.loc` give instructions the line of the source that they were compiled from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ptxgen.errors import ParseError
from ptxgen.ir import Instr, Kernel, Location
from ptxgen.parse import parse

SOURCE = ["__global__ void k(int *p) {", "  int i = twice(3);", "  *p = i;", "}"]

# `.file` stands behind the code, as in nvcc's text; the second body begins without a location.
TEXT = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .b32 %r<9>;
    mov.b32 %r0, 0;
    .loc 1 3 7
    mov.b32 %r1, 1;
    mov.b32 %r2, 2;
    .loc 1 2 11
    .loc 2 7 5, function_name $L__info0, inlined_at 1 2 11
    mov.b32 %r3, 3;
    .loc 3 9 1, function_name $L__info0+4, inlined_at 2 7 5
    mov.b32 %r4, 4;
    .loc 1 0 0
    mov.b32 %r5, 5;
    .loc 4 1 1
    mov.b32 %r6, 6;
    .loc 2 1 1, function_name $L__info0, inlined_at 1 4 1
    mov.b32 %r7, 7;
    ret;
}
.visible .entry other(.param .u64 p)
{
    .reg .b32 %r<1>;
    mov.b32 %r0, 0;
    ret;
}
.file 1 "/home/me/k.cu", 1234, 5678
.file 2 "C:\\\\inc\\\\twice.h"
.file 3 "deep.h"
"""


def lines_of(path: str) -> Sequence[str]:
    return SOURCE if path == "/home/me/k.cu" else ()


def locations(kernel: Kernel) -> list[Location | None]:
    return [i.origin.location for i in kernel.body if isinstance(i, Instr) and i.origin is not None]


def test_each_instruction_has_the_location_before_it() -> None:
    kernel, other = parse(TEXT, lines_of).kernels
    call = Location("/home/me/k.cu", 2, 11, "int i = twice(3);")
    store = Location("/home/me/k.cu", 3, 7, "*p = i;")
    twice = Location("C:\\\\inc\\\\twice.h", 7, 5, "", call)
    assert locations(kernel) == [
        None,
        store,
        store,
        twice,
        Location("deep.h", 9, 1, "", twice),
        None,  # line 0: of no line
        None,  # a file without a name
        *[Location("C:\\\\inc\\\\twice.h", 1, 1, "", Location("/home/me/k.cu", 4, 1, "}"))] * 2,
    ]
    assert locations(other) == [None, None]


def test_a_location_in_words() -> None:
    kernel = parse(TEXT, lines_of).kernels[0]
    words = [str(i.origin) for i in kernel.body if isinstance(i, Instr)]
    assert words[0] == "line 8 of the PTX text"
    assert words[1] == "line 10 of the PTX text, from k.cu:3: *p = i;"
    assert words[4] == (
        "line 16 of the PTX text, from deep.h:9, inlined at twice.h:7, inlined at k.cu:2: int i = twice(3);"
    )


def test_without_sources_a_location_has_the_path_and_the_line() -> None:
    assert locations(parse(TEXT).kernels[0])[1] == Location("/home/me/k.cu", 3, 7)


def test_inline_assembly_has_the_location_of_its_first_line() -> None:
    asm = """
    // begin inline asm
    .loc 1 2 3
    mov.b32 %r1, 1;
    .loc 1 3 3
    mov.b32 %r2, 2;
    .loc 1 4 3
    // end inline asm
    mov.b32 %r3, 3;
    .loc 1 4 3
    mov.b32 %r4, 4;
    .loc 1 3 3
    mov.b32 %r5, 5;
    """
    head, _, tail = TEXT.partition(".loc 1 3 7")
    text = head + asm + "ret; }" + tail.partition("ret;\n}")[2]
    result = locations(parse(text).kernels[0])
    assert [None if at is None else at.line for at in result] == [None, 2, 2, 2, 4, 3, 3]


def test_locations_change_no_program() -> None:
    bare = "\n".join(line for line in TEXT.splitlines() if not line.strip().startswith((".loc", ".file")))
    assert parse(TEXT) == parse(bare)


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        (".loc 1 2;", "wanted a column, got ';'"),
        (".loc 1 2 3, inlined 4 5 6", "wanted function_name or inlined_at, got 'inlined'"),
        (".loc 1 2 3, inlined_at 4 5 ret;", "wanted a column, got 'ret'"),
    ],
)
def test_a_directive_that_cannot_be_read_is_refused(directive: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(TEXT.replace(".loc 1 3 7", directive))
    assert str(error.value).splitlines()[0].endswith(message)
