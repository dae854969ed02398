"""The classes of PTX instructions that mixes and timelines show, and how results of each are awaited.

The assembler awaits results of fixed latency by stall counts, and those of variable latency by scoreboards
(Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018, section 2.1).
Asynchronous instructions are awaited by other instructions of the text.
"""

from __future__ import annotations

import functools
import re
from typing import Final

TENSOR, FLOAT, SPECIAL, INTEGER, SHARED, GLOBAL, COPY, SYNC, CONTROL = range(9)
NAMES: Final = (
    "tensor cores",
    "floating point",
    "exp2 and other functions",
    "integers, moves, conversions",
    "shared memory, lanes",
    "global memory",
    "asynchronous copies",
    "synchronisation",
    "control",
)
_FIXED: Final = "fixed, awaited by stall counts"
_VARIABLE: Final = "variable, awaited by a scoreboard"
_ASYNCHRONOUS: Final = "asynchronous, awaited by a group or an mbarrier"
_OTHERS: Final = "until other threads or copies have arrived"
_LATENCIES: Final = (
    _FIXED, _FIXED, _VARIABLE, _FIXED, _VARIABLE, _VARIABLE, _ASYNCHRONOUS, _OTHERS, "none: it has no result",
)  # fmt: skip
_SYNC: Final = (
    "bar", "barrier", "mbarrier", "membar", "fence", "griddepcontrol", "elect", "setmaxnreg", "nanosleep",
    "clusterlaunchcontrol",
)  # fmt: skip
_SPECIAL: Final = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div")
_CONTROL: Final = ("bra", "brx", "ret", "exit", "call", "trap", "brkpt")
_SHARED: Final = ("ldmatrix", "stmatrix", "movmatrix", "shfl", "vote", "match", "redux", "activemask")
_MEMORY: Final = ("ld", "ldu", "st", "atom", "red", "prefetch", "prefetchu", "tex", "suld", "sust", "sured")
_FLOATS: Final = re.compile(r"\.(f16|f16x2|bf16|bf16x2|f32|f32x2|f64|tf32)\b")
_ARITHMETIC: Final = (
    "add",
    "sub",
    "mul",
    "fma",
    "mad",
    "min",
    "max",
    "abs",
    "neg",
    "copysign",
    "testp",
    "set",
)
_TENSOR: Final = re.compile(r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma|tcgen05\.shift)\.")
# Instructions of `tcgen05` that move cells to and from tensor memory asynchronously; its allocations,
# commits, waits and fences are synchronisation.
_TENSOR_MEMORY: Final = ("ld", "st", "cp")


@functools.cache
def class_of(opcode: str) -> int:
    """The class of an instruction, as an index into `NAMES`."""
    word = opcode.partition(".")[0]
    if _TENSOR.match(opcode):
        return TENSOR
    if word == "tcgen05":
        return COPY if opcode.split(".")[1] in _TENSOR_MEMORY else SYNC
    if word == "cp":
        waits = (".wait", ".commit", ".mbarrier")
        return SYNC if any(w in opcode for w in waits) and "complete_tx" not in opcode else COPY
    if word in _SYNC or word == "wgmma":
        return SYNC
    if word in _CONTROL:
        return CONTROL
    if word in (*_SHARED, "wmma"):
        return SHARED
    if word in _MEMORY:
        return _of_memory(opcode)
    if word in _SPECIAL and _FLOATS.search(opcode):
        return SPECIAL
    return FLOAT if word in _ARITHMETIC and _FLOATS.search(opcode) else INTEGER


def latency_of(opcode: str) -> str:
    """How the results of an instruction are awaited."""
    if opcode.startswith(("wgmma.mma_async", "tcgen05.mma", "tcgen05.shift")):
        return _ASYNCHRONOUS
    return _LATENCIES[class_of(opcode)]


def _of_memory(opcode: str) -> int:
    if ".shared" in opcode:
        return SHARED
    # Parameters and constants come from a cache that works like registers; local memory is global.
    return INTEGER if ".param" in opcode or ".const" in opcode else GLOBAL
