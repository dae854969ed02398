"""Families whose kernels run on targets of any kind: their tiles, and what a refusal says of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import ClassVar, TypeVar

from flash.families.family import Family, Offered, Shape
from flash.families.request import TileRequest
from ptxgen.target import Target

T = TypeVar("T", bound=Shape)
Sizes = tuple[int, int]  # tile and block_q


class AnyTarget(Family[T]):
    """Kernels of a family with documented default tiles. If a default does not go with the requested sizes,
    the nearest smaller size that does is taken.
    """

    remedy: ClassVar[str]  # what to use where no tile fits

    @abstractmethod
    def default_sizes(self, request: TileRequest, target: Target) -> Sizes:
        """The documented default sizes (tile, block_q): keys of a tile, and rows of a CTA."""

    @abstractmethod
    def largest_default(self, request: TileRequest, block_q: int, alignment: int) -> int | None:
        """The most keys of a default tile, with `block_q` rows and arrays aligned to `alignment` bytes; None:
        any number.
        """

    @abstractmethod
    def shapes(self, request: TileRequest, tile: int, block_q: int, target: Target) -> list[T]:
        """The tilings of these sizes that fit the registers, the best first."""

    @abstractmethod
    def least(self, request: TileRequest, tile: int, block_q: int) -> T:
        """A tiling of these sizes, whether it fits the registers or not."""

    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterator[T]:
        """See `Family`."""
        for tile, block_q in product(*self._candidates(request, target, alignment)):
            yield from self.shapes(request, tile, block_q, target)

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        if self.tiling_for(request, target, alignment) is not None:
            return ""
        tile, block_q = self._last(request, target, alignment)
        needed, limit = self.least(request, tile, block_q).shared_bytes, target.shared_per_block_optin
        problem = (
            f"needs {needed} bytes of shared memory, but {target.name} allows {limit} bytes per block"
            if needed > limit
            else f"has no division among threads that fits the registers of {target.name}"
        )
        dims = f"head_dim={request.head_dim}, head_dim_v={request.head_dim_v}"
        return f"{dims}, tile={tile}, block_q={block_q} {problem}"

    def refusal(self, request: TileRequest, target: Target, alignment: int | None, offered: Offered) -> str:
        """See `Family`."""
        aligned = request.alignment if alignment is None else alignment
        sizes = offered(request)
        if sizes:
            blocks = self._candidates(request, target, aligned)[1]
            largest, block_q = max([pair for pair in sizes if pair[1] in blocks] or sizes)
            remedy = f"the largest tile that fits is {largest}, with block_q={block_q}"
        else:
            fewer = range(request.stages - 1, 0, -1)
            stages = next((n for n in fewer if offered(replace(request, stages=n))), 0)
            remedy = (
                f"no tile fits with stages={request.stages}; use stages={stages}" if stages else self.remedy
            )
        return f"{self.against(request, target, aligned)}; {remedy}"

    def _last(self, request: TileRequest, target: Target, alignment: int) -> Sizes:
        """The sizes that a refusal names: the default tile, or the requested one, and the least block_q."""
        tiles, blocks = self._candidates(request, target, alignment)
        return tiles[0], blocks[-1]

    def _candidates(
        self, request: TileRequest, target: Target, alignment: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The values of tile and block_q that are tried, the best first."""
        tile, rows = self.default_sizes(request, target)
        blocks = _from_default(request.block_q, rows, self.blocks_q)
        most = self.largest_default(request, blocks[0], alignment)
        default = tile if most is None else min(tile, most)
        return _from_default(request.tile, default, self.tiles(request)), blocks


def of_columns(table: Mapping[int, Sizes], columns: int) -> Sizes:
    """The default tile and block_q for rows of `columns` columns; the keys of `table` are the most columns of
    a row.
    """
    return next(sizes for most, sizes in table.items() if columns <= most)


def of_shared(table: Mapping[int, Mapping[int, Sizes]], columns: int, target: Target) -> Sizes:
    """The default tile and block_q on a target for rows of `columns` columns. The keys of `table` are the
    least shared memory of a CTA, in bytes; those of the tables in it are the most columns of a row.
    """
    enough = (sizes for least, sizes in table.items() if target.shared_per_block_optin >= least)
    return of_columns(next(enough), columns)


def _from_default(asked: int | str, default: int, offered: tuple[int, ...]) -> tuple[int, ...]:
    if asked != "auto":
        return (int(asked),)
    return (default, *(n for n in reversed(offered) if n < default))
