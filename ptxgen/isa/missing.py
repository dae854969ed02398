"""The instructions and forms of PTX ISA 9.1 that the table lacks, for `docs/isa.md`: instructions
without a row, and forms of others that no row prints. A test checks that none of them is in the
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

PTX_ISA: Final = (9, 1)  # the version that both lists are for


class Gap(NamedTuple):
    """A section of the manual, by the name that rows use, and the reason why it has no row."""

    section: str
    why: str


_MOVES: Final = "Data Movement and Conversion Instructions"
_BULK: Final = f"{_MOVES}: Asynchronous copy: Bulk copy"
_TOGETHER: Final = "Parallel Synchronization and Communication Instructions"
_MATRIX: Final = "Warp Level Matrix Instructions"
_WGMMA: Final = "Asynchronous Warpgroup Level Matrix Instructions"
_DEPRECATED: Final = "no target has it any more"
_PRIVATE: Final = "no other thread can access local memory, so it is ld and st without .volatile"
_TO_GLOBAL: Final = "asynchronous stores to global memory are not modelled"
_UNKNOWN: Final = "the assembler that the tests use, ptxas 13.0, does not know it"
_ONE_LEVEL: Final = "no texture has several levels here"
_BYTES: Final = "matrices of bytes are not transposed on the way"
_SPARSE: Final = "sparse matrices are not modelled"

INSTRUCTIONS: Final[Mapping[str, Gap]] = {
    **dict.fromkeys(
        (
            "multimem.ld_reduce",
            "multimem.st",
            "multimem.red",
            "multimem.cp.async.bulk",
            "multimem.cp.reduce.async.bulk",
        ),
        Gap(_MOVES, "memory of several GPUs is not modelled"),
    ),
    "istypep": Gap("Texture Instructions", "handles have no types of their own here"),
    "sured": Gap("Surface Instructions", "reductions on surfaces are not modelled"),
    **dict.fromkeys(("mma.sp", "mma.sp::ordered_metadata"), Gap(_MATRIX, _SPARSE)),
    "wgmma.mma_async.sp": Gap(_WGMMA, _SPARSE),
    **dict.fromkeys(
        ("stacksave", "stackrestore", "alloca"),
        Gap("Stack Manipulation Instructions", "memory of the stack is not modelled"),
    ),
    **dict.fromkeys(
        ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset"),
        Gap("Scalar Video Instructions", "arithmetic on single video elements is not modelled"),
    ),
}

# One opcode for each form.
FORMS: Final[Mapping[str, Gap]] = {
    "shfl.idx.b32": Gap(f"{_MOVES}: shfl (deprecated)", _DEPRECATED),
    "vote.ballot.b32": Gap(f"{_TOGETHER}: vote (deprecated)", _DEPRECATED),
    "ld.volatile.local.b32": Gap(f"{_MOVES}: ld", _PRIVATE),
    "st.volatile.local.b32": Gap(f"{_MOVES}: st", _PRIVATE),
    "st.async.release.gpu.global.b32": Gap(f"{_MOVES}: st.async", _TO_GLOBAL),
    "red.async.release.gpu.global.add.u32": Gap(f"{_TOGETHER}: red.async", _TO_GLOBAL),
    "membar.proxy.alias": Gap(f"{_TOGETHER}: membar", "the old spelling of fence.proxy"),
    "cvt.rn.satfinite.s2f6x2.f32": Gap(f"{_MOVES}: cvt", _UNKNOWN),
    "cvt.rn.satfinite.e4m3x2.bf16x2": Gap(f"{_MOVES}: cvt", _UNKNOWN),
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask": Gap(
        f"{_BULK}: cp.async.bulk", "copies that leave out bytes by a mask are not modelled"
    ),
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32": Gap(
        f"{_MOVES}: tensormap.replace", "no tensor map has a swizzle of other units than 16 bytes here"
    ),
    "tex.base.2d.v4.f32.f32": Gap("Texture Instructions: tex", _ONE_LEVEL),
    "tex.2d.v2.f16x2.f32": Gap("Texture Instructions: tex", "textures give numbers of 32 bits here"),
    "tex.2dms.v4.f32.s32": Gap("Texture Instructions: tex", "no texture has several samples"),
    "tld4.r.cube.v4.f32.f32": Gap(
        "Texture Instructions: tld4", "four texels are gathered from 2-D textures only here"
    ),
    "txq.level.width.b32": Gap("Texture Instructions: txq", _ONE_LEVEL),
    "txq.filter_mode.b32": Gap("Texture Instructions: txq", "samplers have no handles here"),
    "sust.p.2d.v4.b32.trap": Gap("Surface Instructions: sust", "formats are not modelled"),
    "suq.channel_order.b32": Gap("Surface Instructions: suq", "formats are not modelled"),
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0": Gap(
        f"{_MATRIX}: mma", _UNKNOWN
    ),
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8": Gap(f"{_MATRIX}: ldmatrix", _BYTES),
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32": Gap(
        f"{_MATRIX}: ldmatrix", "elements of 4 and 6 bits are not unpacked on the way"
    ),
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8": Gap(f"{_MATRIX}: stmatrix", _BYTES),
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc": Gap(
        f"{_WGMMA}: wgmma.mma_async", "no product of single bits is modelled for a warpgroup"
    ),
}
