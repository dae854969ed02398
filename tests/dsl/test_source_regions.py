"""Names for parts of a kernel's source, which stay when functions are renamed."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Value, marked
from ptxgen.dsl.source_regions import mark_of
from ptxgen.text import render
from ptxgen.types import s32


def plain(k: KernelBuilder) -> None:
    k.thread_id()


@marked("outer")
def outer(k: KernelBuilder) -> None:
    k.thread_id()
    _ = [k.thread_id() for _ in range(2)]
    plain(k)

    @marked("inner")
    def inner() -> None:
        k.thread_id()

    inner()

    def of_outer() -> Value:
        return (lambda: k.thread_id())()

    of_outer()


class Piece:
    def __init__(self, k: KernelBuilder) -> None:
        self.k = k

    @property
    @marked("property")
    def lane(self) -> Value:
        return self.k.thread_id() % 32

    @classmethod
    @marked("class")
    def emitted(cls, k: KernelBuilder) -> None:
        cls(k).lane.as_(s32) + 1


def marks(body: Callable[[KernelBuilder], None]) -> list[str]:
    k = KernelBuilder("k", target="sm_80", threads=32)
    body(k)
    return [mark_of(s.origin) for s in k.build().kernels[0].body[:-1] if isinstance(s, ir.Instr)]


def test_an_instruction_has_the_mark_of_the_function_that_emits_it() -> None:
    assert marks(plain) == [""]
    assert marks(outer) == ["outer", "outer", "outer", "", "inner", "outer"]
    assert marks(Piece.emitted) == ["property", "property", "class"]


def test_functions_alike_have_marks_of_their_own() -> None:
    text = "def body(k):\n    k.thread_id()\n"
    result = []
    for file in ("one.py", "two.py"):
        names: dict[str, Callable[[KernelBuilder], None]] = {}
        exec(compile(text, file, "exec"), names)
        result.append(marked(file)(names["body"]))
    assert result[0].__code__ == result[1].__code__  # which does not look at the file
    assert [marks(body) for body in result] == [["one.py"], ["two.py"]]


def test_what_comes_from_no_function_has_no_mark() -> None:
    assert mark_of(None) == ""
    assert mark_of(ir.Origin(None, 3)) == ""


def test_a_mark_is_not_emitted() -> None:
    k = KernelBuilder("k", target="sm_80", threads=32)
    outer(k)
    assert "outer" not in render(k.build())
