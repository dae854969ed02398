"""Tiles of the kernels of gradients of f16 and bf16 with the matrix instructions of Hopper (`wgmma`).

A CTA owns 64 rows for each warpgroup that computes, of queries or of keys, and walks over the others in tiles
that one more warpgroup, the producer, has copied to shared memory by TMA. A warpgroup computes the scores of
its rows and of all rows of a tile, and sums the gradients of its rows in registers.

| what is asked | reason against these kernels |
|---|---|
| a target other than sm_90a | `wgmma` is of sm_90a alone |
| f32 | its products are not those of f16 and bf16 |
| rows that are no multiples of 16 bytes | those of a tensor map are |
| the gradient of a bias, or D in one sweep | their kernels are not with `wgmma` |
| one sweep of columns or features that `WGMMA_ADDING_TILES` lacks | its kernels are with `mma` |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from flash.families.precision import HALF, Operands
from flash.families.wgmma import LEAST_STAGES, WARPGROUP, WGMMA_ROWS, width_of
from flash.operands.dtypes import F32_BYTES
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE

CONSUMERS: Final = 2  # warpgroups that compute
_REGISTERS: Final = 504  # of a thread of the producer and of two of consumers, at most: an SM has 65536
_LEAST_REGISTERS: Final = 24  # of a thread of a producer that only copies
_STEP_BYTES: Final = 1024  # tiles begin at multiples of this many bytes
_OTHER_STEPS: Final = 3  # barriers, LSE and D of rows, and the way to the first multiple


class WgmmaTiles(NamedTuple):
    """Rows of a tile, if registers hold in addition to sums and scores no more than `load`: 0, at most
    causality, a window and packed sequences; 1, a feature that changes scores or may hide any key; 2, several
    of these, or one and a window; 3, dropout, maybe with a window; 4, dropout and any feature of 1.
    """

    tile: int
    load: int = 4
    producer_registers: int = _LEAST_REGISTERS


@dataclass(frozen=True, slots=True)
class WgmmaGradientTiling:
    """Tiles of a kernel of gradients with `wgmma`, in elements: a CTA owns `block` rows, and walks over tiles
    of `tile` rows, of which shared memory holds `stages`. `by_keys` is whether it owns keys. If it
    `splits_columns`, the warpgroups own the same keys, of which each computes all scores, and each sums half
    of the columns: the registers of one do not hold more. One that `adds_queries` also adds to sums of dQ in
    global memory, of which each warpgroup makes half of the columns; `in_order` is whether the CTAs of a head
    add to a sum from the last keys to the first, so that its bits do not depend on which CTA is when. One
    that is `narrow` has Q, K, V and dO of fp8, and of the factors of the products that sum gradients tiles of
    bf16, too; its gradients have tiles of their own.
    """

    head_dim: int
    head_dim_v: int
    tile: int
    by_keys: bool
    stages: int = LEAST_STAGES
    producer_registers: int = _LEAST_REGISTERS
    splits_columns: bool = False
    adds_queries: bool = False
    in_order: bool = False
    narrow: bool = False

    operands: ClassVar[Operands] = HALF
    warps: ClassVar[int] = (1 + CONSUMERS) * WARPGROUP // WARP_SIZE
    threads: ClassVar[int] = (1 + CONSUMERS) * WARPGROUP
    rows_of_warp: ClassVar[int] = WGMMA_ROWS * WARP_SIZE // WARPGROUP
    warps_meet: ClassVar[bool] = True
    slices: ClassVar[int] = 1

    @property
    def block(self) -> int:
        """The number of rows of a gradient that a CTA owns."""
        return WGMMA_ROWS * (1 if self.splits_columns else CONSUMERS)

    @property
    def registers_of_roles(self) -> tuple[int, int]:
        """The numbers of registers of a thread of the producer, and of a consumer."""
        return self.producer_registers, (_REGISTERS - self.producer_registers) // CONSUMERS

    @property
    def widths(self) -> tuple[int, int]:
        """The number of columns of tiles of Q and K, and of tiles of V and dO, padding included."""
        return width_of(self.head_dim), width_of(self.head_dim_v)

    def product_columns(self, owner: str) -> Iterator[int]:  # noqa: ARG002
        """For each matrix product of a tile: the columns that it sums over or computes, padding included."""
        of_scores, of_weights = self.widths
        copies = CONSUMERS if self.splits_columns else 1
        yield from (copies * of_scores, copies * of_weights, of_scores)
        if self.by_keys:
            yield of_weights
        if self.adds_queries:
            yield of_scores

    def summed_columns(self, width: int) -> int:
        """The number of columns, of the `width` that a gradient has, which a warpgroup sums."""
        return width // CONSUMERS if self.splits_columns else width

    @property
    def half_columns(self) -> int:
        """The number of columns of dQ that a warpgroup adds to the sums."""
        return self.widths[0] // CONSUMERS

    def least_columns(self, array: str) -> int:
        """The fewest neighbouring columns of a tile that a warpgroup reads or writes by themselves, or of
        that of K for dK, which leaves through it.
        """
        columns = self.tile_of(array)[1]
        if self.splits_columns or (self.adds_queries and array in ("K", "dK")):
            return columns // CONSUMERS
        return columns

    def tile_of(self, array: str) -> tuple[int, int]:
        """The rows and columns of the tile of a matrix in shared memory."""
        of_keys = array in ("K", "V", "dK", "dV", "K_wide")
        of_scores, of_weights = self.widths
        rows = self.block if of_keys == self.by_keys else self.tile
        return rows, of_weights if array in ("V", "dV", "dO", "O", "dO_wide") else of_scores

    @property
    def shared_bytes(self) -> int:
        """The most dynamic shared memory that a CTA needs, in bytes."""
        if self.narrow:
            return self._narrow_bytes
        elements = sum(self.widths) * (self.block + self.stages * self.tile)
        nbytes = elements * HALF.nbytes + _OTHER_STEPS * _STEP_BYTES
        if self.adds_queries:  # the ring of dS, and a tile of dQ
            nbytes += (
                LEAST_STAGES * self.block * self.tile * HALF.nbytes + self.tile * self.widths[0] * F32_BYTES
            )
        return nbytes

    @property
    def _narrow_bytes(self) -> int:
        """`shared_bytes` of a kernel of fp8: a byte of each element of Q, K, V and dO, and two of each of the
        factors and of the gradients.
        """
        of_scores, of_weights = self.widths
        written = of_factors = of_scores  # dQ, and K
        if self.by_keys:
            written = of_factors = of_scores + of_weights  # dK and dV, and Q and dO
        elements = self.block * written + self.stages * self.tile * of_factors
        narrow = (of_scores + of_weights) * (self.block + self.stages * self.tile)
        return narrow + elements * HALF.nbytes + _OTHER_STEPS * _STEP_BYTES


@dataclass(frozen=True, slots=True)
class WgmmaSumsTiling:
    """Tiles of the kernel that rounds sums of dQ, in elements: a CTA owns `block` rows, one block of sums, of
    which each of two warpgroups takes half of the columns.
    """

    head_dim: int
    head_dim_v: int
    block: int

    operands: ClassVar[Operands] = HALF
    tile: ClassVar[int] = 0
    stages: ClassVar[int] = 1
    warps: ClassVar[int] = CONSUMERS * WARPGROUP // WARP_SIZE
    threads: ClassVar[int] = CONSUMERS * WARPGROUP
    rows_of_warp: ClassVar[int] = WGMMA_ROWS * WARP_SIZE // WARPGROUP
    warps_meet: ClassVar[bool] = False
    slices: ClassVar[int] = 1
    adds_queries: ClassVar[bool] = False

    @property
    def half_columns(self) -> int:
        """The number of columns of dQ that a warpgroup rounds."""
        return width_of(self.head_dim) // CONSUMERS

    def product_columns(self, owner: str) -> Iterator[int]:  # noqa: ARG002
        """The columns of each matrix product: None, since the kernel has no products."""
        yield from ()

    def least_columns(self, array: str) -> int:
        """The fewest neighbouring columns of a tile that a warpgroup writes without others."""
        return self.tile_of(array)[1] // CONSUMERS

    def tile_of(self, array: str) -> tuple[int, int]:  # noqa: ARG002
        """The rows and columns of the tile of dQ in shared memory."""
        return self.block, width_of(self.head_dim)

    @property
    def shared_bytes(self) -> int:
        """The most dynamic shared memory that a CTA needs, in bytes."""
        return self.block * width_of(self.head_dim) * HALF.nbytes + _STEP_BYTES
