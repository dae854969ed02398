"""The 64 bits of an mbarrier object in the layout of this project.

PTX does not define the contents of the object and of the state that `mbarrier.arrive` returns (PTX
ISA, "mbarrier contents": an expected and a pending arrival count from 0 to 2**20 - 1, a tx-count
from -(2**20 - 1) to 2**20 - 1, a phase). Here the state is the whole word before the arrival.

| bits | holds |
|---|---|
| 0-19 | arrivals that the current phase still waits for |
| 20-39 | arrivals that the next phase will wait for |
| 40-60 | bytes that the current phase still waits for, plus 2**20 |
| 61-62 | 1 in a valid object, so that neither zeros nor `POISON` are valid |
| 63 | parity of the current phase |

The functions take a word and return its replacement. They raise `ValueError` with a message about
the mistake of the thread.
"""

from __future__ import annotations

from typing import Final

MOST_ARRIVALS: Final = (1 << 20) - 1
MOST_BYTES: Final = (1 << 20) - 1
PHASE_BIT: Final = 63
INVALID: Final = 0x7FC0DEAD_7FC0DEAD  # the poison of shared memory, which `mbarrier.inval` leaves

_NEXT: Final = 20
_BYTES: Final = 40
_BYTES_BIAS: Final = 1 << 20
_BYTES_MASK: Final = (1 << 21) - 1
_VALID: Final = 61
_VALID_MASK: Final = 3


def initialised(arrivals: int) -> int:
    """A new object: phase 0, waiting for `arrivals` arrivals and no bytes."""
    if not 1 <= arrivals <= MOST_ARRIVALS:
        raise ValueError(f"the count of an mbarrier must be from 1 to {MOST_ARRIVALS}, got {arrivals}")
    return _word(0, arrivals, arrivals, 0)


def pending(word: int) -> int:
    """The number of arrivals for which the phase was waiting in a state."""
    return word & MOST_ARRIVALS


def awaited(word: int) -> tuple[int, int]:
    """The numbers of arrivals and of bytes for which the current phase still waits."""
    _, left, _, nbytes = _fields(word)
    return left, nbytes


def checked(word: int) -> int:
    """The word itself, if it is a valid object."""
    _fields(word)
    return word


def arrived(word: int, count: int) -> int:
    """The word after `count` threads have arrived."""
    phase, left, following, nbytes = _fields(word)
    _check_count(count)
    if count > left:
        raise ValueError(
            f"{_arrivals(count)} at an mbarrier whose phase waits for {left or 'none'}"
            f" more; its count is {following}"
        )
    return _completed(phase, left - count, following, nbytes)


def arrived_incompletely(word: int, count: int) -> int:
    """The word after `count` arrivals of threads that promise not to complete the phase."""
    phase, left, following, nbytes = _fields(word)
    _check_count(count)
    if count >= left:
        raise ValueError(
            f"{_arrivals(count)} without completing the phase (.noComplete) at an mbarrier whose "
            f"phase waits for {left} more"
        )
    return _word(phase, left - count, following, nbytes)


def dropped(word: int, count: int) -> int:
    """The word with `count` expected arrivals less from the next phase on."""
    phase, left, following, nbytes = _fields(word)
    _check_count(count)
    if count > following:
        raise ValueError(f"{_arrivals(count)} dropped from an mbarrier whose count is {following}")
    return _word(phase, left, following - count, nbytes)


def added(word: int, count: int) -> int:
    """The word with `count` more arrivals to wait for, in the current phase only."""
    phase, left, following, nbytes = _fields(word)
    if left + count > MOST_ARRIVALS:
        raise ValueError(f"an mbarrier waits for at most {MOST_ARRIVALS} arrivals")
    return _word(phase, left + count, following, nbytes)


def expecting(word: int, nbytes: int) -> int:
    """The word with `nbytes` more bytes to wait for in the current phase."""
    phase, left, following, before = _fields(word)
    return _word(phase, left, following, _in_range(before + nbytes))


def brought(word: int, nbytes: int) -> int:
    """The word after `nbytes` bytes have been copied."""
    phase, left, following, before = _fields(word)
    return _completed(phase, left, following, _in_range(before - nbytes))


def _completed(phase: int, left: int, following: int, nbytes: int) -> int:
    if left == 0 and nbytes == 0:
        return _word(1 - phase, following, following, 0)
    return _word(phase, left, following, nbytes)


def _word(phase: int, left: int, following: int, nbytes: int) -> int:
    return phase << PHASE_BIT | 1 << _VALID | nbytes + _BYTES_BIAS << _BYTES | following << _NEXT | left


def _fields(word: int) -> tuple[int, int, int, int]:
    """The phase's parity, the arrivals that it waits for, the arrivals of the next phase, and the
    bytes that it waits for.
    """
    if word >> _VALID & _VALID_MASK != 1:
        raise ValueError("there is no mbarrier: mbarrier.init must come first")
    return (
        word >> PHASE_BIT,
        word & MOST_ARRIVALS,
        word >> _NEXT & MOST_ARRIVALS,
        (word >> _BYTES & _BYTES_MASK) - _BYTES_BIAS,
    )


def _check_count(count: int) -> None:
    if not 1 <= count <= MOST_ARRIVALS:
        raise ValueError(f"a count of arrivals must be from 1 to {MOST_ARRIVALS}, got {count}")


def _in_range(nbytes: int) -> int:
    if abs(nbytes) > MOST_BYTES:
        raise ValueError(
            f"the tx-count of an mbarrier must stay from -{MOST_BYTES} to {MOST_BYTES}, got {nbytes}"
        )
    return nbytes


def _arrivals(count: int) -> str:
    return f"{count} arrival{'s' * (count > 1)}"
