"""The PTX of flash-attn-4's forward kernel for Hopper, without a GPU.

    python benchmarks/flash_attn_4_forward.py HEAD_DIM FOLDER [--dtype f16] [--causal] [--lse]

compiles it for bf16, or for f16, and leaves the PTX in FOLDER; lengths and heads are arguments of the
kernel. It needs the packages flash-attn-4 and torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

SEQ = 4096
HEADS = 16
DTYPES = {"bf16": "bfloat16", "f16": "float16"}
MULTIPROCESSORS = 132  # of an H100


def main(argv: Sequence[str]) -> int:
    """Compile the kernel of a head_dim."""
    parser = argparse.ArgumentParser(description="Compile flash-attn-4's forward kernel without a GPU.")
    parser.add_argument("head_dim", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--lse", action="store_true", help="the kernel also stores log-sum-exp")
    args = parser.parse_args(argv)
    os.environ |= {
        "FLASH_ATTENTION_ARCH": "sm_90",
        "FLASH_ATTENTION_NUM_SMS": str(MULTIPROCESSORS),
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_DUMP_DIR": str(args.folder),
    }
    # Imported here, because the packages read the environment when they are imported.
    import torch
    from flash_attn.cute.interface import _flash_attn_fwd
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = (1, SEQ, HEADS, args.head_dim)
        dtype = getattr(torch, DTYPES[args.dtype])
        q, k, v = (torch.empty(shape, dtype=dtype, device="cuda") for _ in range(3))
        _flash_attn_fwd(q, k, v, causal=args.causal, return_lse=args.lse)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
