"""Launches that a running CTA cancels to do their work itself (PTX ISA, "clusterlaunchcontrol").

A request writes an opaque response of 16 bytes to shared memory, which says whether a cluster that had not
begun has been cancelled, and the index of its first CTA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.bulk import COUNTED, SYNCHRONIZATION
from ptxgen.isa.declare import each, inst
from ptxgen.isa.memory import canonical_space
from ptxgen.isa.spec import BLACKWELL, Effect
from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

RESPONSE_BYTES: Final = 16
_SM100: Final[dict[str, Any]] = {"ptx": (8, 6), "sm": 100}
_WORD: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


def response(first: tuple[int, int, int] | None, unknown: int) -> bytes:
    """The response for the index of the first CTA of a cancelled cluster; None if none was cancelled, where
    each extent is the number `unknown`. A user must take it as opaque.
    """
    words = (*(first or (unknown,) * 3), first is not None)
    return np.array(words, "<u4").tobytes()


@inst(
    f"clusterlaunchcontrol.try_cancel.async{{.space}}.{COUNTED}<cast>.b128 [addr:u64], [mbar:u64]",
    each(
        "kind cast where everywhere only",
        ("", "", "", False, ()),
        (
            "_multicast",
            ".multicast::cluster::all",
            ", at this offset in each CTA of the cluster,",
            True,
            BLACKWELL,
        ),
    ),
    name="clusterlaunchcontrol_try_cancel<kind>",
    space=("shared::cta",),
    effect=Effect.ASYNC,
    section=f"{SYNCHRONIZATION}: clusterlaunchcontrol.try_cancel",
    **_SM100,
)
def try_cancel(
    machine: Machine, addr: Lanes, mbar: Lanes, *, space: str | None, everywhere: bool
) -> tuple[()]:
    """Start cancelling a cluster of the grid that has not begun, and writing the response to the 16 bytes at
    addr<where>; the mbarrier at mbar in the same CTA counts them.
    """
    machine.cancel_launch(canonical_space(space), addr, mbar, everywhere=everywhere)
    return ()


def _words(a: Lanes) -> Lanes:
    """The two words of 64 bits of each response, `[2, lanes]`."""
    words: Lanes = np.ascontiguousarray(a).reshape(-1).view(b64.dtype).reshape(-1, 2).T
    return words


@inst(
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p:pred, a",
    name="clusterlaunchcontrol_is_canceled",
    section=f"{SYNCHRONIZATION}: clusterlaunchcontrol.query_cancel",
    **_SM100,
)
def is_canceled(a: Lanes) -> Lanes:
    """p = whether the response a says that a cluster has been cancelled."""
    cancelled: Lanes = _words(a)[1] >> _HALF & np.uint64(1) == 1
    return cancelled


def _index(a: Lanes) -> tuple[Lanes, ...]:
    low, high = _words(a)
    return tuple(word.astype(np.uint32) for word in (low & _WORD, low >> _HALF, high & _WORD))


@inst(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 d:b32*4, a",
    name="clusterlaunchcontrol_get_first_ctaid",
    section=f"{SYNCHRONIZATION}: clusterlaunchcontrol.query_cancel",
    **_SM100,
)
def get_first_ctaid(a: Lanes) -> tuple[Lanes, ...]:
    """d = the index (x, y, z) in the grid of the first CTA of the cluster that the response a says has been
    cancelled, and a number without a meaning.
    """
    x, y, z = _index(a)
    return x, y, z, np.zeros_like(x)


@inst(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::<along>.b32.b128 d:b32, a",
    each("along axis", ("x", 0), ("y", 1), ("z", 2)),
    name="clusterlaunchcontrol_get_first_ctaid_<along>",
    section=f"{SYNCHRONIZATION}: clusterlaunchcontrol.query_cancel",
    **_SM100,
)
def get_first_ctaid_along(a: Lanes, *, axis: int) -> Lanes:
    """d = the <along> of the index in the grid of the first CTA of the cluster that the response a says has
    been cancelled.
    """
    return _index(a)[axis]
