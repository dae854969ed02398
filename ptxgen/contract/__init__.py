"""The launch contract of a kernel: what a host program in any language must know to launch it, as plain
data for JSON.

`ptxgen.kernels` and packages of kernels write contracts, `launch.schema.json` says which keys they have,
and `ptxgen.contract.stub` makes of one a header in C or a module in Rust.
"""

from __future__ import annotations

import json
from typing import Any, Final

SCHEMA: Final = 2  # version of a contract, raised when a key changes its meaning
SCHEMA_FILE: Final = "launch.schema.json"
C, RUST = "c", "rust"
LANGUAGES: Final = (C, RUST)  # of stubs


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of contracts of version `SCHEMA`."""
    # Imported here, because a process that emits PTX does not need it.
    from importlib.resources import files

    rules: dict[str, Any] = json.loads(files("ptxgen.contract").joinpath(SCHEMA_FILE).read_text())
    return rules
