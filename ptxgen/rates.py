"""How fast the units of a multiprocessor are, and the devices whose memory a roofline shows.

Sources:

* instructions of a clock: CUDA C++ Programming Guide 13.0, section "Multiprocessor Level": a
  multiprocessor has four warp schedulers, each of which issues one instruction;
* f32, special functions, integers: CUDA C++ Best Practices Guide 13.0, table "Throughput of Native
  Arithmetic Instructions" (`Target.fp32_lanes_per_sm` has the first);
* shared memory: CUDA C++ Programming Guide 13.0, section "Shared Memory": 32 banks of 32 bits a clock; but on
  sm_75 64 bytes a clock (NVIDIA's white paper on GA102, which compares it with 128 bytes of sm_86, and Jia et
  al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking", 2019: a bank takes two clocks);
* tensor cores and devices: NVIDIA's white papers on the TU102 (with the T4, 65 TFLOP/s; GeForce devices of
  sm_75 sum in f32 at half of that rate), A100, GA102, AD102, H100 and RTX Blackwell
  architectures, dense rates of f16 with f32 sums; multiply-adds of a clock are the published rate
  divided by the multiprocessors and the boost clock;
* the B200: multiprocessors, clock, the rate of bf16 (2.25 PFLOP/s, 8,192 operations of a clock and
  multiprocessor) and exponentials, FlashAttention-4 (arXiv 2603.05451), and memory, NVIDIA's data sheet of
  the DGX B200; the rates of its other types are by the ratio of published peaks;
* the B300: taken to be a B200 that computes twice as many exponentials (the same paper), and fp4 with K of 96
  in the clocks of K of 64, by the ratio of the published peaks of both;
* tensor memory: assumed, without a source, a register of each lane of a warp in a clock, for loads and stores
  of each of the four schedulers. Products of `tcgen05` with M of 64 are assumed to take as long as with M of
  128, which has all lanes;
* the A100 with 80 GB and the H200: NVIDIA's data sheets;
* bytes on their way to a multiprocessor: Little's law with `MEMORY_SECONDS`, the longest time that NVIDIA's
  CUB implies: it wants 12 KiB in flight for each multiprocessor of a V100, 16 of an A100, 48 of an H200 and
  64 of a B200 (CCCL, `cub/device/dispatch/tuning/tuning_transform.cuh`, `cc_to_min_bytes_in_flight`). These
  are 1.09, 1.14, 1.35 and 1.21 microseconds of its share of the bandwidth. An idle memory answers sooner, an
  H100's after 0.26 (479 clocks, Luo et al.);
* `mma.sync` on sm_90: 63 % of the rate of `wgmma`, as measured by Luo et al., "Benchmarking and
  Dissecting the Nvidia Hopper GPU Architecture" (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ptxgen.records import dataclass

ISSUED: Final = 4  # warp instructions of a clock
SPECIAL_LANES: Final = 16  # results of a clock: exp2, log2, reciprocals
EXP2_LANES: Final[Mapping[int, int]] = {103: 32}  # of exp2, by target, where it has more
TENSOR_MEMORY_BYTES: Final = 128  # of a scheduler in a clock
INTEGER_LANES: Final = 64
WAVEFRONTS: Final = 1  # of shared memory, of a clock
WAVEFRONT_CLOCKS: Final[Mapping[int, int]] = {75: 2}  # of one, by target, where it takes more clocks
SOURCES: Final = (
    "units of a multiprocessor: CUDA C++ Programming Guide and Best Practices Guide 13.0; integers, moves "
    f"and conversions are taken to have {INTEGER_LANES} lanes on every target",
    "tensor cores, clocks and memory of the device: NVIDIA's white paper of its architecture",
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device by which a target's memory is judged: multiprocessors, boost clock, bandwidth; `macs`
    are the f16 multiply-adds of a clock on the tensor cores of a multiprocessor.
    """

    name: str
    multiprocessors: int
    mhz: int
    gb_per_s: int
    macs: int

    @property
    def bytes_per_clock(self) -> float:
        """The share of one multiprocessor in the bandwidth, bytes of a clock."""
        return self.gb_per_s * 1e9 / (self.multiprocessors * self.mhz * 1e6)


DEVICES: Final[Mapping[int, Device]] = {
    75: Device("T4", 40, 1590, 320, 512),
    80: Device("A100 SXM4 40 GB", 108, 1410, 1555, 1024),
    86: Device("GeForce RTX 3090", 82, 1695, 936, 256),
    89: Device("GeForce RTX 4090", 128, 2520, 1008, 256),
    90: Device("H100 SXM5 80 GB", 132, 1830, 3352, 2048),
    120: Device("GeForce RTX 5090", 170, 2407, 1792, 256),
}

# Devices whose rate of tensor cores is that of products in tensor memory; `mma.sync` is slower there, and how
# much is not known.
OF_TENSOR_MEMORY: Final[Mapping[int, Device]] = {
    100: Device("B200", 148, 1850, 8000, 4096),
    103: Device("B300", 148, 1850, 8000, 4096),
}

H200: Final = Device("H200 SXM 141 GB", 132, 1980, 4800, 2048)
# The devices with the fastest memory, of targets for which `DEVICES` has another one.
FASTEST: Final[Mapping[int, Device]] = {80: Device("A100 SXM4 80 GB", 108, 1410, 2039, 1024), 90: H200}
MEMORY_SECONDS: Final = 1.35e-6  # from a request to its answer, of a memory that is busy

# Rates of element types as multiples of that of f16, by what an opcode has.
_OF_TYPES: Final[Mapping[str, float]] = {
    ".tf32": 0.5,
    ".f64": 1 / 16,
    ".e4m3": 2.0,
    ".e5m2": 2.0,
    ".s8": 2.0,
    ".u8": 2.0,
    "::tf32": 0.5,
    "f8f6f4": 2.0,
    "::i8": 2.0,
    "::mxf4": 4.0,
}
_SYNCHRONOUS_ON_HOPPER: Final = 0.63


def memory_of(sm: int) -> Device:
    """The device by whose memory a target is judged: the fastest one, of the next older target for those that
    have none here.
    """
    devices = {**OF_TENSOR_MEMORY, **DEVICES, **FASTEST}
    return devices[max(least for least in devices if least <= max(sm, min(devices)))]


def bytes_to_be_in_flight(sm: int) -> float:
    """The bytes that must be on their way to each multiprocessor of `memory_of` so that its memory never
    waits: bandwidth times latency (Little's law).
    """
    device = memory_of(sm)
    return device.gb_per_s * 1e9 / device.multiprocessors * MEMORY_SECONDS


def tensor_factor(opcode: str, sm: int) -> float:
    """The rate of a matrix instruction on a target, as a multiple of `Device.macs`."""
    factor = next((f for word, f in _OF_TYPES.items() if word in opcode), 1.0)
    slow = sm == 90 and not opcode.startswith("wgmma")
    return factor * (_SYNCHRONOUS_ON_HOPPER if slow else 1.0)
