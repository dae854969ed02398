"""The PTX targets, the limits of the GPU architectures that they name, and occupancy.

Sources of the numbers in `TARGETS`:

* first PTX version: PTX ISA 9.1, section "PTX Module Directives: .target", "PTX ISA Notes";
* limits of a block and of a multiprocessor: CUDA C++ Programming Guide 13.0, section "Compute
  Capabilities", table "Technical Specifications per Compute Capability" (10.3 is as 10.0, 12.1 as 12.0);
  those of `EARLY_TARGETS`: the guide of 12.9;
* reserved shared memory: CUDA C++ Programming Guide 12.9, sections "Compute Capability 8.x" and
  "Compute Capability 9.0", "Shared Memory": the system reserves 1 KB of it for each block;
* f32 lanes: CUDA C++ Best Practices Guide 13.0, table "Throughput of Native Arithmetic
  Instructions", row "32-bit floating-point add, multiply, multiply-add";
* allocation units: `cuda_occupancy.h` of the CUDA Toolkit 13.5, the functions
  `cudaOccRegAllocationGranularity`, `cudaOccSMemAllocationGranularity` and
  `cudaOccSubPartitionsPerMultiprocessor`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, UnsupportedTargetError, did_you_mean, shown
from ptxgen.records import dataclass

KIB: Final = 1024
WARP_SIZE: Final = 32  # threads
# Limits of a launch on every GPU in `TARGETS`, by "Technical Specifications per Compute Capability".
MAX_GRID: Final = (2**31 - 1, 65535, 65535)  # blocks
MAX_BLOCK: Final = (1024, 1024, 64)  # threads
MAX_THREADS: Final = 1024  # threads of a block
TENSOR_COLUMNS: Final = 512  # columns of the tensor memory of a CTA
TENSOR_ALLOCATIONS: Final = (32, 64, 128, 256, 512)  # columns that `tcgen05.alloc` takes

# A multiprocessor has four schedulers, or as many as said here by target, each with an equal part of the
# registers and of the warps.
_SCHEDULERS_PER_SM: Final = 4
_FEWER_SCHEDULERS: Final[Mapping[int, int]] = {60: 2}
# The registers of a warp are allocated in multiples of this count.
_REGISTER_UNIT: Final = 256
# The shared memory of a block is allocated in multiples of these sizes, in bytes.
_SHARED_UNIT_TURING: Final = 256
_SHARED_UNIT: Final = 128
_FIRST_AMPERE: Final = 80
_MOST_CAPABILITY: Final = 99  # far above every major or minor compute capability
# The suffixes of the targets of an architecture, from the fewest features to the most.
_SUFFIXES: Final = ("", "f", "a")
# The number of sm_110 up to PTX ISA 8.8; its GPUs are not of the family of sm_100.
_SM_110_BEFORE_9_0: Final = 101


@dataclass(frozen=True, slots=True)
class Target:
    """One `.target` of a PTX module and the limits of the GPUs it names.

    Shared memory is in bytes, registers are 32 bits wide. `name` is the PTX spelling (`sm_90a`),
    `sm` the number in it (90). `suffix` is `"a"` for a target with architecture-specific features,
    which runs on exactly that architecture, `"f"` for one with the features of a family, which later
    GPUs of the family run too, and `""` for a target that all later GPUs run. `ptx` is the first PTX
    ISA version that knows the target. `shared_per_block` is the most shared memory
    that a block gets without opt-in, `shared_per_block_optin` the most with opt-in; the driver
    reserves `shared_reserved_per_block` more for each block, out of `shared_per_sm`.
    `fp32_lanes_per_sm` counts the f32 fused multiply-adds of a multiprocessor per clock.
    """

    name: str
    sm: int
    suffix: str
    ptx: tuple[int, int]
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_sm: int
    shared_reserved_per_block: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    threads_per_block: int
    threads_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    fp32_lanes_per_sm: int

    def __str__(self) -> str:
        return self.name

    def runs_on(self, major: int, minor: int) -> bool:
        """Whether a GPU of compute capability `major.minor` runs PTX of this target.

        PTX ISA, section ".target": an `a` target runs on its own architecture only, an `f` target
        on its own and on later ones of its family, any other on its own and on all later ones.
        """
        device = _sm_number(major, minor)
        if self.suffix == "a":
            return self.sm == device
        return self.sm <= device and (not self.suffix or _family(self.sm) == _family(device))

    def has_features_of(self, name: str) -> bool:
        """Whether the target has the features that PTX has for `name`, an `a` or an `f` target such as
        `sm_90a` or `sm_100f`; neither need be in `TARGETS`.

        PTX ISA, section ".target": architecture-specific features are those of one `a` target.
        Family-specific ones are those of the `f` target, of the later `f` targets of its family, and of
        the `a` targets of all these architectures.
        """
        return has_features(self.name, name)

    def blocks_per_sm_for(self, threads: int, registers_per_thread: int, shared_bytes: int) -> int:
        """The number of blocks of a kernel that fit on one multiprocessor at once; 0 if not even one does.

        `threads` counts the threads of a block, `shared_bytes` is its static plus dynamic shared
        memory without the part that the driver reserves. It is assumed that the launch has opted in
        to its shared memory, and that named barriers are no limit. The rules are those of
        `cudaOccMaxActiveBlocksPerMultiprocessor` in `cuda_occupancy.h`. Raises `ConfigError` if
        `threads` is below 1 or another argument is negative.
        """
        _check_kernel(threads, registers_per_thread, shared_bytes)
        if threads > self.threads_per_block:
            return 0
        warps = -(-threads // WARP_SIZE)
        return min(
            self.blocks_per_sm,
            self.warps_per_sm // warps,
            self._blocks_by_registers(warps, registers_per_thread),
            self._blocks_by_shared(shared_bytes),
        )

    def _blocks_by_registers(self, warps: int, registers_per_thread: int) -> int:
        if registers_per_thread > self.registers_per_thread:
            return 0
        if registers_per_thread == 0:
            return self.blocks_per_sm
        per_warp = _round_up(registers_per_thread * WARP_SIZE, _REGISTER_UNIT)
        # The registers of a warp come from the part of its scheduler. On all targets here one
        # block may use all registers of a multiprocessor, so no other limit applies to a block.
        schedulers = _FEWER_SCHEDULERS.get(self.sm, _SCHEDULERS_PER_SM)
        return self.registers_per_sm // schedulers // per_warp * schedulers // warps

    def _blocks_by_shared(self, shared_bytes: int) -> int:
        unit = _SHARED_UNIT if self.sm >= _FIRST_AMPERE else _SHARED_UNIT_TURING
        allocated = _round_up(shared_bytes + self.shared_reserved_per_block, unit)
        if allocated > self.shared_per_block_optin + self.shared_reserved_per_block:
            return 0
        return self.shared_per_sm // allocated if allocated else self.blocks_per_sm


def target(name: str | Target) -> Target:
    """The target called `name`, or `name` itself if it is a `Target`.

    Raises `UnsupportedTargetError`, which lists all targets and the nearest one, if there is none.
    """
    if isinstance(name, Target):
        return name
    try:
        return TARGETS.get(name) or EARLY_TARGETS[name]
    except (KeyError, TypeError):  # TypeError: `name` cannot be hashed
        text: object = name
        nearest = _nearest(text if isinstance(text, str) else shown(text))
        hint = f"; did you mean {nearest!r}?" if nearest else did_you_mean(name, TARGETS) or "."
        raise UnsupportedTargetError(f"unknown target {shown(name)}{hint} {_KNOWN}") from None


def _nearest(name: str) -> str | None:
    """The target nearest to the architecture whose number `name` has: the newest that a GPU of that number
    runs, else the oldest; with the suffix of `name` where a target of the number has it. None if `name` has
    no number of two digits or more.
    """
    match = re.fullmatch(r"(?:sm|compute)?[_-]?(\d{2,4})([a-z]?)", name.strip().lower().replace(".", ""))
    if match is None:
        return None
    sm, suffix = int(match[1]), match[2]
    oldest = min(TARGETS.values(), key=lambda t: t.sm)
    runnable = [t for t in TARGETS.values() if t.runs_on(*divmod(sm, 10))]
    return max(runnable, key=lambda t: (t.sm, t.suffix == suffix, not t.suffix), default=oldest).name


def target_for_device(major: int, minor: int) -> Target:
    """The target to compile for on a GPU of compute capability `major.minor`.

    It is the GPU's own target if `TARGETS` or `EARLY_TARGETS` has it, with the suffix `a` where there is one;
    else the newest target that the GPU runs, with the suffix `f` where the GPU is of that family. Raises
    `UnsupportedTargetError` for a GPU older than sm_52, and for a `major` or `minor` that is no integer
    from 0 to 99.
    """
    for name, value in (("major", major), ("minor", minor)):
        if integer(value, 0, _MOST_CAPABILITY) is None:
            raise UnsupportedTargetError(
                f"target_for_device: {name} must be an integer from 0 to {_MOST_CAPABILITY}, got "
                f"{shown(value)}"
            )
    device = _sm_number(major, minor)
    runnable = [
        t
        for t in (*EARLY_TARGETS.values(), *TARGETS.values())
        if t.runs_on(major, minor) and (t.sm not in _LARGER_THAN_ITS_SUCCESSORS or t.sm == device)
    ]
    if not runnable:
        raise UnsupportedTargetError(
            f"a GPU of compute capability {major}.{minor} is too old: "
            "5.2 (sm_52) or later is needed; use backend='cpu'"
        )
    return max(runnable, key=lambda t: (t.sm, _SUFFIXES.index(t.suffix)))


def _sm_number(major: int, minor: int) -> int:
    return 10 * major + minor


def _family(sm: int) -> int:
    """The major compute capability of a number such as 103; numbers of a family have one of their own."""
    return (110 if sm == _SM_110_BEFORE_9_0 else sm) // 10


def has_features(name: str, of: str) -> bool:
    """Whether the target `name` has the features that PTX has for `of`, an `a` or an `f` target, by the rule
    of `Target.has_features_of`.
    """
    if name == of:
        return True
    sm, first = target_number(name), target_number(of)
    return of.endswith("f") and name.endswith(("a", "f")) and sm >= first and _family(sm) == _family(first)


def target_number(name: str) -> int:
    """The number in a target's name, 90 for `sm_90a`; the target need not be in `TARGETS`.

    Raises `UnsupportedTargetError` if `name` has not the form of a target's name.
    """
    match = re.fullmatch(r"sm_(\d{2,4})[a-z]?", name)
    if match is None:
        raise UnsupportedTargetError(
            f"target must be sm_ and a number, got {name!r}; write one such as sm_90 or sm_90a"
        )
    return int(match[1])


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _check_kernel(threads: int, registers_per_thread: int, shared_bytes: int) -> None:
    for what, value, least in (
        ("threads", threads, 1),
        ("registers_per_thread", registers_per_thread, 0),
        ("shared_bytes", shared_bytes, 0),
    ):
        if value < least:
            raise ConfigError(f"occupancy: {what} must be at least {least}, got {value}")


def _row(
    name: str,
    ptx: tuple[int, int],
    *,
    shared_kib: int,
    threads: int,
    blocks: int,
    lanes: int,
    block_kib: int | None = None,
) -> Target:
    """One column of the guide's table; KiB, threads, blocks and lanes are per multiprocessor, `block_kib` is
    what a block may have, by default all but what is reserved.
    """
    sm = target_number(name)
    reserved = KIB if sm >= _FIRST_AMPERE else 0
    return Target(
        name=name,
        sm=sm,
        suffix=name[-1] if name.endswith(_SUFFIXES[1:]) else "",
        ptx=ptx,
        shared_per_block=48 * KIB,
        # The guide lists 96, 64, 163, 99 and 227 KiB: shared_kib without the reserved 1 KiB.
        shared_per_block_optin=(block_kib or shared_kib) * KIB - reserved,
        shared_per_sm=shared_kib * KIB,
        shared_reserved_per_block=reserved,
        registers_per_sm=64 * KIB,
        registers_per_block=64 * KIB,
        registers_per_thread=255,
        threads_per_block=1024,
        threads_per_sm=threads,
        warps_per_sm=threads // WARP_SIZE,
        blocks_per_sm=blocks,
        fp32_lanes_per_sm=lanes,
    )


# An sm_87 GPU has more shared memory than a GPU of compute capability 8.8 or 8.9, so a kernel made
# for the limits of sm_87 may not fit a later GPU.
_LARGER_THAN_ITS_SUCCESSORS: Final = frozenset({87})

_EARLY: Final = (
    _row("sm_52", (4, 1), shared_kib=96, block_kib=48, threads=2048, blocks=32, lanes=128),
    _row("sm_60", (5, 0), shared_kib=64, block_kib=48, threads=2048, blocks=32, lanes=64),
    _row("sm_61", (5, 0), shared_kib=96, block_kib=48, threads=2048, blocks=32, lanes=128),
    _row("sm_70", (6, 0), shared_kib=96, threads=2048, blocks=32, lanes=64),
)
_ROWS: Final = (
    _row("sm_75", (6, 3), shared_kib=64, threads=1024, blocks=16, lanes=64),
    _row("sm_80", (7, 0), shared_kib=164, threads=2048, blocks=32, lanes=64),
    _row("sm_86", (7, 1), shared_kib=100, threads=1536, blocks=16, lanes=128),
    _row("sm_87", (7, 4), shared_kib=164, threads=1536, blocks=16, lanes=128),
    _row("sm_89", (7, 8), shared_kib=100, threads=1536, blocks=24, lanes=128),
    _row("sm_90", (7, 8), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_90a", (8, 0), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_100", (8, 6), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_100a", (8, 6), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_100f", (8, 8), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_103", (8, 8), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_103a", (8, 8), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_103f", (8, 8), shared_kib=228, threads=2048, blocks=32, lanes=128),
    _row("sm_110", (9, 0), shared_kib=228, threads=1536, blocks=24, lanes=128),
    _row("sm_110a", (9, 0), shared_kib=228, threads=1536, blocks=24, lanes=128),
    _row("sm_110f", (9, 0), shared_kib=228, threads=1536, blocks=24, lanes=128),
    _row("sm_120", (8, 7), shared_kib=100, threads=1536, blocks=24, lanes=128),
    _row("sm_120a", (8, 7), shared_kib=100, threads=1536, blocks=24, lanes=128),
    _row("sm_120f", (8, 8), shared_kib=100, threads=1536, blocks=24, lanes=128),
    _row("sm_121", (8, 8), shared_kib=100, threads=1536, blocks=24, lanes=128),
    _row("sm_121a", (8, 8), shared_kib=100, threads=1536, blocks=24, lanes=128),
    _row("sm_121f", (8, 8), shared_kib=100, threads=1536, blocks=24, lanes=128),
)

# Targets that the assemblers of CUDA 12 are the last to know, and their drivers (R580).
EARLY_TARGETS: Final[Mapping[str, Target]] = MappingProxyType({t.name: t for t in _EARLY})
TARGETS: Final[Mapping[str, Target]] = MappingProxyType({t.name: t for t in _ROWS})
_KNOWN: Final = f"Known targets: {', '.join(TARGETS)}"
