"""The model of a block of queries, on instructions whose clocks can be counted by hand."""

from __future__ import annotations

import pytest

from ptxgen.report.issue_block import BlockClocks, Walk, block_clocks
from ptxgen.runtime.sass import Block, Control, SassInstr, block_of
from ptxgen.target import target

STALL = 10


def wait(stall: int = STALL) -> SassInstr:
    """An instruction after which its warp waits for so many clocks."""
    return SassInstr("NOP", control=Control(stall, (), None, None))


def bar(opcode: str, operands: str) -> SassInstr:
    return SassInstr(opcode, operands=operands, control=Control(1, (), None, None))


ONE_TURN = (bar("BAR.SYNC.DEFER_BLOCKING", "R4, 0x100"), wait(), wait(), bar("BAR.ARV", "R6, 0x100"))
TURN = 2 * STALL + 3  # clocks of it, and one until the next warp issues


def clocks(block: Block, warpgroups: int = 1) -> BlockClocks:
    return block_clocks(block, target("sm_90a"), warpgroups)


def test_a_block_is_timed_from_its_first_instruction_to_its_last() -> None:
    block = Block((wait(),) * 3, (wait(),) * 5, (wait(),) * 4, (wait(), wait()), once=2)
    said = clocks(block)
    assert (said.cut, said.main) == (5 * STALL, 4 * STALL)
    # The first two are not repeated; but from block to block the last one's wait counts, too.
    assert said.once == pytest.approx((2 - 1) * STALL, abs=1)
    # Without a product before the loops the first tile is in one of them. The last one is issued.
    assert said.first == pytest.approx((3 + 5 + 2 - 1) * STALL, abs=1)


def test_without_a_loop_for_tiles_that_a_mask_cuts_they_take_what_others_do() -> None:
    said = clocks(Block((wait(),), (), (wait(),) * 4, (wait(),), once=0))
    assert (said.cut, said.once) == (said.main, 0)
    assert said.first == pytest.approx((1 + 4) * STALL, abs=2)


def test_warpgroups_take_turns_at_barriers_whose_number_is_in_a_register() -> None:
    said = clocks(Block((wait(),), (), (*ONE_TURN, wait(1)), (wait(1),), once=0), warpgroups=2)
    assert said.main == 2 * TURN


def test_all_warpgroups_wait_at_barriers_with_a_number() -> None:
    meet = bar("BAR.SYNC.DEFER_BLOCKING", "0x3, 0x100")
    main = (wait(1),)
    apart = clocks(Block((*ONE_TURN, wait(40), *ONE_TURN), (), main, (wait(1),), once=0), warpgroups=2)
    met = clocks(Block((*ONE_TURN, wait(40), meet, *ONE_TURN), (), main, (wait(1),), once=0), warpgroups=2)
    assert met.first - apart.first == pytest.approx(TURN, abs=2)  # the first one waits for the second
    # Some only arrive at the first barrier; they and the one of all threads hold nobody up.
    alone = (bar("BAR.ARV", "0x1, 0x100"), bar("BAR.SYNC.DEFER_BLOCKING", "0x1, 0x100"))
    cta = bar("BAR.SYNC.DEFER_BLOCKING", "0x0")
    assert clocks(Block((cta, *alone, wait()), (), main, (wait(1),), once=0)).first < 2 * STALL


def test_the_way_through_a_kernel_weighs_again_beside_the_main_loop() -> None:
    def of(name: str, jumps_to: int | None = None) -> SassInstr:
        return SassInstr(name, jumps_to, name != "EXIT")

    kernel = [
        of("S2R"),  # once
        *(of("HGMMA"), of("BRA", 4), of("MUFU")),  # 1: the first tile; exponentials are skipped by most
        *(of("BRA", 8), of("HGMMA"), of("FMNMX"), of("BRA", 4)),  # 4: tiles that a mask cuts
        *(of("HGMMA"), of("BRA", 11), of("MUFU"), of("BRA", 8)),  # 8: the main loop
        *(of("HGMMA"), of("BRA", 15), of("UTMASTG"), of("BRA", 1), of("EXIT")),  # 12: one lane stores
    ]
    block = block_of(kernel)
    assert block is not None
    names = [[i.name for i in part] for part in (block.before, block.cut, block.main, block.after)]
    assert names == [
        ["S2R", "HGMMA", "BRA", "MUFU"],
        ["BRA", "HGMMA", "FMNMX", "BRA"],
        ["HGMMA", "BRA", "BRA"],
        ["HGMMA", "BRA", "UTMASTG", "BRA", "EXIT"],
    ]
    assert block.once == 1
    assert block_of([of("HGMMA"), of("EXIT")]) is None


def test_the_loop_over_hidden_tiles_waits_for_two_barriers_before_the_first_product() -> None:
    def of(name: str, jumps_to: int | None = None) -> SassInstr:
        return SassInstr(name, jumps_to, name != "EXIT")

    kernel = [
        *(of("SYNCS"), of("SYNCS"), of("BRA", 0), of("EXIT")),  # the producer's loop
        *(of("S2R"), of("BRA", 9)),  # no hidden tile
        *(of("SYNCS"), of("SYNCS"), of("BRA", 6)),
        *(of("HGMMA"), of("FSEL"), of("HGMMA"), of("BRA", 11), of("EXIT")),
    ]
    kernel[0] = of("BRA", 4)
    block = block_of([of("BRA", 4), *kernel[1:]])
    assert block is not None
    assert [i.name for i in block.skipped] == ["SYNCS", "SYNCS", "BRA"]
    assert [i.name for i in block.before[: block.skips_at]] == ["BRA", "S2R", "BRA"]


def test_warpgroups_skip_tiles_that_are_hidden_from_them() -> None:
    before, cut, main = (wait(), wait()), (wait(),) * 5, (wait(),) * 4
    block = Block(before, cut, main, (wait(),), once=0, skipped=(wait(),), skips_at=1)
    said = clocks(block, warpgroups=2)
    # Without a product before the loops the first tile is in one of them.
    assert said.clocks([Walk(0, 1, 0, 2)] * 2) == pytest.approx((2 + 5 + 2 * 4) * STALL, abs=2)
    assert said.clocks([Walk(1, 1, 1, 0), Walk(2, 1, 0, 0)]) == pytest.approx((2 + 1 + 5 + 4) * STALL, abs=2)
    many = [Walk(0, 1, 0, 100)] * 2
    assert said.clocks(many) == pytest.approx((2 + 5 + 400) * STALL, abs=2)


def test_tiles_that_only_the_own_rows_see_whole_have_no_order_of_warpgroups() -> None:
    block = Block((wait(),), (), (*ONE_TURN, wait(1)), (wait(1),), once=0, skipped=(wait(1),), skips_at=1)
    said = clocks(block, warpgroups=2)
    assert said.clocks([Walk(0, 1, 2, 0)] * 2) < said.clocks([Walk(0, 1, 0, 2)] * 2)
