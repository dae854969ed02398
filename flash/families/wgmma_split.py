"""How the work of a kernel for Hopper is dealt to warpgroups where elements are f32, each of which becomes
a pair of f16 (`flash/device/split_boxes.py`).

A pair has the bytes of its f32, so that tiles take twice the memory of those of 16 bits, and P twice the
registers. The product of a tile has sums of its own, from which O is added up. The warpgroup that has the
tiles copied also splits them.
"""

from __future__ import annotations

from typing import ClassVar, Final

from flash.families.family import Campaign
from flash.families.precision import PAIRS
from flash.families.request import MAX_COLUMNS, TileRequest
from flash.families.wgmma import H100_OPERATIONS, PanelFamily, WgmmaTiling
from flash.operands.dtypes import F32
from ptxgen.records import dataclass

# Columns of Q and K, and of V, that a kernel computes with: 64, which take two slabs of 128 bytes as f32 and
# one as f16, or twice as many.
SPLIT_WIDTHS: Final = (64, 128)
SPLIT_BLOCKS_Q: Final = (64, 128)  # three consumers have no registers for O, its sums and both parts of P
# Registers of a thread of the producer and of a consumer, by consumers; 0: what the assembler takes. A thread
# of the producer that splits a row of 128 columns holds 16 elements of f32, and the parts of some of them.
_REGISTERS: Final = {1: (0, 0), 2: (72, 216)}
# Keys whose products one sum takes, at most: tensor cores truncate their sums, and with 128 keys the error on
# positive numbers was 2.7 times that of PyTorch's f32 (docs/numerics.md).
_LONGEST_CHAIN: Final = 96
_STEP: Final = 16  # keys of a product of f16
_WORD: Final = 4  # bytes of an element, and of a factor
_TIMES_MOVED: Final = 3  # an element of K or V: by its copy, and read and written where it is split


@dataclass(frozen=True, slots=True)
class PairTiling(WgmmaTiling):
    """The sizes of tiles whose elements are f32 and become pairs of f16; see `WgmmaTiling`."""

    precision: ClassVar[str | None] = PAIRS.name
    _row_factors: ClassVar = 1  # of a row of Q

    @property
    def ping_pong(self) -> bool:
        """False: a consumer waits for each product, and the other one multiplies meanwhile."""
        return False

    @property
    def score_columns(self) -> int:
        """The number of columns of head_dim that Q Kᵀ sums over, padding included."""
        return split_width_of(self.head_dim)

    @property
    def output_columns(self) -> int:
        """The number of columns of head_dim_v that a CTA computes, padding included."""
        return split_width_of(self.head_dim_v)

    @property
    def moved_bytes(self) -> int:
        """The bytes of a tile of K and of V that pass through shared memory before a product reads them."""
        return _TIMES_MOVED * self.tile * (self.score_columns + self.output_columns) * _WORD

    @property
    def _element_bytes(self) -> int:
        return _WORD

    @property
    def _other_bytes(self) -> int:
        """The bytes of shared memory for the scale factors of rows of Q, K and V."""
        return _WORD * (self._row_factors * self.block_q + 2 * self.stages * self.tile)


@dataclass(frozen=True, slots=True)
class SplitWgmmaTiling(PairTiling):
    """The tile sizes and warpgroups of one kernel; see `WgmmaTiling`."""

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:  # noqa: ARG002
        """The number of registers of a thread that copies and splits, which are enough for the bounds of a
        window, too, and of one that computes.
        """
        return _REGISTERS[self.consumers]

    @property
    def _held_registers(self) -> int:
        """Registers of a consumer's thread with O, both parts of P, and S or the sums of a tile."""
        return (self.tile + self.output_columns + max(self.tile, len(self.chains) * self.output_columns)) // 2

    @property
    def chains(self) -> tuple[int, ...]:
        """The keys of a tile that each sum of P V takes, one after another: multiples of 16."""
        steps = self.tile // _STEP
        count = -(-self.tile // _LONGEST_CHAIN)
        return tuple(_STEP * (steps * (n + 1) // count - steps * n // count) for n in range(count))


def split_width_of(columns: int) -> int:
    """The number of columns, padding included, with which a kernel computes rows of `columns` columns."""
    return next(width for width in SPLIT_WIDTHS if columns <= width)


class SplitFamily(PanelFamily[SplitWgmmaTiling]):
    """The family of `wgmma` kernels of f32 with precision "f32_grade": pairs of f16."""

    name = "wgmma of pairs"
    entry = "wgmma_"
    products = "wgmma, three of f16 for one of f32, with tiles copied by TMA"
    multiplies = f"wgmma multiplies f16 and bf16 here, and pairs of f16 for {PAIRS.name!r}"
    tiling = SplitWgmmaTiling
    emitter = "flash.kernels.wgmma_split_forward:wgmma_split_attention_forward"
    dtypes = (F32,)
    rate = H100_OPERATIONS / PAIRS.products
    # The producer and the consumers split elements. The first problem, alone in random schedules, has a CTA.
    campaign: ClassVar[Campaign] = {
        "f32_grade-sm_90a": {
            "dtype": "f32",
            "precision": "f32_grade",
            "head_dim": 64,
            "block_q": 128,
            "queries": 114,
            "scheduled": 1,
        }
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.operands is PAIRS

    def against_sizes(self, request: TileRequest) -> str:
        """See `SizedHopperFamily`: two tiles of pairs of wide rows leave Q no room, and three consumers lack
        registers for both parts of P and two sums.
        """
        widest = SPLIT_WIDTHS[-1]
        if widest < max(request.dims) <= MAX_COLUMNS:
            return f"rows of more than {widest} columns leave no room for two tiles of pairs of f16"
        why = super().against_sizes(request)
        if not why and request.block_q not in ("auto", *SPLIT_BLOCKS_Q):
            return f"block_q={request.block_q}: both parts of P leave no registers to so many rows"
        return why

    def chained_keys(self, t: SplitWgmmaTiling, asked: int | None) -> int:  # noqa: ARG002
        """See `Family`."""
        return max(t.chains)


SPLIT: Final = SplitFamily()
