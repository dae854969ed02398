"""Prefetches, and priorities and policies of eviction: hints for caches, which change no value (PTX ISA,
"Data Movement and Conversion Instructions").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.declare import each, inst
from ptxgen.isa.memory import MOVEMENT, POLICY
from ptxgen.isa.spec import gate

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

_LEVELS: Final = {
    "L1": None,
    "L2": None,
    "L2::evict_last": gate(ptx=(7, 4), sm=80),
    "L2::evict_normal": gate(ptx=(7, 4), sm=80),
}


@inst(
    "prefetch<space>.level [addr:u64]",
    each(
        "name space level at",
        ("prefetch", ".global", _LEVELS, "addr"),
        ("prefetch_local", ".local", ("L1", "L2"), "addr"),
        ("prefetch_generic", "", _LEVELS, "the generic address addr"),
    ),
    ignores=("level",),
    ptx=(2, 0),
    sm=20,
    section=f"{MOVEMENT}: prefetch",
)
def prefetch(addr: Lanes) -> tuple[()]:
    """Bring the line at <at> into the cache; changes no value."""
    del addr
    return ()


@inst("prefetchu.L1 [addr:u64]", ptx=(2, 0), sm=20, section=f"{MOVEMENT}: prefetchu")
def prefetchu(addr: Lanes) -> tuple[()]:
    """Bring the line at the generic address addr into the uniform cache; changes no value."""
    del addr
    return ()


@inst(
    "applypriority{.space}.L2::evict_normal [addr:u64], 128",
    space=("global",),
    **POLICY,
    section=f"{MOVEMENT}: applypriority",
)
def applypriority(addr: Lanes, *, space: str | None) -> tuple[()]:
    """Give the 128 bytes at addr the normal eviction priority; changes no value."""
    del addr, space
    return ()


@inst("discard{.space}.L2 [addr:u64], 128", space=("global",), **POLICY, section=f"{MOVEMENT}: discard")
def discard(addr: Lanes, *, space: str | None) -> tuple[()]:
    """The contents of the 128 bytes at addr may be lost: they are undefined from now on (here they stay)."""
    del addr, space
    return ()


_PRIMARY: Final = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
_SECONDARY: Final = ("L2::evict_first", "L2::evict_unchanged")


@inst(
    "createpolicy.fractional.primary{.secondary}.b64 d{, fraction:f32}",
    name="createpolicy_fractional",
    primary=_PRIMARY,
    secondary=_SECONDARY,
    **POLICY,
    section=f"{MOVEMENT}: createpolicy",
)
def createpolicy_fractional(fraction: Lanes | None = None, *, primary: str, secondary: str | None) -> Lanes:
    """d = a cache policy: the primary priority for a fraction of accesses, the secondary for the
    others. Its bits are opaque; here they are 0.
    """
    del primary, secondary
    return np.zeros(np.shape(fraction if fraction is not None else 0), np.uint64)


@inst(
    "createpolicy.range{.space}.primary{.secondary}.b64 d, [addr:u64], size:u32, total:u32",
    name="createpolicy_range",
    space=("global",),
    primary=_PRIMARY,
    secondary=_SECONDARY,
    **POLICY,
    section=f"{MOVEMENT}: createpolicy",
)
def createpolicy_range(
    addr: Lanes, size: Lanes, total: Lanes, *, space: str | None, primary: str, secondary: str | None
) -> Lanes:
    """d = a cache policy: the primary priority for the first size bytes at addr, the secondary for
    the rest of the total bytes around. Its bits are opaque; here they are 0.
    """
    del space, primary, secondary
    return np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (addr, size, total))), np.uint64)


@inst("createpolicy.cvt.L2.b64 d, a", name="createpolicy_cvt", **POLICY, section=f"{MOVEMENT}: createpolicy")
def createpolicy_cvt(a: Lanes) -> Lanes:
    """d = the cache policy for the access property a of CUDA's API. Its bits are opaque; here they
    are those of a.
    """
    return a
