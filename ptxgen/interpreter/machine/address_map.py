"""The windows of the state spaces among generic addresses, the first address in each space, and the rank of
a CTA of a cluster in its addresses of shared memory.

As on a device, an address in the shared memory of a CTA of a cluster holds the rank of this CTA from bit 24
on, also for the CTA's own threads. So a mask that clears bit 24 leads to the even CTA of a pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np

    Lanes = np.ndarray[Any, np.dtype[Any]]

Addresses = TypeVar("Addresses", int, "Lanes")

# The windows lie below the first address of device memory and above 32 bits.
SHARED_WINDOW: Final = 1 << 32
WINDOW_BYTES: Final = 1 << 30
WINDOW_USED: Final = WINDOW_BYTES - (1 << 20)  # leaves a gap before the next window or buffer
WINDOWS: Final = {
    space: SHARED_WINDOW + n * WINDOW_BYTES for n, space in enumerate(("shared", "local", "param", "const"))
}
# The first address in each space, below 2**32, since compilers keep these addresses in 32 bits.
PARAM_START: Final = 1 << 12
CONST_START: Final = 1 << 12
LOCAL_START: Final = 1 << 20  # above all parameters: calls keep their arguments and results from here on
# The largest local memory of a thread: CUDA C++ Programming Guide, "Compute Capabilities".
LOCAL_BYTES: Final = 1 << 19
RANK_SHIFT: Final = 24  # bits of an address in shared memory below the rank of its CTA
RANK_REACH: Final = 1 << (RANK_SHIFT - 1)  # bytes; addresses so near to byte 0 of a CTA have its rank


def split_rank(addresses: Addresses) -> tuple[Addresses, Addresses]:
    """The ranks of the CTAs that int64 addresses in shared memory lie in, and their offsets there. An offset
    may be negative, as that of a base which a constant is added to.
    """
    ranks = (addresses + RANK_REACH) >> RANK_SHIFT
    return ranks, addresses - (ranks << RANK_SHIFT)
