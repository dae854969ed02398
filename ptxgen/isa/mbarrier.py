"""`mbarrier` objects in shared memory (PTX ISA, "Parallel Synchronization: mbarrier").

An object counts arrivals of threads and bytes of asynchronous copies; when all have come, its phase
is complete and the next one begins. `ptxgen.isa.mbarrier_word` has the layout of its 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import mbarrier_word as word
from ptxgen.isa.async_copy import COPY
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.spec import Effect, Gate, gate
from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.isa.atomic_scans import OldAndFinal
    from ptxgen.isa.machine import Lanes, Machine

MBARRIER: Final = "Parallel Synchronization and Communication Instructions: mbarrier"

_CTA: Final[dict[str, Gate | None]] = {"shared": None, "shared::cta": gate(ptx=(7, 8), sm=80)}
_CLUSTER: Final[dict[str, Gate | None]] = {**_CTA, "shared::cluster": gate(ptx=(8, 0), sm=90)}
_SCOPES: Final = {"cta": None, "cluster": gate(ptx=(8, 0), sm=90)}
_RELEASE: Final = {"release": gate(ptx=(8, 0), sm=80), "relaxed": gate(ptx=(8, 6), sm=90)}
_ACQUIRE: Final = {"acquire": gate(ptx=(8, 0), sm=80), "relaxed": gate(ptx=(8, 6), sm=90)}
_SM80: Final[dict[str, Any]] = {"ptx": (7, 0), "sm": 80}
_SM90: Final[dict[str, Any]] = {"ptx": (8, 0), "sm": 90}


# ---------------------------------------- init and inval


@inst(
    "mbarrier.init{.space}.b64 [addr:u64], count:u32",
    name="mbarrier_init",
    space=_CTA,
    effect=Effect.ASYNC,
    section=f"{MBARRIER}: mbarrier.init",
    **_SM80,
)
def mbarrier_init(machine: Machine, addr: Lanes, count: Lanes, *, space: str | None) -> tuple[()]:
    """Initialise an mbarrier whose phases each wait for count arrivals."""
    active = machine.active()
    words = np.zeros(active.shape, np.uint64)
    counts = np.broadcast_to(count, active.shape)[active].tolist()
    try:
        words[active] = [word.initialised(n) for n in counts]
    except ValueError as error:
        machine.trap(str(error))
    machine.store(_space(space), addr, b64, (words,))
    return ()


@inst(
    "mbarrier.inval{.space}.b64 [addr:u64]",
    name="mbarrier_inval",
    space=_CTA,
    effect=Effect.ASYNC,
    section=f"{MBARRIER}: mbarrier.inval",
    **_SM80,
)
def mbarrier_inval(machine: Machine, addr: Lanes, *, space: str | None) -> tuple[()]:
    """Invalidate an mbarrier, so that its memory may be used for other data."""
    _updated(machine, space, addr, lambda w, _: word.checked(w) and word.INVALID, np.uint32(0))
    return ()


@inst(
    "mbarrier.pending_count.b64 d:u32, a:b64",
    name="mbarrier_pending_count",
    section=f"{MBARRIER}: mbarrier.pending_count",
    **_SM80,
)
def mbarrier_pending_count(a: Lanes) -> Lanes:
    """d = the number of arrivals that the phase waited for in the state a."""
    count: Lanes = np.bitwise_and(a, np.uint64(word.MOST_ARRIVALS)).astype(np.uint32)
    return count


# ---------------------------------------- arriving


# Forms without an order and with one. The order changes nothing here, because every access is
# visible at once.
_IGNORES: Final = ("sem", "scope", "hint")
_PLAIN: Final = each("ordered order", ("", ""))
_RELEASES: Final = _PLAIN + each("ordered order sem scope", ("_ordered", ".sem.scope", _RELEASE, _SCOPES))
_CTA_RELEASES: Final = _PLAIN + each(
    "ordered order sem scope ptx", ("_ordered", ".sem.scope", ("release",), ("cta",), (8, 0))
)
_ACQUIRES: Final = _PLAIN + each("ordered order sem scope", ("_ordered", ".sem.scope", _ACQUIRE, _SCOPES))
_RELAXES: Final = _PLAIN + each("ordered order sem scope", ("_ordered", ".sem.scope", ("relaxed",), _SCOPES))


@inst(
    "mbarrier.<head><modifier><order>{.space}.b64 d:b64, [addr:u64]<operand>",
    each(
        "head drop last closing",
        ("arrive", False, "", ""),
        ("arrive_drop", True, ", for the last time", " for the last time"),
    ),
    each(
        "form modifier operand space ptx sm orders arrived does",
        ("", "", "", _CLUSTER, (7, 0), 80, _RELEASES, word.arrived, "Arrive<last>"),
        (
            "_count",
            "",
            ", count:u32",
            _CLUSTER,
            (7, 8),
            90,
            _RELEASES,
            word.arrived,
            "Arrive count times<last>",
        ),
        (
            "_noComplete",
            ".noComplete",
            ", count:u32",
            _CTA,
            (7, 0),
            80,
            _CTA_RELEASES,
            word.arrived_incompletely,
            "Arrive count times<closing>, which does not complete the phase",
        ),
        (
            "_expect_tx",
            ".expect_tx",
            ", tx:u32",
            _CLUSTER,
            (8, 0),
            90,
            _RELEASES,
            word.arrived,
            "Have the phase wait for tx more bytes and arrive<last>",
        ),
    ),
    name="mbarrier_<head><form><ordered>",
    ignores=_IGNORES,
    effect=Effect.ASYNC,
    section=f"{MBARRIER}: mbarrier.<head>",
)
def mbarrier_arrive(
    machine: Machine,
    addr: Lanes,
    count: Lanes | None = None,
    tx: Lanes | None = None,
    *,
    space: str | None,
    drop: bool,
    arrived: Callable[[int, int], int],
) -> Lanes:
    """<does>; d = the state before, for a later wait."""

    def change(w: int, operand: int) -> int:
        arrivals = operand
        if tx is not None:
            w, arrivals = word.expecting(w, operand), 1
        return arrived(word.dropped(w, arrivals) if drop else w, arrivals)

    operand = tx if tx is not None else np.uint32(1) if count is None else count
    return _updated(machine, space, addr, change, operand)


# ---------------------------------------- bytes of asynchronous copies


@inst(
    "mbarrier.<head><order>{.space}.b64 [addr:u64], tx:u32",
    each(
        "head change does",
        ("expect_tx", word.expecting, "Have the phase wait for tx more bytes"),
        ("complete_tx", word.brought, "Count tx bytes as copied at an mbarrier, without copying any"),
    ),
    _RELAXES,
    name="mbarrier_<head><ordered>",
    space=_CLUSTER,
    ignores=_IGNORES,
    effect=Effect.ASYNC,
    section=f"{MBARRIER}: mbarrier.<head>",
    **_SM90,
)
def mbarrier_tx(
    machine: Machine, addr: Lanes, tx: Lanes, *, space: str | None, change: Callable[[int, int], int]
) -> tuple[()]:
    """<does>."""
    _updated(machine, space, addr, change, tx)
    return ()


@inst(
    "cp.async.mbarrier.arrive{.noinc}{.space}.b64 [addr:u64]",
    name="cp_async_mbarrier_arrive",
    space=_CTA,
    effect=Effect.ASYNC,
    section=f"{COPY}: cp.async.mbarrier.arrive",
    **_SM80,
)
def cp_async_mbarrier_arrive(machine: Machine, addr: Lanes, *, space: str | None, noinc: bool) -> tuple[()]:
    """Arrive once all copies that this thread started with cp.async are complete; without .noinc,
    the phase waits for that arrival in addition.
    """
    if not noinc:
        _updated(machine, space, addr, word.added, np.uint32(1))
    machine.copy_async_arrive(_in_shared(machine, space, addr))
    return ()


# ---------------------------------------- waiting


def _passed(machine: Machine, **_: object) -> Lanes:
    """The result of a wait: true, because threads go on only when the phase is complete."""
    return np.ones(machine.active().shape, np.bool_)


def _parity(state: Lanes) -> Lanes:
    parity: Lanes = np.right_shift(state, np.uint64(word.PHASE_BIT))
    return parity


def _parity_operand(c: Lanes) -> Lanes:
    parity: Lanes = np.bitwise_and(c, np.uint32(1)).astype(np.uint64)
    return parity


# Phases identified by the state in which they were left, or by their parity.
_BY_STATE: Final = each("by parity type parity_of", ("", "", "b64", _parity))
_BY_PARITY: Final = each("by parity type parity_of", ("_parity", ".parity", "u32", _parity_operand))
_OF_STATE: Final = "that the state a belongs to"


@inst(
    "mbarrier.test_wait<parity><order>{.space}.b64 p:pred, [addr:u64], a:<type>",
    times(_BY_STATE, each("ptx which", ((7, 0), f"{_OF_STATE} is complete")))
    + times(
        _BY_PARITY, each("ptx which", ((7, 1), "of parity a is complete: the current one, or the one before"))
    ),
    _ACQUIRES,
    name="mbarrier_test_wait<by><ordered>",
    space=_CTA,
    ignores=_IGNORES,
    sm=80,
    effect=Effect.ASYNC,
    section=f"{MBARRIER}: mbarrier.test_wait",
)
def mbarrier_test_wait(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None, parity_of: Callable[[Lanes], Lanes]
) -> Lanes:
    """p = whether the phase <which>."""
    # The phase is complete if the current phase has the other parity.
    machine.ask(_in_shared(machine, space, addr))
    now = _updated(machine, space, addr, _checked, np.uint32(0))
    return np.not_equal(_parity(now), parity_of(a))


@inst(
    "mbarrier.try_wait<parity><order>{.space}.b64 p:pred, [addr:u64], a:<type>{, hint:u32}",
    times(_BY_STATE, each("which", _OF_STATE))
    + times(_BY_PARITY, each("which", "of parity a (the current one, or the one before)")),
    _ACQUIRES,
    name="mbarrier_try_wait<by><ordered>",
    space=_CTA,
    ignores=_IGNORES,
    ptx=(7, 8),
    sm=90,
    resume=_passed,
    effect=Effect.BARRIER,
    section=f"{MBARRIER}: mbarrier.try_wait",
)
def mbarrier_try_wait(
    machine: Machine, addr: Lanes, a: Lanes, *, space: str | None, parity_of: Callable[[Lanes], Lanes]
) -> tuple[()]:
    """Wait until the phase <which> is complete, at most for about hint nanoseconds; p = whether it
    is complete.
    """
    parity = parity_of(a)
    _updated(machine, space, addr, _checked, np.uint32(0))
    lane = int(machine.active().argmax())
    what = f"the end of a phase of parity {int(np.atleast_1d(parity)[lane % np.size(parity)])}"
    machine.wait_until(
        _in_shared(machine, space, addr), b64, lambda now: np.not_equal(_parity(now), parity), what
    )
    return ()


# ---------------------------------------- the memory of the object


def _updated(
    machine: Machine, space: str | None, addr: Lanes, change: Callable[[int, int], int], operand: Any
) -> Lanes:
    """Replace each lane's mbarrier object by `change` of its word and the operand, one lane after another;
    return the old words.
    """

    def update(words: Lanes, operands: Lanes) -> Lanes:
        values = np.broadcast_to(operands, words.shape)
        changed = np.empty_like(words)
        for i, (before, value) in enumerate(zip(words.tolist(), values.tolist(), strict=True)):
            try:
                changed[i] = change(before, value)
            except ValueError as error:
                machine.trap(str(error))
        return changed

    return machine.atomic(_space(space), addr, b64, update, (operand,), scan=partial(_scanned, change))


def _checked(before: int, _: int) -> int:
    """The change of a wait: none, but the word has to be a valid object."""
    return word.checked(before)


def _scanned(
    change: Callable[[int, int], int], words: Lanes, starts: Lanes, operands: tuple[Lanes, ...]
) -> OldAndFinal | None:
    """The scan of `change` (`ptxgen/isa/atomic_scans.py`); None if it refuses a lane, so that the lanes
    execute one after another and the first of them traps.
    """
    values = operands[0].tolist()
    bounds = np.append(starts, len(values))
    if change is _checked:  # all lanes see the same word
        try:
            for each in words.tolist():
                word.checked(each)
        except ValueError:
            return None
        return np.repeat(words, np.diff(bounds)), words
    ends = bounds[1:].tolist()
    states: list[int] = []
    left: list[int] = []
    for first, begin, end in zip(words.tolist(), starts.tolist(), ends, strict=True):
        now = first
        for value in values[begin:end]:
            states.append(now)
            try:
                now = change(now, value)
            except ValueError:
                return None
        left.append(now)
    return np.array(states, np.uint64), np.array(left, np.uint64)


def _space(space: str | None) -> str:
    """The machine's name of a state space; shared memory of the CTA and of the cluster has one name."""
    return "shared" if space else "generic"


def _in_shared(machine: Machine, space: str | None, addr: Lanes) -> Lanes:
    """Addresses in the shared window, from addresses of `space` (None: generic ones)."""
    if space:
        return addr
    return machine.convert_address("shared", np.asarray(addr), to_space=True)
