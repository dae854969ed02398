"""Asynchronous copies from global to shared memory (PTX ISA, "Data Movement: Non-bulk Asynchronous
Copy").

`cp.async.ca` caches in L1 and L2, `cp.async.cg` in L2 only. A thread waits for its own copies,
group by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.memory import MOVEMENT
from ptxgen.isa.spec import Effect, gate

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

COPY: Final = f"{MOVEMENT}: Asynchronous copy"
_PREFETCH: Final = dict.fromkeys(("L2::64B", "L2::128B", "L2::256B"), gate(ptx=(7, 4), sm=80))


# The caches that a copy uses: L1 and L2, with the size as an operand, or L2 only.
_CACHES: Final = each("cache size cp_size", ("ca", "cp_size:imm", None), ("cg", "16", 16))
_ZEROS: Final = "; those from src_size on become 0"
_UNLESS: Final = "; if ignore holds, src is not read and they become 0"
_PLAIN: Final = each("form modifier operands ptx rest", ("", "", "{, src_size:u32}", (7, 0), _ZEROS))
# Rows with `ignore` have their own names: typed callers could not tell a predicate from a size.
_OTHERS: Final = each(
    "form modifier operands ptx rest",
    ("_policy", ".L2::cache_hint", ", policy:b64", (7, 4), ""),
    ("_policy", ".L2::cache_hint", ", src_size:u32, policy:b64", (7, 4), _ZEROS),
    ("_unless", "", ", ignore:pred", (7, 5), _UNLESS),
    ("_unless_policy", ".L2::cache_hint", ", ignore:pred, policy:b64", (7, 5), _UNLESS),
)


@inst(
    "cp.async.<cache>.<space>.global<modifier>{.prefetch} [dst:u32], [src:u64], <size><operands>",
    times(
        each(
            "cache size cp_size what",
            ("ca", "cp_size:imm", None, "cp_size (4, 8, 16) bytes from src to dst"),
            ("cg", "16", 16, "16 bytes from src to dst, not through L1"),
        ),
        each("space pointer", ("shared", "")),
        _PLAIN,
    )
    # Rows with `.shared::cta` have their own names, so that a pointer to it and one to `.shared`
    # are not mixed up.
    + times(
        _CACHES,
        each("space pointer forms", ("shared", "", _OTHERS), ("shared::cta", "_cta", _PLAIN + _OTHERS)),
    ),
    name="cp_async_<cache><pointer><form>",
    prefetch=_PREFETCH,
    ignores=("prefetch", "policy"),
    what="cp_size (4, 8, 16; .cg: 16) bytes from src to dst",
    sm=80,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async",
)
def cp_async(
    machine: Machine,
    dst: Lanes,
    src: Lanes,
    cp_size: int,
    src_size: Lanes | None = None,
    ignore: Lanes | None = None,
) -> tuple[()]:
    """Start copying <what><rest>."""
    if ignore is not None:
        src_size = np.where(ignore, np.uint32(0), np.uint32(cp_size))
    machine.copy_async(dst, src, cp_size, src_size)
    return ()


@inst(
    "cp.async.commit_group",
    name="cp_async_commit_group",
    ptx=(7, 0),
    sm=80,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async.commit_group",
)
def cp_async_commit_group(machine: Machine) -> tuple[()]:
    """Make one group of all copies that this thread started since its last commit."""
    machine.copy_async_commit()
    return ()


@inst(
    "cp.async.wait_group n:imm",
    name="cp_async_wait_group",
    ptx=(7, 0),
    sm=80,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async.wait_group",
)
def cp_async_wait_group(machine: Machine, n: int) -> tuple[()]:
    """Wait until at most the n newest groups of this thread are still under way."""
    machine.copy_async_wait(n)
    return ()


@inst(
    "cp.async.wait_all",
    name="cp_async_wait_all",
    ptx=(7, 0),
    sm=80,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async.wait_group",
)
def cp_async_wait_all(machine: Machine) -> tuple[()]:
    """Wait for all copies of this thread, committed or not."""
    machine.copy_async_wait(None)
    return ()
