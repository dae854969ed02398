"""Changes of tensor maps by kernels (PTX ISA, "Tensormap Instructions")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.declare import inst
from ptxgen.isa.fragments import EVERY_LANE
from ptxgen.isa.spec import Effect

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

TENSORMAP: Final = "Data Movement and Conversion Instructions: tensormap"
_REPLACE: Final[dict[str, Any]] = {
    "space": ("global", "shared::cta"), "ptx": (8, 3), "sm": 90, "effect": Effect.ASYNC,
    "only": ("sm_90a", "sm_100a", "sm_101a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"),
    "section": f"{TENSORMAP}.replace",
}  # fmt: skip


@inst(
    "tensormap.replace.tile.global_address{.space}.b1024.b64 [addr:u64], a:b64",
    name="tensormap_replace_address", **_REPLACE,
)  # fmt: skip
def tensormap_replace_address(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None
) -> tuple[()]:
    """Make a the address of the tensor whose map is at addr."""
    machine.tensormap_replace(space or "generic", addr, "global_address", 0, a)
    return ()


@inst(
    "tensormap.replace.tile.rank{.space}.b1024.b32 [addr:u64], a:b32",
    name="tensormap_replace_rank", **_REPLACE,
)  # fmt: skip
def tensormap_replace_rank(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None
) -> tuple[()]:
    """Give the tensor a + 1 dimensions."""
    machine.tensormap_replace(space or "generic", addr, "rank", 0, a)
    return ()


@inst(
    "tensormap.replace.tile.field{.space}.b1024.b32 [addr:u64], ord:imm, a:b32",
    name="tensormap_replace_dim", field=("box_dim", "global_dim", "element_stride"), **_REPLACE,
)  # fmt: skip
def tensormap_replace_dim(
    machine: Machine, addr: Lanes, ord: int, a: Lanes, *, field: str, space: str | None
) -> tuple[()]:
    """Make a the size of the box or of the tensor, or the step, in elements, along dimension ord,
    from 0, the innermost.
    """
    machine.tensormap_replace(space or "generic", addr, field, ord, a)
    return ()


@inst(
    "tensormap.replace.tile.global_stride{.space}.b1024.b64 [addr:u64], ord:imm, a:b64",
    name="tensormap_replace_stride", **_REPLACE,
)  # fmt: skip
def tensormap_replace_stride(
    machine: Machine, addr: Lanes, ord: int, a: Lanes, *, space: str | None
) -> tuple[()]:
    """Make a the stride, bytes, of dimension ord + 1."""
    machine.tensormap_replace(space or "generic", addr, "global_stride", ord, a)
    return ()


@inst(
    "tensormap.replace.tile.field{.space}.b1024.b32 [addr:u64], mode:imm",
    name="tensormap_replace_mode",
    field=("elemtype", "interleave_layout", "swizzle_mode", "fill_mode"), **_REPLACE,
)  # fmt: skip
def tensormap_replace_mode(
    machine: Machine, addr: Lanes, mode: int, *, field: str, space: str | None
) -> tuple[()]:
    """Make mode the type of elements, the layout, the swizzle or the fill, as the manual numbers
    them.
    """
    machine.tensormap_replace(space or "generic", addr, field, 0, mode)
    return ()


@inst(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned "
    "[dst:u64], [src:u32], 128",
    name="tensormap_cp_fenceproxy", scope=("cta", "cluster", "gpu", "sys"), ptx=(8, 3), sm=90,
    effect=Effect.ASYNC, section=f"{TENSORMAP}.cp_fenceproxy",
)  # fmt: skip
def tensormap_cp_fenceproxy(machine: Machine, dst: Lanes, src: Lanes, *, scope: str) -> tuple[()]:
    """Copy the tensor map at src to dst, and let it be used in the scope after an acquire there."""
    machine.warp_sync(EVERY_LANE)
    machine.tensormap_copy(dst, src)
    machine.fence(scope)
    return ()
