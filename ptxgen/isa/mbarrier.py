"""`mbarrier` objects in shared memory (PTX ISA, "Parallel Synchronization: mbarrier").

An object counts arrivals of threads and bytes of asynchronous copies; when nothing is left to
come, its phase is complete and the next one begins. Its 64 bits are laid out in
`ptxgen.isa.mbarrier_word`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import mbarrier_word as word
from ptxgen.isa.async_copy import COPY
from ptxgen.isa.declare import inst
from ptxgen.isa.families import member
from ptxgen.isa.spec import Effect, Gate, gate
from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MBARRIER: Final = "Parallel Synchronization and Communication Instructions: mbarrier"

_CTA: Final[dict[str, Gate | None]] = {
    "shared": None,
    "shared::cta": gate(ptx=(7, 8), sm=80),
}
_CLUSTER: Final[dict[str, Gate | None]] = {
    **_CTA,
    "shared::cluster": gate(ptx=(8, 0), sm=90),
}
_SCOPES: Final = {"cta": None, "cluster": gate(ptx=(8, 0), sm=90)}
_RELEASE: Final = {"release": gate(ptx=(8, 0), sm=80), "relaxed": gate(ptx=(8, 6), sm=90)}
_ACQUIRE: Final = {"acquire": gate(ptx=(8, 0), sm=80), "relaxed": gate(ptx=(8, 6), sm=90)}
_RELAXED: Final = ("relaxed",)
_SM80: Final[dict[str, Any]] = {"ptx": (7, 0), "sm": 80}
_SM90: Final[dict[str, Any]] = {"ptx": (8, 0), "sm": 90}


# ---------------------------------------- the object


@inst(
    "mbarrier.init{.space}.b64 [addr:u64], count:u32", name="mbarrier_init", space=_CTA,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.init", **_SM80,
)  # fmt: skip
def mbarrier_init(machine: Machine, addr: Lanes, count: Lanes, *, space: str | None) -> tuple[()]:
    """Make an mbarrier whose phases wait for count arrivals each."""
    active = machine.active()
    words = np.zeros(active.shape, np.uint64)
    counts = np.broadcast_to(count, active.shape)[active].tolist()
    try:
        words[active] = [word.made(n) for n in counts]
    except ValueError as error:
        machine.trap(str(error))
    machine.store(_space(space), addr, b64, (words,))
    return ()


@inst(
    "mbarrier.inval{.space}.b64 [addr:u64]", name="mbarrier_inval", space=_CTA,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.inval", **_SM80,
)  # fmt: skip
def mbarrier_inval(machine: Machine, addr: Lanes, *, space: str | None) -> tuple[()]:
    """End an mbarrier, so that its memory may be used for something else."""
    _updated(machine, space, addr, lambda w, _: word.checked(w) and word.INVALID, np.uint32(0))
    return ()


@inst(
    "mbarrier.pending_count.b64 d:u32, a:b64", name="mbarrier_pending_count",
    section=f"{MBARRIER}: mbarrier.pending_count", **_SM80,
)  # fmt: skip
def mbarrier_pending_count(a: Lanes) -> Lanes:
    """d = the arrivals that the phase waited for when the state a was taken."""
    count: Lanes = np.bitwise_and(a, np.uint64(word.MOST_ARRIVALS)).astype(np.uint32)
    return count


# ---------------------------------------- arriving


def _dropped(w: int, count: int) -> int:
    return word.arrived(word.dropped(w, count), count)


def _dropped_incompletely(w: int, count: int) -> int:
    return word.arrived_incompletely(word.dropped(w, count), count)


def _expecting_arrived(w: int, nbytes: int) -> int:
    return word.arrived(word.expecting(w, nbytes), 1)


def _expecting_dropped(w: int, nbytes: int) -> int:
    return _dropped(word.expecting(w, nbytes), 1)


def _declare_arrivals(drop: bool, extra: str, ordered: bool) -> None:
    """One line of the manual: `extra` is a modifier or an operand that it has, if not empty;
    `ordered` says that the order and the scope are printed.
    """
    head = "mbarrier.arrive_drop" if drop else "mbarrier.arrive"
    doc, change, operand = _ARRIVALS[drop, extra]
    modifier = "" if extra == "count" else extra
    opcode = ".".join([head, *filter(None, [modifier]), *(["sem", "scope"] if ordered else [])])
    section = f"{MBARRIER}: {head}"
    name = "_".join([head.replace(".", "_"), *filter(None, [extra, "ordered" * ordered])])
    remote = _CTA if extra == "noComplete" else _CLUSTER
    needs = {"count": {"ptx": (7, 8), "sm": 90}, "expect_tx": _SM90}.get(extra, _SM80)
    order: dict[str, Any] = {"sem": _RELEASE, "scope": _SCOPES} if ordered else {}
    if extra == "noComplete" and ordered:
        order = {"sem": ("release",), "scope": ("cta",)}
        needs = {"ptx": (8, 0), "sm": 80}
    syntax = f"{opcode}{{.space}}.b64 d:b64, [addr:u64]" + (f", {operand}:u32" if operand else "")
    declared = inst(
        syntax, name=name, space=remote, effect=Effect.ASYNC, section=section, **needs, **order,
    )  # fmt: skip
    declared(
        member(
            _arrival(change, operand), doc,
            ["addr", *([operand] if operand else [])], ["space", *order],
        )
    )  # fmt: skip


def _arrival(change: Callable[[int, int], int], operand: str) -> Callable[..., Lanes]:
    """The meaning of an arrival that `change` makes of the object and of the operand."""

    def arrive(machine: Machine, addr: Lanes, *, space: str | None, **given: Any) -> Lanes:
        # Of the order and the scope nothing is seen: every access is seen at once.
        return _updated(machine, space, addr, change, given.get(operand, np.uint32(1)))

    return arrive


_STATE: Final = "d = the state before, which a wait may be for."
# By whether it drops and what it has besides: the meaning, in words and as a function of the object
# and of the operand.
_ARRIVALS: Final[dict[tuple[bool, str], tuple[str, Callable[[int, int], int], str]]] = {
    (False, ""): (f"Arrive; {_STATE}", word.arrived, ""),
    (False, "count"): (f"Arrive count times; {_STATE}", word.arrived, "count"),
    (False, "noComplete"): (
        f"Arrive count times, which does not complete the phase; {_STATE}",
        word.arrived_incompletely,
        "count",
    ),
    (False, "expect_tx"): (
        f"Have the phase wait for tx more bytes and arrive; {_STATE}", _expecting_arrived, "tx",
    ),
    (True, ""): (f"Arrive, for the last time; {_STATE}", _dropped, ""),
    (True, "count"): (f"Arrive count times, for the last time; {_STATE}", _dropped, "count"),
    (True, "noComplete"): (
        f"Arrive count times for the last time, which does not complete the phase; {_STATE}",
        _dropped_incompletely,
        "count",
    ),
    (True, "expect_tx"): (
        f"Have the phase wait for tx more bytes and arrive, for the last time; {_STATE}",
        _expecting_dropped,
        "tx",
    ),
}  # fmt: skip

for _drop, _extra in _ARRIVALS:
    for _ordered in (False, True):
        _declare_arrivals(_drop, _extra, _ordered)


# ---------------------------------------- bytes of asynchronous copies


@inst(
    "mbarrier.expect_tx{.space}.b64 [addr:u64], tx:u32", name="mbarrier_expect_tx", space=_CLUSTER,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.expect_tx", **_SM90,
)  # fmt: skip
def mbarrier_expect_tx(machine: Machine, addr: Lanes, tx: Lanes, *, space: str | None) -> tuple[()]:
    """Have the phase wait for tx more bytes."""
    _updated(machine, space, addr, word.expecting, tx)
    return ()


@inst(
    "mbarrier.expect_tx.sem.scope{.space}.b64 [addr:u64], tx:u32",
    name="mbarrier_expect_tx_ordered", sem=_RELAXED, scope=_SCOPES, space=_CLUSTER,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.expect_tx", **_SM90,
)  # fmt: skip
def mbarrier_expect_tx_ordered(
    machine: Machine, addr: Lanes, tx: Lanes, *, space: str | None, sem: str, scope: str
) -> tuple[()]:
    """Have the phase wait for tx more bytes."""
    del sem, scope
    _updated(machine, space, addr, word.expecting, tx)
    return ()


@inst(
    "mbarrier.complete_tx{.space}.b64 [addr:u64], tx:u32", name="mbarrier_complete_tx",
    space=_CLUSTER, effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.complete_tx", **_SM90,
)  # fmt: skip
def mbarrier_complete_tx(
    machine: Machine, addr: Lanes, tx: Lanes, *, space: str | None
) -> tuple[()]:
    """Tell an mbarrier that tx bytes have come, without copying any."""
    _updated(machine, space, addr, word.brought, tx)
    return ()


@inst(
    "mbarrier.complete_tx.sem.scope{.space}.b64 [addr:u64], tx:u32",
    name="mbarrier_complete_tx_ordered", sem=_RELAXED, scope=_SCOPES, space=_CLUSTER,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.complete_tx", **_SM90,
)  # fmt: skip
def mbarrier_complete_tx_ordered(
    machine: Machine, addr: Lanes, tx: Lanes, *, space: str | None, sem: str, scope: str
) -> tuple[()]:
    """Tell an mbarrier that tx bytes have come, without copying any."""
    del sem, scope
    _updated(machine, space, addr, word.brought, tx)
    return ()


@inst(
    "cp.async.mbarrier.arrive{.noinc}{.space}.b64 [addr:u64]", name="cp_async_mbarrier_arrive",
    space=_CTA, effect=Effect.ASYNC, section=f"{COPY}: cp.async.mbarrier.arrive", **_SM80,
)  # fmt: skip
def cp_async_mbarrier_arrive(
    machine: Machine, addr: Lanes, *, space: str | None, noinc: bool
) -> tuple[()]:
    """Arrive once all copies that this thread started with cp.async are complete; without .noinc,
    the phase waits for that arrival in addition.
    """
    if not noinc:
        _updated(machine, space, addr, word.added, np.uint32(1))
    machine.copy_async_arrive(_in_shared(machine, space, addr))
    return ()


# ---------------------------------------- waiting


def _over(machine: Machine, space: str | None, addr: Lanes, parity: Lanes) -> Lanes:
    """Whether the phase of this parity is complete: whether the current one has the other."""
    machine.ask(_in_shared(machine, space, addr))
    now = _updated(machine, space, addr, lambda w, _: word.checked(w), np.uint32(0))
    return np.not_equal(_parity(now), parity)


def _await(machine: Machine, space: str | None, addr: Lanes, parity: Lanes) -> tuple[()]:
    _updated(machine, space, addr, lambda w, _: word.checked(w), np.uint32(0))
    lane = int(machine.active().argmax())
    what = f"the end of a phase of parity {int(np.atleast_1d(parity)[lane % np.size(parity)])}"
    machine.wait_until(
        _in_shared(machine, space, addr), b64, lambda now: np.not_equal(_parity(now), parity), what
    )
    return ()


def _passed(machine: Machine, **_: object) -> Lanes:
    """What a wait gives: it goes on when the phase is over."""
    return np.ones(machine.active().shape, np.bool_)


def _parity(state: Lanes) -> Lanes:
    parity: Lanes = np.right_shift(state, np.uint64(word.PHASE_BIT))
    return parity


def _parity_operand(c: Lanes) -> Lanes:
    parity: Lanes = np.bitwise_and(c, np.uint32(1)).astype(np.uint64)
    return parity


@inst(
    "mbarrier.test_wait{.space}.b64 p:pred, [addr:u64], a:b64", name="mbarrier_test_wait",
    space=_CTA, effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.test_wait", **_SM80,
)  # fmt: skip
def mbarrier_test_wait(machine: Machine, addr: Lanes, a: Lanes, *, space: str | None) -> Lanes:
    """p = whether the phase in which the state a was taken is complete."""
    return _over(machine, space, addr, _parity(a))


@inst(
    "mbarrier.test_wait.sem.scope{.space}.b64 p:pred, [addr:u64], a:b64",
    name="mbarrier_test_wait_ordered", sem=_ACQUIRE, scope=_SCOPES, space=_CTA,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.test_wait", **_SM80,
)  # fmt: skip
def mbarrier_test_wait_ordered(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None, sem: str, scope: str
) -> Lanes:
    """p = whether the phase in which the state a was taken is complete."""
    del sem, scope
    return _over(machine, space, addr, _parity(a))


@inst(
    "mbarrier.test_wait.parity{.space}.b64 p:pred, [addr:u64], a:u32",
    name="mbarrier_test_wait_parity", space=_CTA, ptx=(7, 1), sm=80,
    effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.test_wait",
)  # fmt: skip
def mbarrier_test_wait_parity(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None
) -> Lanes:
    """p = whether the phase of parity a is complete: the current one, or the one before."""
    return _over(machine, space, addr, _parity_operand(a))


@inst(
    "mbarrier.test_wait.parity.sem.scope{.space}.b64 p:pred, [addr:u64], a:u32",
    name="mbarrier_test_wait_parity_ordered", sem=_ACQUIRE, scope=_SCOPES, space=_CTA,
    ptx=(7, 1), sm=80, effect=Effect.ASYNC, section=f"{MBARRIER}: mbarrier.test_wait",
)  # fmt: skip
def mbarrier_test_wait_parity_ordered(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None, sem: str, scope: str
) -> Lanes:
    """p = whether the phase of parity a is complete: the current one, or the one before."""
    del sem, scope
    return _over(machine, space, addr, _parity_operand(a))


@inst(
    "mbarrier.try_wait{.space}.b64 p:pred, [addr:u64], a:b64{, hint:u32}",
    name="mbarrier_try_wait", space=_CTA, ptx=(7, 8), sm=90, resume=_passed,
    effect=Effect.BARRIER, section=f"{MBARRIER}: mbarrier.try_wait",
)  # fmt: skip
def mbarrier_try_wait(
    machine: Machine, addr: Lanes, a: Lanes, hint: Lanes | None = None, *, space: str | None
) -> tuple[()]:
    """Wait until the phase in which the state a was taken is complete, at most for about hint
    nanoseconds; p = whether it is.
    """
    del hint
    return _await(machine, space, addr, _parity(a))


@inst(
    "mbarrier.try_wait.sem.scope{.space}.b64 p:pred, [addr:u64], a:b64{, hint:u32}",
    name="mbarrier_try_wait_ordered", sem=_ACQUIRE, scope=_SCOPES, space=_CTA,
    ptx=(7, 8), sm=90, resume=_passed,
    effect=Effect.BARRIER, section=f"{MBARRIER}: mbarrier.try_wait",
)  # fmt: skip
def mbarrier_try_wait_ordered(
    machine: Machine, addr: Lanes, a: Lanes, hint: Lanes | None = None,
    *, space: str | None, sem: str, scope: str,
) -> tuple[()]:  # fmt: skip
    """Wait until the phase in which the state a was taken is complete, at most for about hint
    nanoseconds; p = whether it is.
    """
    del hint, sem, scope
    return _await(machine, space, addr, _parity(a))


@inst(
    "mbarrier.try_wait.parity{.space}.b64 p:pred, [addr:u64], a:u32{, hint:u32}",
    name="mbarrier_try_wait_parity", space=_CTA, ptx=(7, 8), sm=90, resume=_passed,
    effect=Effect.BARRIER, section=f"{MBARRIER}: mbarrier.try_wait",
)  # fmt: skip
def mbarrier_try_wait_parity(
    machine: Machine, addr: Lanes, a: Lanes, hint: Lanes | None = None, *, space: str | None
) -> tuple[()]:
    """Wait until the phase of parity a (the current one, or the one before) is complete, at most
    for about hint nanoseconds; p = whether it is.
    """
    del hint
    return _await(machine, space, addr, _parity_operand(a))


@inst(
    "mbarrier.try_wait.parity.sem.scope{.space}.b64 p:pred, [addr:u64], a:u32{, hint:u32}",
    name="mbarrier_try_wait_parity_ordered", sem=_ACQUIRE, scope=_SCOPES, space=_CTA,
    ptx=(7, 8), sm=90, resume=_passed,
    effect=Effect.BARRIER, section=f"{MBARRIER}: mbarrier.try_wait",
)  # fmt: skip
def mbarrier_try_wait_parity_ordered(
    machine: Machine, addr: Lanes, a: Lanes, hint: Lanes | None = None,
    *, space: str | None, sem: str, scope: str,
) -> tuple[()]:  # fmt: skip
    """Wait until the phase of parity a (the current one, or the one before) is complete, at most
    for about hint nanoseconds; p = whether it is.
    """
    del hint, sem, scope
    return _await(machine, space, addr, _parity_operand(a))


# ---------------------------------------- the memory of the object


def _updated(
    machine: Machine,
    space: str | None,
    addr: Lanes,
    change: Callable[[int, int], int],
    operand: Any,
) -> Lanes:
    """Replace each lane's object by `change` of it and the operand, lane after lane; the words
    before.
    """

    def update(words: Lanes, operands: Lanes) -> Lanes:
        given = np.broadcast_to(operands, words.shape)
        changed = np.empty_like(words)
        for i, (before, value) in enumerate(zip(words.tolist(), given.tolist(), strict=True)):
            try:
                changed[i] = change(before, value)
            except ValueError as error:
                machine.trap(str(error))
        return changed

    return machine.atomic(_space(space), addr, b64, update, (operand,))


def _space(space: str | None) -> str:
    """What the machine calls the space; all of `.shared`, also that of the cluster, is one."""
    return "shared" if space else "generic"


def _in_shared(machine: Machine, space: str | None, addr: Lanes) -> Lanes:
    """The address as shared memory has it."""
    if space:
        return addr
    return machine.convert_address("shared", np.asarray(addr), to_space=True)
