"""The shared memory and threads that a kernel declares, against the limits of its target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from ptxgen.check.problems import Problem
from ptxgen.ir import Function, Kernel, Module, Region, Shared, Variable
from ptxgen.target import KIB, Target

_LARGEST_ALIGN: Final = 2**31  # the assembler reads alignments as 32 bits


def module_problems(module: Module) -> Iterator[Problem]:
    """The problems of the sizes of a module's variables."""
    for variable in module.variables:
        yield from _variable(variable, "")


def declaration_problems(kernel: Kernel | Function, limits: Target | None) -> Iterator[Problem]:
    """The problems of the variables of a kernel or a function, and of a kernel's threads; limits
    are not checked if `limits` is None.
    """
    yield from _regions(kernel)
    for variable in kernel.variables:
        yield from _variable(variable, kernel.name)
    if limits is not None and isinstance(kernel, Kernel):
        yield from _threads(kernel, limits)
        yield from _shared(kernel, limits)


def static_shared_bytes(kernel: Kernel) -> int:
    """The bytes of the static variables in the order declared, with the gaps that alignment needs."""
    end = 0
    for shared in kernel.shared:
        align = max(shared.align, 1)  # a wrong alignment has been reported
        end = -(-end // align) * align + shared.nbytes
    return end


def _variable(variable: Variable, kernel: str) -> Iterator[Problem]:
    align = variable.align
    if align <= 0 or align & (align - 1) or align > _LARGEST_ALIGN:
        message = f"{variable.name}: the alignment must be a power of two, got {align}"
        yield Problem("symbol", message, kernel)
    if variable.nbytes <= 0 and variable.linkage != "extern":
        message = f"{variable.name} must have 1 or more bytes, got {variable.nbytes}"
        yield Problem("symbol", message, kernel)
    end = max([len(variable.data), *(p.offset + p.nbytes for p in variable.pointers)])
    if end > variable.nbytes:
        message = f"{variable.name} has {variable.nbytes} bytes, but an initial value of {end}"
        yield Problem("symbol", message, kernel)


def _regions(kernel: Kernel | Function) -> Iterator[Problem]:
    name = kernel.name
    regions = kernel.regions if isinstance(kernel, Kernel) else ()
    if isinstance(kernel, Kernel) and regions and not kernel.dynamic_shared:
        message = "regions are declared, but no dynamic shared array to hold them; set dynamic_shared"
        yield Problem("shared", message, name)
    items: tuple[Shared | Region, ...] = (*kernel.shared, *regions)
    for item in items:
        if item.align <= 0 or item.align & (item.align - 1):
            message = f"{item.name}: the alignment must be a power of two, got {item.align}"
            yield Problem("shared", message, name)
        elif isinstance(item, Region) and item.offset % item.align:
            message = (
                f"region {item.name} begins at byte {item.offset}, which is no multiple of its "
                f"alignment {item.align}; begin at {-(-item.offset // item.align) * item.align}"
            )
            yield Problem("shared", message, name)
        yield from _extent(item, name)
    ordered = sorted(regions, key=lambda region: region.offset)
    for first, second in pairwise(ordered):
        end = first.offset + first.nbytes
        if second.offset < end:
            message = (
                f"region {second.name} begins at byte {second.offset}, inside region {first.name}, "
                f"which ends at byte {end}; move it or shrink {first.name}"
            )
            yield Problem("shared", message, name)


def _extent(item: Shared | Region, kernel: str) -> Iterator[Problem]:
    if item.align > _LARGEST_ALIGN:
        message = f"{item.name}: the alignment must be at most {_LARGEST_ALIGN}, got {item.align}"
        yield Problem("shared", message, kernel)
    # An empty region is allowed; an empty variable is not.
    least = 1 if isinstance(item, Shared) else 0
    if item.nbytes < least:
        message = f"{item.name} must have {least} or more bytes, got {item.nbytes}"
        yield Problem("shared", message, kernel)
    if isinstance(item, Region) and item.offset < 0:
        message = f"region {item.name} must begin at byte 0 or later, got {item.offset}"
        yield Problem("shared", message, kernel)


def _threads(kernel: Kernel, limits: Target) -> Iterator[Problem]:
    if not 0 <= kernel.threads <= limits.threads_per_block:
        message = (
            f".maxntid is {kernel.threads}, but a block has 1 to {limits.threads_per_block} "
            f"threads on {limits.name}; use fewer threads"
        )
        yield Problem("threads", message, kernel.name)
    required = math.prod(kernel.reqntid)
    if not 1 <= required <= limits.threads_per_block:
        message = (
            f".reqntid is {required} threads, but a block has 1 to {limits.threads_per_block} on "
            f"{limits.name}; use fewer"
        )
        yield Problem("threads", message, kernel.name)
    if not 0 <= kernel.min_ctas <= limits.blocks_per_sm:
        message = (
            f".minnctapersm is {kernel.min_ctas}, but an SM has 1 to {limits.blocks_per_sm} CTAs "
            f"on {limits.name}; ask for fewer"
        )
        yield Problem("threads", message, kernel.name)


def _shared(kernel: Kernel, limits: Target) -> Iterator[Problem]:
    static = static_shared_bytes(kernel)
    dynamic = kernel.dynamic_shared_bytes
    if static > limits.shared_per_block:
        message = (
            f"{static} bytes of static shared memory, but at most {limits.shared_per_block} "
            f"({limits.shared_per_block // KIB} KiB) can be static; make it dynamic"
        )
        yield Problem("shared", message, kernel.name)
    if static + dynamic > limits.shared_per_block_optin:
        message = (
            f"{static + dynamic} bytes of shared memory ({static} static, {dynamic} dynamic), but "
            f"a block has at most {limits.shared_per_block_optin} "
            f"({limits.shared_per_block_optin // KIB} KiB) on {limits.name}; use smaller tiles"
        )
        yield Problem("shared", message, kernel.name)
