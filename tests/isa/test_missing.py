"""The list of what PTX has and the table has not, against the names in the manual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptxgen import isa
from ptxgen.isa.missing import FORMS, INSTRUCTIONS, PTX_ISA
from ptxgen.isa.spec import Inst, Piece

# PTX ISA 9.1, chapter 9.7: what its sections are about, each name once, in their order. `{}` and
# `@`, which have sections, too, are syntax.
VERSION: Final = (9, 1)
_TEXT: Final = (
    # Integer arithmetic, with carry, floating point, of half and mixed precision
    "add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev bfe bfi szext bmsk "
    "dp4a dp2a add.cc addc sub.cc subc mad.cc madc testp copysign fma rcp rcp.approx.ftz.f64 sqrt rsqrt "
    "rsqrt.approx.ftz.f64 sin cos lg2 ex2 tanh "
    # Comparison and selection, logic and shift
    "set setp selp slct and or xor not cnot lop3 shf shl shr "
    # Data movement and conversion
    "mov shfl shfl.sync prmt ld ld.global.nc ldu st st.async st.bulk multimem.ld_reduce multimem.st "
    "multimem.red prefetch prefetchu applypriority discard createpolicy isspacep cvta cvt cvt.pack mapa "
    "getctarank cp.async cp.async.commit_group cp.async.wait_group cp.async.wait_all cp.async.bulk "
    "cp.reduce.async.bulk cp.async.bulk.prefetch multimem.cp.async.bulk multimem.cp.reduce.async.bulk "
    "cp.async.bulk.tensor cp.reduce.async.bulk.tensor cp.async.bulk.prefetch.tensor "
    "cp.async.bulk.commit_group cp.async.bulk.wait_group tensormap.replace "
    # Textures, surfaces, control flow
    "tex tld4 txq istypep suld sust sured suq bra brx.idx call ret exit "
    # Parallel synchronization and communication
    "bar barrier bar.warp.sync barrier.cluster membar fence atom red red.async vote vote.sync "
    "match.sync activemask redux.sync griddepcontrol elect.sync mbarrier.init mbarrier.inval "
    "mbarrier.expect_tx mbarrier.complete_tx mbarrier.arrive mbarrier.arrive_drop "
    "cp.async.mbarrier.arrive mbarrier.test_wait mbarrier.try_wait mbarrier.pending_count "
    "tensormap.cp_fenceproxy clusterlaunchcontrol.try_cancel clusterlaunchcontrol.query_cancel "
    # Matrices of a warp, of a warpgroup, in tensor memory
    "wmma.load wmma.store wmma.mma mma ldmatrix stmatrix movmatrix mma.sp mma.sp::ordered_metadata "
    "wgmma.mma_async wgmma.mma_async.sp wgmma.fence wgmma.commit_group wgmma.wait_group tcgen05.alloc "
    "tcgen05.dealloc tcgen05.relinquish_alloc_permit tcgen05.ld tcgen05.st tcgen05.wait tcgen05.cp "
    "tcgen05.shift tcgen05.mma tcgen05.mma.sp tcgen05.mma.ws tcgen05.mma.ws.sp tcgen05.fence "
    "tcgen05.commit "
    # Stack manipulation, video, miscellaneous
    "stacksave stackrestore alloca vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vadd2 vsub2 vavrg2 "
    "vabsdiff2 vmin2 vmax2 vset2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4 brkpt nanosleep pmevent "
    "trap setmaxnreg "
)
NAMES: Final = tuple(_TEXT.split())
ROWS: Final = [row for named in isa.rows().values() for row in named]


def test_the_list_is_exactly_what_the_manual_names_and_no_row_prints() -> None:
    assert PTX_ISA == VERSION
    assert len(set(NAMES)) == len(NAMES)
    assert set(INSTRUCTIONS) == {name for name in NAMES if not _has_row(name)}


def test_every_row_is_an_instruction_that_the_manual_names() -> None:
    for row in ROWS:
        assert any(_may_print(row, name.split(".")) for name in NAMES), row.syntax


def test_no_row_prints_a_form_that_is_listed_of_an_instruction_with_rows() -> None:
    for opcode in FORMS:
        assert not isa.recognise(opcode), opcode
        assert any(_has_row(name) and f"{opcode}.".startswith(f"{name}.") for name in NAMES), opcode
        assert not any(f"{opcode}.".startswith(f"{name}.") for name in INSTRUCTIONS), opcode


def _has_row(name: str) -> bool:
    """Whether a row prints an opcode that begins with the name's first word and has all others in
    their order: `mad.cc` is printed as `mad.lo.cc`.
    """
    return any(_may_print(row, name.split(".")) for row in ROWS)


def _may_print(row: Inst, words: Sequence[str]) -> bool:
    rest = list(words)
    for n, piece in enumerate(row.pieces):
        if rest and rest[0] in _printed(row, piece):
            del rest[0]
        elif not n:
            return False
    return not rest


def _printed(row: Inst, piece: Piece) -> set[str]:
    if not piece.slot:
        return {piece.name, piece.name.partition("::")[0]}  # tcgen05.wait is printed as tcgen05.wait::ld
    return {piece.name if value is True else str(value) for value in row.choices[piece.name]}
