"""The PTX of flash-attn-4's forward kernel for Hopper, without a GPU.

    python benchmarks/flash_attn_4_forward.py HEAD_DIM FOLDER

compiles it for bf16, full attention and 16 heads, and leaves the PTX in FOLDER. It needs the packages
flash-attn-4 and torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

SEQ = 4096
HEADS = 16
MULTIPROCESSORS = 132  # of an H100


def main(argv: Sequence[str]) -> int:
    """Compile the kernel of a head_dim."""
    head_dim, folder = int(argv[0]), Path(argv[1])
    os.environ |= {
        "FLASH_ATTENTION_ARCH": "sm_90",
        "FLASH_ATTENTION_NUM_SMS": str(MULTIPROCESSORS),
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_DUMP_DIR": str(folder),
    }
    # Imported here, because the packages read the environment when they are imported.
    import torch
    from flash_attn.cute.interface import _flash_attn_fwd
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = (1, SEQ, HEADS, head_dim)
        q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        _flash_attn_fwd(q, k, v)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
