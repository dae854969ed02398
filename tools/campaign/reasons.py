"""The reasons why some mutants are equivalent: proofs where values can be computed, otherwise an
argument in words for a step of the algorithm.
"""

from __future__ import annotations

from typing import Final

from tools.campaign.argument import STARTING, Reason
from tools.campaign.equivalence import proved
from tools.campaign.mistakes import Mutant
from tools.campaign.row_reasons import OF_NEW_ROWS


def reason(mutant: Mutant, block: int, *, same: bool = True) -> str | None:
    """Why a mutant that no check caught is equivalent, for blocks of `block` threads; None if no
    reason is known. `same`: its results had equal bits in all runs.
    """
    why = proved(mutant, block) if same else None
    known = (r.why for r in REASONS if r.fits(mutant) and (same or r.rounds))
    return why or next(known, None)


# -------------------------------------------------------------------------------------- by argument


_SKIPPED: Final = "@!?%p"
_START: Final = STARTING[0]
_NOT_CAUSAL: Final = "^(?!.*(top_left|bottom_right))"

REASONS: Final = (
    *(
        Reason(
            kind,
            change,
            "_start_first",
            _START,
            before,
            "without any tile of keys, what the first loads bring is read by nobody",
        )
        for kind, change, before in (
            ("mask", "dropped", _SKIPPED),
            ("bound", "-1", "setp.gt.s32"),
            ("bound", "gt to ge", "setp.gt.s32"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            function,
            "S = scale",
            before,
            "only spares work: in a tile of keys that all rows see, the mask hides nothing",
        )
        for kind, change, function, before in (
            ("mask", "dropped", "_score", _SKIPPED),
            ("bound", "gt to ge", "Cta.hides_keys", "setp.gt.s32"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "attention_forward",
            "P = exp2",
            before,
            "only spares work: nobody reads the K that would come behind the last tile, and of "
            "rows beyond the array nothing is read",
        )
        for kind, change, before in (("mask", "dropped", _SKIPPED), ("bound", "lt to le", "setp.lt.s32"))
    ),
    *(
        Reason(
            kind,
            change,
            "NonFinite.__init__",
            step,
            before,
            "all threads may store the same 0: the first 1 is stored behind a barrier",
        )
        for step in STARTING
        for kind, change, before in (
            ("mask", "dropped", _SKIPPED),
            ("mask", "inverted", _SKIPPED),
            ("bound", "+1", "setp.eq.u32"),
            ("bound", "inverted", "setp.eq.u32"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "Cta.writes_lse",
            "O / sum",
            before,
            "all slices of values have the same LSE, and so have the lanes of a row: any of them "
            "may write it, and all of them together",
        )
        for kind, change, before in (
            ("mask", "and for or", "and.pred"),
            ("bound", "+1", "setp.eq"),
            ("bound", "inverted", "setp.eq"),
        )
    ),
    Reason(
        "mask",
        "dropped",
        "_store_chunk",
        "O / sum",
        _SKIPPED,
        "a column that two slices of values have is the same in both: both may write it",
    ),
    *(
        Reason(
            kind,
            change,
            function,
            _START,
            before,
            "a tile has a key: the first of its rows, which is copied by itself, is always there",
            entry="v260",
        )
        for kind, change, function, before in (
            ("mask", "always the first", "TileLoader._copy", "selp.u32"),
            ("bound", "-1", "TileLoader.start.<locals>.copy_turn", "setp.gt.s32 .*, 0;"),
        )
    ),
    Reason(
        "bound",
        "lt to le",
        "AppliedSoftcap._tanh",
        "S = Q K^T",
        "setp.lt.f32",
        "of the limit itself both ways give the tangent within 3 units in the last place",
        rounds=True,
    ),
    *(
        Reason(
            "loop-bound",
            change,
            "NonFinite._restore_element",
            "NaN and infinity",
            before,
            "only a key sets the flag, and without a position that hides keys all are looked "
            "through: there is one",
            entry="^(?!.*(top_left|bottom_right|left|right))",
        )
        for change, before in (("ge to gt", "setp.ge.s32"), ("never taken", "@%p[0-9]+ bra .done"))
    ),
    Reason(
        "bound",
        "+1",
        "sink_terms",
        _START,
        "setp.eq.u32",
        "any one of the lanes that share a row may begin its sum with the sink",
        rounds=True,
    ),
    *(
        Reason(
            kind,
            change,
            "Mask.kept_in_shared",
            _START,
            before,
            "all threads may store the same lengths: they are read behind a barrier",
        )
        for kind, change, before in (
            ("mask", "dropped", _SKIPPED),
            ("mask", "inverted", _SKIPPED),
            ("bound", "+1", "setp.eq.u32"),
            ("bound", "inverted", "setp.eq.u32"),
        )
    ),
    Reason(
        "bound",
        "ge to gt",
        "Cta.entered",
        "which query rows",
        "setp.ge.s32",
        "only adds work: of the rows that begin behind the last one, none is read or written",
    ),
    Reason(
        "mask",
        "always the second",
        "AppliedDropout._pick",
        "P = exp2",
        "selp",
        "on tensor cores tiles begin at multiples of 16 and a lane's keys below 8: their octets are even",
        entry="_(f16|bf16|tf32|f32_grade)_",
    ),
    Reason(
        "mask",
        "dropped",
        "LazySoftmax.take",
        "P = exp2",
        _SKIPPED,
        "only spares work: where no shift moves, the factors are 1",
    ),
    Reason(
        "bound",
        "gt to ge",
        "LazySoftmax.take.<locals>.<listcomp>",
        "P = exp2",
        "setp.gt.f32",
        "a maximum that is above the shift by the slack exactly may move it or not",
    ),
    Reason(
        "bound",
        "lt to le",
        "_start_copies",
        _START,
        "setp.lt.f32",
        "with a scale of 0 it does not matter whether Q is negated",
    ),
    *(
        Reason(
            "shared-address",
            change,
            "Epilogue._send",
            "O / sum",
            before,
            "lanes whose columns are not part of O may read any others: they write nothing",
        )
        for change, before in (
            ("operand 2 -1", "rem.u32"),
            ("operand 2 -1", "min.u32"),
            ("operand 2 +1", "min.u32"),
        )
    ),
    Reason(
        "shared-address",
        "operand 2 +1",
        "Tf32Products.__init__",
        _START,
        "div.u32",
        "of four columns of V only the first four lanes read what is part of O: 0 by either number",
        entry="v4_",
    ),
    Reason(
        "swizzle",
        "doubled",
        "Epilogue._stage",
        "O / sum",
        "xor",
        "columns beyond head_dim_v are read by nobody, wherever they lie",
    ),
    Reason(
        "shared-offset",
        "operand 0 -4",
        "Epilogue._stage",
        "O / sum",
        "st.shared",
        "columns beyond head_dim_v are read by nobody, wherever they lie",
    ),
    Reason(
        "mask",
        "dropped",
        "Epilogue._send_chunk",
        "O / sum",
        "@!%p",
        "only the lanes with the last chunk of a row get here, and it has these columns",
    ),
    Reason(
        "loop-bound",
        "never taken",
        "mma_attention_forward",
        "O += P V",
        "@%p",
        "without causality one tile at most is cut, the last",
        loop=1,
        entry=_NOT_CAUSAL,
    ),
    Reason(
        "mask",
        "always the first",
        "LazySoftmax._follow",
        "P = exp2",
        "selp",
        "without causality the first loop has one tile: its maximum is above the shift of -inf, or "
        "is -inf itself",
        loop=1,
        entry=_NOT_CAUSAL,
    ),
    Reason(
        "copy-wait",
        "of one group less",
        "await_copies",
        _START,
        "cp.async.wait_group 0",
        "with two stages Q, which is waited for, is in the first of three groups",
    ),
    Reason(
        "shared-address",
        "operand 2 +1",
        "PanelLoader._shares",
        "",
        "div.u32",
        "there are more threads than chunks: each chunk is still copied, some of them twice",
    ),
    Reason(
        "shared-address",
        "operand 2 -1",
        "PanelLoader._shares",
        "",
        "rem.u32",
        "the last chunk of each row is not copied, and lies beyond the columns: nobody reads that "
        "of V, and in that of K there are zeros from the first copy",
    ),
    *(
        Reason(
            "shared-offset",
            change,
            "PanelLoader._copy",
            "P = exp2",
            "st.shared.b16",
            "a zero beyond head_dim, stored where there is another from the first copy",
        )
        for change in ("operand 0 +2", "operand 0 -2")
    ),
    *(
        Reason(
            "bound",
            change,
            "PanelLoader._copy_in_turns",
            "P = exp2",
            "setp.gt.s32",
            "the last tile of K is copied before the loops: behind the rows of others there are more",
        )
        for change in ("+1", "-1")
    ),
    Reason(
        "bound",
        "-1",
        "PanelLoader._copy_in_turns",
        "O += P V",
        "setp.gt.s32",
        "of a tile that is not cut, all rows are in the array",
    ),
    *(
        Reason(
            kind,
            change,
            "NonFinite.clear",
            "P = exp2",
            before,
            "only spares work: what is finite is stored as it was, and in the end nothing is found "
            "to give back; the signs of numbers are neither 1 nor -1",
        )
        for kind, change, before in (
            ("mask", "dropped", "@!%p"),
            ("bound", "+1", "setp.ne.u32"),
            ("bound", "-1", "setp.ne.u32"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "NonFinite._restore_element",
            "NaN and infinity",
            before,
            "an element of O to which nothing is added may be written again as it is",
        )
        for kind, change, before in (("mask", "dropped", "@!%p"), ("bound", "-1", "setp.ne.u32"))
    ),
    *(
        Reason(
            "loop-bound",
            change,
            "NonFinite._restore_element",
            "NaN and infinity",
            before,
            "block_q is a multiple of the tile: the first row sees the first key of the first tile "
            "that is cut",
            entry="top_left",
        )
        for change, before in (("ge to gt", "setp.ge.s32"), ("never taken", "@%p[0-9]+ bra .done"))
    ),
    *(
        Reason(
            "loop-bound",
            change,
            "NonFinite.restore",
            "NaN and infinity",
            before,
            "a warp has 32 lanes: no lane is as far as head_dim_v, if that is more, and none has a "
            "second column, if it is not",
        )
        for change, before in (
            *((one, "setp.ge.s32 .*, (3[3-9]|[4-9][0-9]|[0-9]{3,});") for one in ("+1", "-1")),
            *((one, "setp.lt.s32 .*, ([0-9]|[12][0-9]|3[01]);") for one in ("+1", "-1")),
            ("+1", "setp.ge.s32 .*, 32;"),
            ("-1", "setp.lt.s32 .*, 32;"),
            ("never taken", "@%p[0-9]+ bra"),
        )
    ),
    Reason(
        "shared-address",
        "operand 2 -1",
        "clear_padding",
        _START,
        "add.u32",
        "the same rows are cleared, by the next threads: there are more threads than rows",
    ),
    *(
        Reason(
            kind,
            change,
            function,
            _START,
            before,
            "without any tile of keys, what the first loads bring is read by nobody, and pages "
            "have any row that is asked for",
            entry="_page[0-9]",
        )
        for kind, change, function, before in (
            ("mask", "dropped", "_start_copies", _SKIPPED),
            ("bound", "gt to ge", "KeyValuePipeline._has", "setp.gt.s32"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "KeyValuePipeline._start_next",
            "P = exp2",
            before,
            "only adds work: one more tile of K, which nobody reads, and pages have any row that "
            "is asked for",
            entry="_page[0-9]",
        )
        for kind, change, before in (("mask", "dropped", _SKIPPED), ("bound", "+1", "setp.lt.s32"))
    ),
    *(
        Reason(
            kind,
            change,
            function,
            step,
            before,
            "in pages what is read behind the last row is that row again, of a key that is hidden, "
            "and made 0 where it is not finite, as in any tile that is cut",
            entry="_bottom_right.*_page[0-9]",
        )
        for step in STARTING
        for kind, change, function, before in (
            ("mask", "always the first", "PanelLoader._copy", "selp.u32"),
            ("bound", "-1", "PanelLoader._start_copies", "setp.gt.s32"),
        )
    ),
    *(
        Reason(
            "mask",
            "always the second",
            function,
            "O / sum",
            "selp.f32 %f[0-9]+, 0f00000000",
            "a part that has seen no key may hold anything: it is not read",
            entry="_splits",
            rounds=True,
        )
        for function in ("LazySoftmax.finish", "OnlineSoftmax.finish")
    ),
    *(
        Reason(
            kind,
            change,
            function,
            step,
            before,
            "K and V go through registers: the only copies are those of Q, in the first group, and "
            "the wait for the first tile of K has seen their end",
            entry="_kv_e4m3",
        )
        for kind, change, function, step, before in (
            ("copy-wait", "deleted", "KeyValuePipeline._await", "P = exp2", ""),
            ("copy-wait", "of one group less", "KeyValuePipeline._await", "P = exp2", ""),
            ("copy-commit", "deleted", "KeyValuePipeline._commit", _START, ""),
            ("copy-commit", "deleted", "KeyValuePipeline._commit", "P = exp2", ""),
            ("copy-commit", "deleted", "KeyValuePipeline._commit", "O += P V", ""),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "WideningLoader._loaded",
            "P = exp2",
            before,
            "the last tile of K is copied before the loops: behind the rows of others there are more",
        )
        for kind, change, before in (
            ("mask", "dropped", _SKIPPED),
            ("bound", "+1", "setp.gt.s32"),
            ("bound", "-1", "setp.gt.s32"),
        )
    ),
    *(
        Reason(
            kind,
            change,
            "WideningLoader._loaded",
            "O += P V",
            before,
            "of a tile that is not cut, all rows are in the array",
        )
        for kind, change, before in (("mask", "dropped", _SKIPPED), ("bound", "-1", "setp.gt.s32"))
    ),
    Reason(
        "mask",
        "always the second",
        "_merge",
        "the sum of the weights",
        "selp.f32",
        "where the sum is 0 all weights are, and no part is added",
    ),
    *(
        Reason(
            "bound",
            "lt to le",
            "_weights",
            step,
            "setp.lt.s32",
            "the lane behind those that have a part has a weight of 0 for it: nothing is added",
        )
        for step in ("the sum of the weights", "the sum of the parts")
    ),
    *(
        Reason(
            "loop-bound",
            change,
            "_weights",
            step,
            before,
            "there is a part, and so there is one in the first turn of a warp",
        )
        for step in ("the sum of the weights", "the sum of the parts")
        for change, before in (("ge to gt", "setp.ge.s32"), ("never taken", "@%p[0-9]+ bra .done"))
    ),
    *(
        Reason(
            "loop-bound",
            "lt to le",
            "_weights",
            step,
            "setp.lt.s32",
            "only adds work: a turn in which there is no part",
        )
        for step in ("the sum of the weights", "the sum of the parts")
    ),
    *(
        Reason(
            kind,
            change,
            "merge_kernel",
            "the sum of the parts",
            before,
            "all lanes of a row have the same LSE: any of them may write it, and all of them together",
        )
        for kind, change, before in (
            ("mask", "dropped", "@!%p"),
            ("mask", "inverted", "@!%p"),
            ("bound", "+1", "setp.eq.s32"),
            ("bound", "inverted", "setp.eq.s32"),
        )
    ),
    Reason(
        "mask",
        "dropped",
        "_add_outputs",
        "O += P V",
        _SKIPPED,
        "only spares work: where all rows see all keys, a weight is 0 by underflow alone, and 0 "
        "times a finite V adds nothing",
    ),
    Reason(
        "mask",
        "always the second",
        "OnlineSoftmax.finish",
        "O / sum",
        "selp",
        "the sum is 0 only where the maximum is -inf, and -inf + lg2(0) is the -inf that 0 + lg2(0) is",
    ),
    *(
        Reason(
            kind,
            change,
            function,
            "O / sum",
            before,
            "all lanes of a row have the same LSE: any of them may write it, and those of one warp "
            "the same value together",
        )
        for function in ("_store", "_finish")
        for kind, change, before in (("bound", "+1", "setp.eq.u32"), ("bound", "inverted", "setp.eq.u32"))
    ),
    *(
        Reason(
            "mask",
            change,
            "_store",
            "O / sum",
            "@!%p",
            "all lanes of a row have the same LSE, and those of one warp may write the same value together",
        )
        for change in ("dropped", "inverted")
    ),
    Reason(
        "shared-address",
        "operand 2 -1",
        "TileLoader.__init__",
        _START,
        "rem.u32",
        "the last lane has no chunk of its own, and becomes a second first lane: both copy the "
        "same bytes to the same place",
    ),
    *(
        Reason(
            "mask",
            change,
            "Products.share_weights",
            "P = exp2",
            "@!?%p[0-9]+ st.shared",
            "the threads that share a score, of one warp, have the same bits of it: any of them "
            "may write it, and all of them together",
        )
        for change in ("dropped", "inverted")
    ),
    *(
        Reason(
            "bound",
            change,
            "Products.share_weights",
            "P = exp2",
            "setp",
            "the threads that share a score, of one warp, have the same bits of it: any of them may write it",
        )
        for change in ("+1", "-1", "inverted")
    ),
    Reason(
        "loop-bound",
        "lt to le",
        "attention_forward",
        "O += P V",
        "setp.lt.s32",
        "only adds work: one more tile, of which no row sees a key, and whose V beyond the array is zero",
    ),
    *OF_NEW_ROWS,
)
