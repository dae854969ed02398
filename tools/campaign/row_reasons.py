"""Why some mutants of kernels that append rows to a cache, and rotate them, are equivalent."""

from __future__ import annotations

from typing import Final

from tools.campaign.argument import STARTING, Reason

_TURNING: Final = STARTING[1]
_GUARDED: Final = "@%p"
_ONE_PANEL: Final = "_d16v24_.*_rotary"

OF_NEW_ROWS: Final = (
    Reason(
        "mask",
        "dropped",
        "load_if",
        "",
        "@%p[0-9]+ ld.global.b16",
        "a lane without a pair may read any column of the row: nothing is stored that it makes of that",
        entry="^append_.*_rotary72",
    ),
    Reason(
        "bound",
        "lt to le",
        "OwnRows._is_own",
        "the new rows",
        "setp.lt.s32",
        "a part writes the first row of the next one, too, which gets the same bits from both, and "
        "reads it behind its own barrier",
    ),
    Reason(
        "mask",
        "dropped",
        "load_if",
        _TURNING,
        _GUARDED,
        "what is read of a pair behind the last one, or of its angle, is stored by nobody",
    ),
    *(
        Reason(
            "shared-address",
            change,
            "SwizzledTile.element",
            _TURNING,
            before,
            "the tile has one panel, of two chunks of columns: its number is 0, and a chunk is below 2",
            entry=_ONE_PANEL,
        )
        for change, before in (
            ("operand 2 +1", "min.u32"),
            ("operand 2 +1", "rem.u32 .*, 2;"),
            ("operand 2 +1", "div.u32 .*, 2;"),
            ("operand 2 +4", "mul.lo.u32 .*, 1024;"),
            ("operand 2 -4", "mul.lo.u32 .*, 1024;"),
        )
    ),
    *(
        Reason(
            "shared-address",
            change,
            "SwizzledTile.element",
            _TURNING,
            before,
            "the first columns of pairs, 0 to 4, are in the first chunk of the tile's one panel",
            entry="_d16v24_.*_rotary10_",
        )
        for change, before in (
            ("operand 2 +1", "div.u32 .*, 8;"),
            ("operand 2 -1", "div.u32 .*, 8;"),
            ("operand 2 +1", "rem.u32 .*, 8;"),
            ("operand 2 -1", "rem.u32 .*, 8;"),
            ("operand 2 -1", "min.u32"),
            ("operand 2 -1", "rem.u32 .*, 2;"),
            ("operand 2 -1", "div.u32 .*, 2;"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "OwnRows.turn_queries",
            _TURNING,
            before,
            "only adds work: rows of a block behind its last query are turned, of which nothing is stored",
        )
        for kind, change, before in (
            ("bound", "lt to le", "setp.lt.u32"),
            ("loop-bound", "ge to gt", "setp.ge.u32"),
            ("loop-bound", "never taken", "@%p[0-9]+ bra .done"),
            ("mask", "dropped", "@%p[0-9]+ st.shared"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "OwnRows.turn_queries",
            _TURNING,
            before,
            "a block has no more pairs of columns than its threads turn at once: there is no second turn",
        )
        for kind, change, before in (
            ("loop-bound", "never taken", "@%p[0-9]+ bra .loop"),
            ("loop-bound", "lt to le", "setp.lt.u32"),
            ("shared-address", "operand 2 +4", "add.u32"),
            ("shared-address", "operand 2 -4", "add.u32"),
        )
    ),
    *(
        Reason(
            "loop-bound",
            change,
            "OwnRows._write_all",
            "the new rows",
            before,
            "there is a new row, and the block is one warp, which takes it",
            entry="_m16_",
        )
        for change, before in (("ge to gt", "setp.ge.s32"), ("never taken", "@%p[0-9]+ bra .done"))
    ),
)
