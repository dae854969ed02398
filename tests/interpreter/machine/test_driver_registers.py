"""What the driver tells a kernel in special registers: its reserved shared memory, and the
workspace of a cooperative launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from interpreter.both_paths import run_both_ways
from interpreter.programs import ptx

from ptxgen.interpreter import DeviceArena

NAMES = (
    *(f"%reserved_smem_offset_{name}" for name in ("begin", "0", "1", "end", "cap")),
    *("%total_smem_size", "%aggr_smem_size"),
)


def specials(*names: str, shared: str = "", **how: Any) -> list[int]:
    """What one thread of the last CTA reads in special registers and addresses."""
    lines = "".join(
        f"    mov.u32 %r0, {name};\n    st.global.u32 [%rd0+{4 * n}], %r0;\n" for n, name in enumerate(names)
    )
    text = ptx(f"{shared}\n    ld.param.u64 %rd0, [out];\n{lines}")
    out = np.zeros(len(names), np.uint32)
    run_both_ways(text, **{"grid": 1, "block": 32, "args": [out], "sanitize": False, **how})
    return out.tolist()


def test_a_kernel_that_asks_has_reserved_shared_memory_before_its_own() -> None:
    tile = ".shared .align 4 .b8 tile[256];"
    result = specials(*NAMES, "tile", shared=tile)
    assert result == [0, 0, 512, 1024, 1024, 256, 1280, 1024]
    assert specials("%total_smem_size", "%aggr_smem_size", "tile", shared=tile) == [256, 256, 0]


def test_a_grid_whose_ctas_run_at_once_has_a_workspace_of_zeros() -> None:
    arena = DeviceArena()
    high, low = specials("%envreg1", "%envreg2", arena=arena, grid=8)
    buffer = arena.find(high << 32 | low, (high << 32 | low) + 8)
    assert buffer is not None
    assert buffer.name == "the workspace of the grid"
    buffer.window.data[:] = 7
    again = specials("%envreg1", "%envreg2", arena=arena, grid=8)
    assert again == [high, low]
    assert not buffer.window.data.any()


def test_a_grid_of_several_batches_has_none() -> None:
    assert specials("%envreg1", "%envreg2", grid=300, block=1024) == [0, 0]
