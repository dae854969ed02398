"""Where the state spaces lie among generic addresses, and where what they hold begins."""

from __future__ import annotations

from typing import Final

# Where each space lies among generic addresses: below the first address of device memory, above
# 32 bits.
SHARED_WINDOW: Final = 1 << 32
WINDOW_BYTES: Final = 1 << 30
WINDOW_USED: Final = WINDOW_BYTES - (1 << 20)  # so that nothing else lies just before a buffer
WINDOWS: Final = {
    space: SHARED_WINDOW + n * WINDOW_BYTES for n, space in enumerate(("shared", "local", "param", "const"))
}
# The first address of each inside the space, below 2**32: compilers keep them in 32 bits.
PARAM_START: Final = 1 << 12
CONST_START: Final = 1 << 12
LOCAL_START: Final = 1 << 20  # above all parameters: what calls give and get is kept there
# The most of a thread: CUDA C++ Programming Guide, "Compute Capabilities".
LOCAL_BYTES: Final = 1 << 19
