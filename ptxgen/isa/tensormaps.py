"""Instructions that change tensor maps (PTX ISA, "Tensormap Instructions")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptxgen.isa.declare import each, inst
from ptxgen.isa.fragments import EVERY_LANE
from ptxgen.isa.spec import BLACKWELL, Effect

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

TENSORMAP: Final = "Data Movement and Conversion Instructions: tensormap"


@inst(
    "tensormap.replace.tile.<field>{.space}.b1024.<type> [addr:u64], <operands>",
    each(
        "name field type operands does",
        (
            "tensormap_replace_address",
            "global_address",
            "b64",
            "a:b64",
            "Make a the address of the tensor whose map is at addr",
        ),
        ("tensormap_replace_rank", "rank", "b32", "a:b32", "Give the tensor a + 1 dimensions"),
        (
            "tensormap_replace_dim",
            ("box_dim", "global_dim", "element_stride"),
            "b32",
            "ord:imm, a:b32",
            "Make a the size of the box or of the tensor, or the step, in elements, along dimension "
            "ord, from 0, the innermost",
        ),
        (
            "tensormap_replace_stride",
            "global_stride",
            "b64",
            "ord:imm, a:b64",
            "Make a the stride, bytes, of dimension ord + 1",
        ),
        (
            "tensormap_replace_mode",
            ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode"),
            "b32",
            "mode:imm",
            "Make mode the type of elements, the layout, the swizzle or the fill, as the manual numbers them",
        ),
    ),
    space=("global", "shared::cta"),
    ptx=(8, 3),
    sm=90,
    only=("sm_90a", *BLACKWELL),
    effect=Effect.ASYNC,
    section=f"{TENSORMAP}.replace",
)
def tensormap_replace(
    machine: Machine,
    addr: Lanes,
    a: Lanes | None = None,
    ord: int = 0,
    mode: int = 0,
    *,
    field: str,
    space: str | None,
) -> tuple[()]:
    """<does>."""
    value = mode if a is None else a
    machine.tensormap_replace(space or "generic", addr, field, ord, value)
    return ()


@inst(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned "
    "[dst:u64], [src:u32], 128",
    name="tensormap_cp_fenceproxy",
    scope=("cta", "cluster", "gpu", "sys"),
    ptx=(8, 3),
    sm=90,
    effect=Effect.ASYNC,
    section=f"{TENSORMAP}.cp_fenceproxy",
)
def tensormap_cp_fenceproxy(machine: Machine, dst: Lanes, src: Lanes, *, scope: str) -> tuple[()]:
    """Copy the tensor map at src to dst, and make it visible in the scope, to threads that acquire
    it there.
    """
    machine.warp_sync(EVERY_LANE)
    machine.tensormap_copy(dst, src)
    machine.fence(scope)
    return ()
