from __future__ import annotations

import pytest

from ptxgen.check.flow import Block, blocks, predecessors, reverse_post_order
from ptxgen.ir import Guard, Instr, Kernel, Label, Note, Reg, Statement, Symbol

P = Guard(Reg("%p0", "pred"))
ADD = Instr("add.u32", (Reg("%r0", "b32"), Reg("%r0", "b32"), Reg("%r0", "b32")))
RET = Instr("ret")


def bra(label: str, guard: Guard | None = None) -> Instr:
    return Instr("bra", (Symbol(label),), guard)


def kernel(*body: Statement) -> Kernel:
    return Kernel("k", (), (), body)


def edges(*body: Statement) -> list[tuple[int, ...]]:
    return [block.successors for block in blocks(kernel(*body))]


def test_straight_line_code_is_one_block_without_its_notes():
    assert blocks(kernel(Note("start"), ADD, Note("end"), RET)) == (
        Block(0, (), (ADD, RET), 0, (), falls_through=False),
    )


def test_an_empty_body_has_no_blocks():
    assert blocks(kernel()) == ()
    assert reverse_post_order(()) == ()


def test_a_loop_goes_back_to_its_label_and_on():
    result = blocks(kernel(ADD, Label("$loop"), ADD, ADD, bra("$loop", P), RET))
    assert result == (
        Block(0, (), (ADD,), 0, (1,), falls_through=True),
        Block(1, ("$loop",), (ADD, ADD, bra("$loop", P)), 1, (2, 1), falls_through=True),
        Block(2, (), (RET,), 4, (), falls_through=False),
    )
    assert predecessors(result) == ((), (0, 1), (1,))


def test_two_labels_in_a_row_name_one_block():
    result = blocks(kernel(bra("$b"), Label("$a"), Label("$b"), RET))
    assert [block.labels for block in result] == [(), ("$a", "$b")]
    assert result[0].successors == (1,)


@pytest.mark.parametrize(
    ("body", "successors"),
    [
        ((bra("$end"), ADD, Label("$end"), RET), [(2,), (2,), ()]),
        ((Instr("ret", (), P), RET), [(1,), ()]),
        ((Instr("trap"), Instr("exit"), RET), [(), (), ()]),
        ((Instr("bra.uni", (Symbol("$end"),)), Label("$end"), RET), [(1,), ()]),
        ((bra("$next", P), Label("$next"), RET), [(1,), ()]),  # to the next block: one edge
        ((bra("$nowhere"), RET), [(), ()]),
        ((bra("$a"), Label("$a"), RET, Label("$a"), RET), [(1,), (), ()]),  # of two labels the first
    ],
)
def test_a_block_has_the_successors_of_its_last_instruction(
    body: tuple[Statement, ...], successors: list[tuple[int, ...]]
):
    assert edges(*body) == successors


def test_a_last_block_that_goes_on_falls_through_to_nothing():
    last = blocks(kernel(RET, Label("$end")))[-1]
    assert last == Block(1, ("$end",), (), 1, (), falls_through=True)


def test_reverse_post_order_visits_both_arms_before_the_join():
    body = (bra("$else", P), ADD, bra("$join"), Label("$else"), ADD, Label("$join"), RET)
    order = reverse_post_order(blocks(kernel(*body)))
    assert order[0] == 0
    assert order[-1] == 3
    assert sorted(order) == [0, 1, 2, 3]


def test_reverse_post_order_leaves_out_what_cannot_be_reached():
    assert reverse_post_order(blocks(kernel(bra("$end"), ADD, Label("$end"), RET))) == (0, 2)


def test_reverse_post_order_copes_with_ten_thousand_blocks():
    body = [s for i in range(10_000) for s in (Label(f"$l{i}"), ADD)]
    assert reverse_post_order(blocks(kernel(*body, RET))) == tuple(range(10_000))
