"""Mistakes in synchronisation: instructions that are deleted or weakened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ptxgen.ir import Instr, IntImm
from ptxgen.isa.table import recognise
from ptxgen.mutation.sites import Change, Site, constant, with_operand

_WARP: Final = 32
_ALL_LANES: Final = IntImm(-1)
_HALF_THE_LANES: Final = 0xFFFF
_SCOPES: Final = {"sys": "gpu", "gpu": "cta", "cluster": "cta"}
_MEMBAR_SCOPES: Final = {"sys": "gl", "gl": "cta"}
_COPY_BYTES: Final = 16  # bytes of the narrowest bulk copy


def barriers(site: Site) -> Iterator[Change]:
    """Changes of barriers of a block or a cluster."""
    instr = site.instr
    if not instr.opcode.startswith(("bar.", "barrier.")) or instr.opcode == "bar.warp.sync":
        return
    yield Change("deleted", ())
    if ".sync" in instr.opcode:
        alone = Instr("bar.warp.sync", (_ALL_LANES,), instr.guard, instr.origin)
        yield Change("of each warp alone", (alone,))
    if len(instr.operands) > 1 and isinstance(instr.operands[1], IntImm):
        threads = instr.operands[1].value
        for delta in (_WARP, -_WARP):
            yield Change(f"{delta:+d} threads", constant(instr, 1, threads + delta))
        if isinstance(instr.operands[0], IntImm):
            other = instr.operands[0].value ^ 1
            yield Change("of another number", constant(instr, 0, other))


def waits(site: Site) -> Iterator[Change]:
    """Changes of `cp.async`, bulk, `wgmma` and tensor memory waits."""
    instr = site.instr
    if instr.opcode.startswith("tcgen05.wait"):
        yield Change("deleted", ())
    if "wait_group" in instr.opcode:
        yield Change("deleted", ())
        number = instr.operands[0]
        if isinstance(number, IntImm):
            yield Change("of one group less", constant(instr, 0, number.value + 1))
    elif instr.opcode == "cp.async.wait_all":
        yield Change("deleted", ())
        one = Instr("cp.async.wait_group", (IntImm(1),), instr.guard, instr.origin)
        yield Change("of one group less", (one,))


def commits(site: Site) -> Iterator[Change]:
    """Deleted commits of groups, and of products and copies in tensor memory."""
    instr = site.instr
    if "commit_group" in instr.opcode or instr.opcode.startswith("tcgen05.commit"):
        yield Change("deleted", ())


def fences(site: Site) -> Iterator[Change]:
    """Changes of fences, including those of `wgmma`, of tensor memory and of proxies."""
    instr = site.instr
    if not instr.opcode.startswith(("fence", "membar", "wgmma.fence", "tcgen05.fence")):
        return
    yield Change("deleted", ())
    if instr.opcode.startswith("fence.proxy"):
        weak = Instr("fence.acq_rel.cta", (), instr.guard, instr.origin)
        yield Change("of the generic proxy alone", (weak,))
        return
    scopes = _MEMBAR_SCOPES if instr.opcode.startswith("membar") else _SCOPES
    yield from _renamed(instr, scopes, "of the scope")


def mbarriers(site: Site) -> Iterator[Change]:
    """Changes of mbarriers: arrivals, counts, bytes, phases and waits."""
    instr = site.instr
    if site.program.awaits(instr) and site.program.loop_branch(site.position):
        yield Change("not waited for", ())
    if instr.opcode.startswith("cp.async.mbarrier"):
        yield Change("deleted", ())
    if not instr.opcode.startswith("mbarrier."):
        return
    action = instr.opcode.split(".")[1]
    if action in ("arrive", "arrive_drop", "expect_tx", "complete_tx", "init"):
        yield Change("deleted", ())
    numbers = [n for n, o in enumerate(instr.operands) if isinstance(o, IntImm)]
    for n in numbers[:1]:
        value = instr.operands[n]
        assert isinstance(value, IntImm)
        if action in ("try_wait", "test_wait"):
            yield Change("of the other phase", constant(instr, n, value.value ^ 1))
            continue
        step = _COPY_BYTES if "tx" in instr.opcode else 1
        for delta in (step, -step):
            yield Change(f"{delta:+d}", constant(instr, n, value.value + delta))


def warps(site: Site) -> Iterator[Change]:
    """Changes of warp-level operations."""
    instr = site.instr
    if instr.opcode == "bar.warp.sync":
        yield Change("deleted", ())
    synchronous = ("shfl.sync", "vote.sync", "match.", "redux.sync", "bar.warp.sync")
    if not instr.opcode.startswith(synchronous):
        return
    last = len(instr.operands) - 1
    if isinstance(instr.operands[last], IntImm):
        yield Change("of half the lanes", constant(instr, last, _HALF_THE_LANES))
    if instr.opcode.startswith("shfl"):
        distance = instr.operands[2]
        if isinstance(distance, IntImm) and distance.value:
            yield Change("of double distance", constant(instr, 2, distance.value * 2))


_RELAXED: Final = {"acquire": "relaxed", "release": "relaxed", "acq_rel": "relaxed"}


def orders(site: Site) -> Iterator[Change]:
    """Changes of a memory access that weaken its memory order."""
    instr = site.instr
    if instr.opcode.startswith(("ld.", "st.", "atom.", "red.")):
        yield from _renamed(instr, _RELAXED, "made")


def _renamed(instr: Instr, names: dict[str, str], words: str) -> Iterator[Change]:
    for n, word in enumerate(parts := instr.opcode.split(".")):
        if word in names:
            opcode = ".".join([*parts[:n], names[word], *parts[n + 1 :]])
            if recognise(opcode):
                yield Change(f"{words} {names[word]}", with_operand(instr, opcode=opcode))
