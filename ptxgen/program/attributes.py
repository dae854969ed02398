"""The attributes of the device: `cudaDeviceAttr` of driver_types.h, and `CUdevice_attribute` of cuda.h."""

from __future__ import annotations

from typing import Final

from ptxgen.target import WARP_SIZE, Target

MULTIPROCESSORS: Final = 16
_CONST_BYTES: Final = 64 << 10  # CUDA C++ Programming Guide, table "Technical Specifications"
_INT_MAX: Final = (1 << 31) - 1
FIRST_WITH_CLUSTERS: Final = 90
_LAST: Final = 160  # of CUDA 13.5
# There is neither a clock nor a bus nor a cache. Programs divide by these to say how good a time is, or split
# their work by the size of the cache: a clock and a bus of 1 GHz, and the cache of an A100.
_CLOCK_KHZ, _BUS_BITS, _L2_BYTES = 1_000_000, 1024, 40 << 20


def device_attribute(number: int, has: Target) -> int | None:
    """The value of an attribute of a device of target `has`; None if there is no attribute of that number."""
    if not 0 < number <= _LAST:
        return None
    values = {
        1: has.threads_per_block,
        2: has.threads_per_block,  # extents of a block: x, y, z
        3: has.threads_per_block,
        4: 64,
        5: _INT_MAX,  # of a grid
        6: 65535,
        7: 65535,
        8: has.shared_per_block,
        9: _CONST_BYTES,
        10: WARP_SIZE,
        11: _INT_MAX,  # pitch
        12: has.registers_per_block,
        13: _CLOCK_KHZ,
        14: 512,  # alignment of textures; of surfaces and of a texture's pitch below
        16: MULTIPROCESSORS,
        19: 1,  # host memory may be mapped
        30: 512,
        36: _CLOCK_KHZ,  # of memory
        37: _BUS_BITS,
        38: _L2_BYTES,
        39: has.threads_per_sm,
        41: 1,  # unified addresses
        51: 32,
        75: has.sm // 10,
        76: has.sm % 10,
        79: 1,  # the first cache has global memory, and local memory
        80: 1,
        81: has.shared_per_sm,
        82: has.registers_per_sm,
        83: 1,  # managed memory
        87: 2,  # single precision is this many times faster than double
        89: 1,  # the host may use managed memory while a kernel runs
        95: 1,  # cooperative launches
        97: has.shared_per_block_optin,
        106: has.blocks_per_sm,
        111: has.shared_reserved_per_block,
        115: 1,  # memory pools
        120: int(has.sm >= FIRST_WITH_CLUSTERS),  # clusters
        127: int(has.sm >= FIRST_WITH_CLUSTERS),  # tensor maps
        131: -1,  # NUMA nodes of the device's memory, and of the host: none is known
        134: -1,
        160: _INT_MAX,  # no tensor map is large
    }
    # All others are about features without answers, such as textures, several devices and other processes.
    return values.get(number, 0)


__all__ = ["FIRST_WITH_CLUSTERS", "MULTIPROCESSORS", "device_attribute"]
