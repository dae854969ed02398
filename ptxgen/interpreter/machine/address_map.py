"""The windows of the state spaces among generic addresses, and the first address in each space."""

from __future__ import annotations

from typing import Final

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
