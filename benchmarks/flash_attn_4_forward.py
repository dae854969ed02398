"""The PTX of flash-attn-4's forward kernel for Hopper or Blackwell, without a GPU.

    python benchmarks/flash_attn_4_forward.py HEAD_DIM FOLDER [--dtype f16] [--causal] [--lse]
        [--target sm_100a] [--backward]

compiles it, or with --backward the kernels of the gradients, for bf16, or for f16, and leaves the PTX in
FOLDER; lengths and heads are arguments of the kernels. It needs the packages flash-attn-4 and torch.
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
MULTIPROCESSORS = {"sm_90a": 132, "sm_100a": 148, "sm_103a": 148}  # of an H100, a B200 and a B300


class Hardware:
    """The answers of a driver, which is not there, in place of `cutlass.utils.HardwareInfo`: the kernels for
    Blackwell ask how many multiprocessors a grid may fill.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, *device: object) -> Hardware:
        """The description of a device, which is the same for all."""
        del device
        return self

    def get_device_multiprocessor_count(self) -> int:
        """The number of multiprocessors."""
        return MULTIPROCESSORS[self._target]

    def get_max_active_clusters(self, ctas: int) -> int:
        """The number of clusters of so many CTAs that run at once."""
        return MULTIPROCESSORS[self._target] // ctas


def main(argv: Sequence[str]) -> int:
    """Compile the kernel of a head_dim."""
    parser = argparse.ArgumentParser(description="Compile flash-attn-4's forward kernel without a GPU.")
    parser.add_argument("head_dim", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--lse", action="store_true", help="the kernel also stores log-sum-exp")
    parser.add_argument("--backward", action="store_true", help="the kernels of the gradients instead")
    parser.add_argument("--target", choices=MULTIPROCESSORS, default="sm_90a")
    args = parser.parse_args(argv)
    os.environ |= {
        "FLASH_ATTENTION_ARCH": args.target.rstrip("a"),
        "FLASH_ATTENTION_NUM_SMS": str(MULTIPROCESSORS[args.target]),
        "CUTE_DSL_ARCH": args.target,
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_DUMP_DIR": str(args.folder),
    }
    # Imported here, because the packages read the environment when they are imported.
    import cutlass.utils
    import torch

    cutlass.utils.HardwareInfo = Hardware(args.target)
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = (1, SEQ, HEADS, args.head_dim)
        dtype = getattr(torch, DTYPES[args.dtype])
        q, k, v = (torch.empty(shape, dtype=dtype, device="cuda") for _ in range(3))
        if args.backward:
            lse = torch.empty((1, HEADS, SEQ), device="cuda")
            _flash_attn_bwd(q, k, v, torch.empty_like(q), torch.empty_like(q), lse, causal=args.causal)
        else:
            _flash_attn_fwd(q, k, v, causal=args.causal, return_lse=args.lse)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
