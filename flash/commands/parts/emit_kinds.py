"""The kernels other than the forward kernel that `ptxgen emit` emits, by their names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flash.commands.parts.emit_kernel import Kind

_CACHE: Final = "flash.commands.parts.emit_cache"
_GRADIENTS: Final = "flash.commands.parts.emit_gradients"
_MODULES: Final = {
    "decode": _CACHE,
    "append": _CACHE,
    "merge": _CACHE,
    "backward": _GRADIENTS,
    "widen": _GRADIENTS,
    "sum": _GRADIENTS,
    "round": _GRADIENTS,
}
KINDS: Final = tuple(_MODULES)


def kind_of(name: str) -> Kind:
    """The kernel of this name, one of `KINDS`. Its module is imported here, because a kernel of caches needs
    nothing that emits gradients, and the reverse.
    """
    kind: Kind = importlib.import_module(_MODULES[name]).KINDS[name]
    return kind
