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
_NO_128: Final = "no value has 128 bits"
_NOT_NEEDED: Final = "not needed yet"
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
    **dict.fromkeys(
        ("clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel"),
        Gap(_TOGETHER, "launches that are cancelled are not modelled"),
    ),
    **dict.fromkeys(("mma.sp", "mma.sp::ordered_metadata"), Gap(_MATRIX, _SPARSE)),
    "wgmma.mma_async.sp": Gap(_WGMMA, _SPARSE),
    **dict.fromkeys(
        ("stacksave", "stackrestore", "alloca"),
        Gap("Stack Manipulation Instructions", "memory of the stack is not modelled"),
    ),
    **dict.fromkeys(
        ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset"),
        Gap("Scalar Video Instructions", "video"),
    ),
}

# One opcode for each form.
FORMS: Final[Mapping[str, Gap]] = {
    "shfl.idx.b32": Gap(f"{_MOVES}: shfl (deprecated)", _DEPRECATED),
    "vote.ballot.b32": Gap(f"{_TOGETHER}: vote (deprecated)", _DEPRECATED),
    "mov.b128": Gap(f"{_MOVES}: mov", _NO_128),
    "ld.relaxed.gpu.global.b128": Gap(f"{_MOVES}: ld", _NO_128),
    "st.relaxed.gpu.global.b128": Gap(f"{_MOVES}: st", _NO_128),
    "atom.relaxed.gpu.global.cas.b128": Gap(f"{_TOGETHER}: atom", _NO_128),
    "atom.relaxed.gpu.global.exch.b128": Gap(f"{_TOGETHER}: atom", _NO_128),
    "ld.volatile.local.b32": Gap(f"{_MOVES}: ld", _NOT_NEEDED),
    "st.volatile.local.b32": Gap(f"{_MOVES}: st", _NOT_NEEDED),
    "st.async.release.gpu.global.b32": Gap(f"{_MOVES}: st.async", _NOT_NEEDED),
    "red.async.release.gpu.global.add.u32": Gap(f"{_TOGETHER}: red.async", _NOT_NEEDED),
    "membar.proxy.alias": Gap(f"{_TOGETHER}: membar", "the old spelling of fence.proxy"),
    "cvt.rs.f16x2.f32": Gap(f"{_MOVES}: cvt", "stochastic rounding is not modelled"),
    "cvt.rn.satfinite.s2f6x2.f32": Gap(f"{_MOVES}: cvt", _NOT_NEEDED),
    "cvt.rn.satfinite.e4m3x2.bf16x2": Gap(f"{_MOVES}: cvt", _NOT_NEEDED),
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask": Gap(f"{_BULK}: cp.async.bulk", _NOT_NEEDED),
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32": Gap(
        f"{_MOVES}: tensormap.replace", _NOT_NEEDED
    ),
    "tex.base.2d.v4.f32.f32": Gap("Texture Instructions: tex", _NOT_NEEDED),
    "tex.2d.v2.f16x2.f32": Gap("Texture Instructions: tex", _NOT_NEEDED),
    "tex.2dms.v4.f32.s32": Gap("Texture Instructions: tex", "no texture has several samples"),
    "tld4.r.cube.v4.f32.f32": Gap("Texture Instructions: tld4", _NOT_NEEDED),
    "txq.level.width.b32": Gap("Texture Instructions: txq", _NOT_NEEDED),
    "txq.filter_mode.b32": Gap("Texture Instructions: txq", _NOT_NEEDED),
    "sust.p.2d.v4.b32.trap": Gap("Surface Instructions: sust", "formats are not modelled"),
    "suq.channel_order.b32": Gap("Surface Instructions: suq", "formats are not modelled"),
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8": Gap(f"{_MATRIX}: ldmatrix", _NOT_NEEDED),
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32": Gap(f"{_MATRIX}: ldmatrix", _NOT_NEEDED),
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8": Gap(f"{_MATRIX}: stmatrix", _NOT_NEEDED),
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32": Gap(
        f"{_MATRIX}: mma", "4- and 6-bit products are not modelled"
    ),
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0": Gap(
        f"{_MATRIX}: mma", "scales of blocks are not modelled"
    ),
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc": Gap(
        f"{_WGMMA}: wgmma.mma_async", _NOT_NEEDED
    ),
}
