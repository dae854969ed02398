"""FlashAttention-2's forward kernels by the issue model of `ptxgen bench --only forward`, without a GPU.

    python benchmarks/flash_attn_2_forward.py FLASH_ATTENTION CUTLASS FOLDER [--nvcc NVCC] [--output FILE]

compiles the kernels for f16 that FlashAttention-2 launches without dropout, by
`csrc/flash_attn/src/flash_fwd_launch_template.h` and with its flags, and reads their main loops like ours,
through the same assembler. FLASH_ATTENTION and CUTLASS are checkouts. PTX is left in FOLDER, and kernels
whose PTX is there are not compiled again: each kernel takes nvcc half a minute. The bench reads
benchmarks/results/flash-attn-2.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure.static_forward import Reading, figures
from flash.commands.measure.static_quality import Subject
from ptxgen.runtime.assembler import find_assembler
from ptxgen.target import target as find_target

F16_BYTES = 2
# The first version with sm_120. nvcc writes the newest, which the assembler of another toolkit may not know.
PTX_VERSION = "8.7"
FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math")
# Dropout is left out, and with it what needs headers of PyTorch.
PHILOX = """
#pragma once
#include <cstdint>
#include <tuple>
namespace at {
struct PhiloxCudaState {};
namespace cuda::philox {
__host__ __device__ inline std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState) { return {0, 0}; }
}
}
"""
SOURCE = """
#include "philox_unpack.cuh"
#include "namespace_config.h"
#include "flash.h"
#include "flash_fwd_kernel.h"
using namespace FLASH_NAMESPACE;
template <typename Traits, bool Is_causal, bool Is_even>
__global__ void attention(const __grid_constant__ Flash_fwd_params params) {{
  compute_attn<Traits, false, Is_causal, false, false, Is_even, true, false, false>(params);
}}
template __global__ void attention<
  Flash_fwd_kernel_traits<{head_dim}, {block_q}, {tile}, {warps}, false, false, cutlass::half_t>,
  {causal}, {even}
>(const __grid_constant__ Flash_fwd_params);
"""


class Kernel(NamedTuple):
    """A kernel that FlashAttention-2 launches on a target; up to head_dim 128 the kernel for sequences that
    end at the end of a tile.
    """

    target: str
    head_dim: int
    causal: bool
    block_q: int
    tile: int
    warps: int

    @property
    def name(self) -> str:
        """The kernel's name in file names."""
        mask = "causal" if self.causal else "full"
        return f"d{self.head_dim}_{mask}_{self.block_q}x{self.tile}.{self.target}"

    @property
    def source(self) -> str:
        """The text of a CUDA program that instantiates this kernel."""
        even = self.head_dim <= 128
        return SOURCE.format(**self._asdict() | {"causal": _word(self.causal), "even": _word(even)})

    def subject(self, text: str) -> Subject:
        """The kernel's PTX and launch facts, as the issue model takes them."""
        entry = re.search(r"\.entry (\w+)", text)
        assert entry is not None, f"no kernel in the PTX of {self.name}"
        shared = F16_BYTES * self.head_dim * (self.block_q + 2 * self.tile)
        return Subject(text, entry[1], 32 * self.warps, shared, 2 * self.head_dim)


def _word(known: bool) -> str:
    return str(known).lower()


# With head_dim 256 it has eight warps where shared memory holds such a CTA, but not two of four warps.
TILES = {
    **{(target, 64): (128, 128, 4) for target in ("sm_80", "sm_90", "sm_120")},
    **{(target, 128): (128, 64, 4) for target in ("sm_80", "sm_90", "sm_120")},
    ("sm_80", 256): (128, 64, 8),
    ("sm_90", 256): (64, 64, 4),
    ("sm_120", 256): (64, 64, 4),
}
KERNELS = [
    Kernel(target, head_dim, causal, *tiles)
    for (target, head_dim), tiles in TILES.items()
    for causal in (False, True)
]


def compiled(kernel: Kernel, nvcc: str, sources: Path, cutlass: Path, folder: Path) -> str:
    """The PTX of a kernel, from the folder if that has it, else compiled by nvcc."""
    output = folder / f"{kernel.name}.ptx"
    if not output.exists():
        if shutil.which(nvcc) is None:
            raise SystemExit(
                f"there is no {nvcc}; it is part of a CUDA toolkit, or of nvidia-cuda-nvcc (pip)"
            )
        with tempfile.TemporaryDirectory() as temporary:
            copied = Path(temporary) / "src"
            shutil.copytree(sources, copied)
            (copied / "philox_unpack.cuh").write_text(PHILOX, encoding="utf-8")
            program = Path(temporary) / "kernel.cu"
            program.write_text(kernel.source, encoding="utf-8")
            paths = [f"-I{copied}", f"-I{cutlass / 'include'}"]
            command = [nvcc, "-ptx", f"-arch={kernel.target}", *FLAGS, "-DFLASH_NAMESPACE=flash", *paths]
            subprocess.run([*command, str(program), "-o", str(output)], check=True)
    return re.sub(r"(?m)^\.version .*$", f".version {PTX_VERSION}", output.read_text(encoding="utf-8"))


def main(argv: Sequence[str]) -> int:
    """Compile what is missing, read all kernels, and print or keep their figures."""
    parser = argparse.ArgumentParser(
        description="Read FlashAttention-2's forward kernels by the issue model."
    )
    parser.add_argument("flash_attention", type=Path, help="a checkout of FlashAttention")
    parser.add_argument("cutlass", type=Path, help="a checkout of CUTLASS")
    parser.add_argument("folder", type=Path, help="where PTX is left")
    parser.add_argument("--nvcc", default="nvcc", help="default: the one on PATH")
    parser.add_argument("--output", type=Path, help="write the figures as JSON instead of printing them")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    sources = args.flash_attention / "csrc" / "flash_attn" / "src"
    rows = []
    for n, kernel in enumerate(KERNELS, 1):
        sys.stderr.write(f"[{n}/{len(KERNELS)}] {kernel.name}\n")
        text = compiled(kernel, args.nvcc, sources, args.cutlass, args.folder)
        reading = Reading.of(kernel.subject(text), find_target(kernel.target))
        key = kernel.target, kernel.head_dim, "f16", kernel.causal
        tile = f"{kernel.tile}x{kernel.block_q}x{32 * kernel.warps}"
        rows.append({"place": key, "tile": tile, "figures": figures(key, reading)})
    assembler = find_assembler()
    result = {"assembler": f"{assembler.name} {assembler.version}", "kernels": rows}
    text = json.dumps(result, indent=1) + "\n"
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
