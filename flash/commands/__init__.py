"""The commands of attention in the program `ptxgen`, which registers them by entry points."""

from __future__ import annotations

from typing import Final

import flash.operands as _operands  # noqa: F401  # which refuses where `flash` is another distribution's
from ptxgen.commands.registry import Command, ReportKernels

COMMANDS: Final = {
    "emit": Command(
        "flash.commands.emit",
        "an attention kernel as PTX, or the contract of its launch",
        "ptxgen emit --head-dim 128 --dtype bf16 --causal -o attention.ptx",
        before="check",
    ),
    "bench": Command(
        "flash.commands.bench", "measure emission, assembly, the backends and the GPU", before="completion"
    ),
    "tune": Command(
        "flash.commands.tune", "rank the tiles that an attention kernel can have", before="completion"
    ),
    "context-parallel": Command(
        "flash.commands.context_parallel",
        "run attention on the processes of torchrun, or estimate it",
        before="completion",
    ),
    "demo": Command(
        "flash.commands.demo", "generate, check, assemble and run attention kernels", before="completion"
    ),
}

REPORT: Final = ReportKernels(
    "flash.commands.report_attention",
    {
        "attention": "an attention kernel: the options of ptxgen emit, and --seq\n"
        "(ptxgen report attention --help)",
        "decode, append, merge": "a kernel of a KV cache, with the options of ptxgen emit; it is not run",
        "backward, widen, sum, round": "a kernel of gradients, likewise",
    },
    "ptxgen report attention --head-dim 64 --dtype f16 --causal --seq 256 -o report.html",
)
