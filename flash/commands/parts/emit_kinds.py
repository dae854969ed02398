"""The kernels other than the forward kernel that `ptxgen emit` emits, by their names."""

from __future__ import annotations

from typing import Final

from flash.commands.parts import emit_cache, emit_gradients
from flash.commands.parts.emit_kernel import Kind

KINDS: Final[dict[str, Kind]] = {**emit_cache.KINDS, **emit_gradients.KINDS}
