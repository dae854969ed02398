"""Asynchronous copies from global to shared memory (PTX ISA, "Data Movement: Non-bulk Asynchronous
Copy").

`cp.async.ca` caches in L1 and L2, `cp.async.cg` in L2 only. A thread awaits its own copies, group
by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.declare import inst
from ptxgen.isa.memory import hinted
from ptxgen.isa.spec import Effect, gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.isa.machine import Lanes, Machine

COPY: Final = "Data Movement and Conversion Instructions: Asynchronous copy"
_PREFETCH: Final = dict.fromkeys(("L2::64B", "L2::128B", "L2::256B"), gate(ptx=(7, 4), sm=80))


@inst(
    "cp.async.ca.shared.global{.prefetch} [dst:u32], [src:u64], cp_size:imm{, src_size:u32}",
    name="cp_async_ca",
    prefetch=_PREFETCH,
    ptx=(7, 0),
    sm=80,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async",
)
def cp_async_ca(
    machine: Machine,
    dst: Lanes,
    src: Lanes,
    cp_size: int,
    src_size: Lanes | None = None,
    *,
    prefetch: str | None,
) -> tuple[()]:
    """Start copying cp_size (4, 8, 16) bytes from src to dst; those from src_size on become 0."""
    del prefetch  # a hint
    machine.copy_async(dst, src, cp_size, src_size)
    return ()


@inst(
    "cp.async.cg.shared.global{.prefetch} [dst:u32], [src:u64], 16{, src_size:u32}",
    name="cp_async_cg",
    prefetch=_PREFETCH,
    ptx=(7, 0),
    sm=80,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async",
)
def cp_async_cg(
    machine: Machine, dst: Lanes, src: Lanes, src_size: Lanes | None = None, *, prefetch: str | None
) -> tuple[()]:
    """Start copying 16 bytes from src to dst, not through L1; those from src_size on become 0."""
    del prefetch  # a hint
    machine.copy_async(dst, src, 16, src_size)
    return ()


def _copied(
    machine: Machine, dst: Lanes, src: Lanes, *, cp_size: int, src_size: Lanes | None = None
) -> tuple[()]:
    machine.copy_async(dst, src, cp_size, src_size)
    return ()


def _copied_unless(
    machine: Machine, dst: Lanes, src: Lanes, *, cp_size: int, ignore: Lanes
) -> tuple[()]:
    given = np.where(ignore, np.uint32(0), np.uint32(cp_size))
    machine.copy_async(dst, src, cp_size, given)
    return ()


_START: Final = "Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst"
_FORMS: Final[tuple[tuple[str, Callable[..., Any], dict[str, Any], str], ...]] = (
    ("", _copied, {"src_size": None}, f"{_START}."),
    (", src_size:u32", _copied, {}, f"{_START}; those from src_size on become 0."),
    (
        ", ignore:pred",
        _copied_unless,
        {},
        f"{_START}; if ignore holds, src is not read and they become 0.",
    ),
)


def _declare(cache: str, space: str) -> None:
    """Declare the forms of one way through the caches to one spelling of shared memory, except
    those above.
    """
    size, fixed = ("cp_size:imm", {}) if cache == "ca" else ("16", {"cp_size": 16})
    head = f"cp.async.{cache}.{space}.global"
    where = f"[dst:u32], [src:u64], {size}"
    # A name of its own, so that a wrong pointer is not taken for one of the other spelling.
    name = f"cp_async_{cache}{'' if space == 'shared' else '_cta'}"
    if space != "shared":
        inst(
            f"{head}{{.prefetch}} {where}{{, src_size:u32}}", name=name,
            prefetch=_PREFETCH, ptx=(7, 0), sm=80,
            effect=Effect.ASYNC, section=f"{COPY}: cp.async",
        )(hinted(_copied, _FORMS[1][3], "prefetch", **fixed))  # fmt: skip
    for operands, meaning, constant, doc in _FORMS:
        ignores = "ignore" in operands
        # Also for a predicate, which typed callers could not tell from a size.
        called = f"{name}_unless" if ignores else name
        if ignores:
            inst(
                f"{head}{{.prefetch}} {where}{operands}", name=called,
                prefetch=_PREFETCH, ptx=(7, 5), sm=80,
                effect=Effect.ASYNC, section=f"{COPY}: cp.async",
            )(hinted(meaning, doc, "prefetch", **fixed))  # fmt: skip
        inst(
            f"{head}.L2::cache_hint{{.prefetch}} {where}{operands}, policy:b64",
            name=f"{called}_policy", prefetch=_PREFETCH,
            ptx=(7, 5) if ignores else (7, 4), sm=80,
            effect=Effect.ASYNC, section=f"{COPY}: cp.async",
        )(hinted(meaning, doc, "prefetch", "policy", **fixed, **constant))  # fmt: skip


for _cache in ("ca", "cg"):
    for _space in ("shared", "shared::cta"):
        _declare(_cache, _space)


@inst(
    "cp.async.commit_group", name="cp_async_commit_group", ptx=(7, 0), sm=80,
    effect=Effect.ASYNC, section=f"{COPY}: cp.async.commit_group",
)  # fmt: skip
def cp_async_commit_group(machine: Machine) -> tuple[()]:
    """Make one group of all copies that this thread started since the last one."""
    machine.copy_async_commit()
    return ()


@inst(
    "cp.async.wait_group n:imm", name="cp_async_wait_group", ptx=(7, 0), sm=80,
    effect=Effect.ASYNC, section=f"{COPY}: cp.async.wait_group",
)  # fmt: skip
def cp_async_wait_group(machine: Machine, n: int) -> tuple[()]:
    """Wait until at most the n newest groups of this thread are still under way."""
    machine.copy_async_wait(n)
    return ()


@inst(
    "cp.async.wait_all", name="cp_async_wait_all", ptx=(7, 0), sm=80,
    effect=Effect.ASYNC, section=f"{COPY}: cp.async.wait_group",
)  # fmt: skip
def cp_async_wait_all(machine: Machine) -> tuple[()]:
    """Wait for all copies of this thread, committed or not."""
    machine.copy_async_wait(None)
    return ()
