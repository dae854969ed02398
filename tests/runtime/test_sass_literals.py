"""Literals that machine instructions take from registers."""

from __future__ import annotations

import pytest

from ptxgen.runtime.sass import SassInstr, parse_sass
from ptxgen.runtime.sass_literals import with_literals

PRODUCT = "UTCHMMA gdesc[UR8], gdesc[UR6], tmem[UR12], tmem[UR4], idesc[UR5], UPT"


def listed(*lines: str) -> list[SassInstr]:
    """The instructions of a printed listing; a line that begins with a dot is a label."""
    texts = [
        line if line.startswith(".") else f"        /*{16 * n:04x}*/   {line} ;"
        for n, line in enumerate(lines)
    ]
    return with_literals(parse_sass("\n".join(texts)))


def descriptor(*lines: str) -> int | None:
    """What the last product of a listing takes."""
    return next(i.literal for i in reversed(listed(*lines)) if i.name == "UTCHMMA")


@pytest.mark.parametrize(
    "moves",
    [
        ["UMOV UR5, 0x8200490"],
        ["UMOV UR7, 0x8200490", "UMOV UR5, UR7"],
        ["MOV R3, 0x8200490", "R2UR UR5, R3.reuse"],
        ["IMAD.MOV.U32 R3, RZ, RZ, 0x8200490", "MOV.SPILL R4, R3", "R2UR.FILL UR5, R4"],
        ["UMOV UR7, 0x8200490", "IMAD.U32 R3, RZ, RZ, UR7", "R2UR UR5, R3"],
        ["HFMA2 R3, -RZ, RZ, 0.000125885009765625, 6.961822509765625e-05", "R2UR UR5, R3"],
    ],
)
def test_moves_are_followed(moves: list[str]) -> None:
    assert descriptor(*moves, "UIADD3 UR6, UPT, UPT, UR5, 0x2, URZ", PRODUCT) == 0x8200490


@pytest.mark.parametrize(
    "after",
    [
        *("UIADD3 UR5, UPT, UPT, UR5, 0x2, URZ", "UIADD3.64 UR4, UPT, UPT, UR10, 0x80, URZ"),
        *("LDCU.128 UR2, c[0x0][0x650]", "UTCATOMSWS.FIND_AND_SET.ALIGN UP0, UR5, UR4"),
        *("@P0 UMOV UR5, 0x8110490", "UMOV UR5, UR9", "HFMA2 R3, -RZ, RZ, 0, R4"),
        "CALL.REL.NOINC `(.L_x_9)",
    ],
)
def test_what_else_writes_a_register_leaves_it_unknown(after: str) -> None:
    moves = ["UMOV UR5, 0x8200490"] if "HFMA2" not in after else []
    further = ["R2UR UR5, R3"] if "HFMA2" in after else []
    assert descriptor(*moves, after, *further, PRODUCT, "EXIT", ".L_x_9:", "EXIT") is None


def test_a_load_from_tensor_memory_writes_all_its_registers() -> None:
    moves = "MOV R20, 0x8200490", "MOV R99, 0x8110490"
    assert descriptor(*moves, "LDTM.x32 R4, tmem[UR4]", "R2UR UR5, R20", PRODUCT) is None
    assert descriptor(*moves, "LDTM.x16 R4, tmem[UR4]", "R2UR UR5, R99", PRODUCT) == 0x8110490


def test_ways_with_one_value_meet_and_others_leave_it_unknown() -> None:
    def way(other: str) -> list[str]:
        lines = (
            *("UMOV UR5, 0x8200490", "BRA.U UP0, `(.L_x_1)", f"UMOV UR5, {other}", ".L_x_1:", PRODUCT),
            "EXIT",
        )
        return list(lines)

    assert descriptor(*way("0x8200490")) == 0x8200490
    assert descriptor(*way("0x8110490")) is None


def test_a_value_from_before_a_loop_is_known_in_it_unless_the_loop_writes_it() -> None:
    def loop(written: str) -> list[str]:
        return [
            *("UMOV UR5, 0x8200490", ".L_x_1:", PRODUCT, f"UMOV {written}, 0x1", "BRA.U UP0, `(.L_x_1)"),
            "EXIT",
        ]

    assert descriptor(*loop("UR6")) == 0x8200490
    assert descriptor(*loop("UR5")) is None


def test_code_behind_a_table_of_jumps_is_read() -> None:
    assert descriptor("EXIT", ".L_x_1:", "UMOV UR5, 0x8200490", PRODUCT, "EXIT") == 0x8200490


def test_an_arrival_announces_bytes_under_the_predicate_that_wrote_them() -> None:
    written = "@P0 MOV R0, 0x4000"

    def announced(arrival: str) -> int | None:
        return listed(written, arrival)[-1].literal

    assert announced("@P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x20], R0") == 0x4000
    assert announced("@!P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x20], R0") is None
    assert announced("@P0 SYNCS.ARRIVE.TRANS64.RED.A0TR RZ, [UR4+0x20], R0") == 0x4000
    assert announced("@P0 SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [UR4+0x20], R0") is None
    assert announced("@P0 MOV R1, R0") is None
