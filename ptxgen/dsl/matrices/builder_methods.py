"""The methods of a kernel builder for matrices, such as `k.matrix`, `k.pipeline` and `k.mma`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Final

from ptxgen.dsl.blocks import block
from ptxgen.dsl.grid import Extents
from ptxgen.dsl.matrices.lanes import Lanes
from ptxgen.dsl.matrices.layout import Layout
from ptxgen.dsl.matrices.matrix import BlockCopier, Matrix, Walk, require_extent, require_multiple
from ptxgen.dsl.matrices.registers import PackedTile, RegisterTile, factors, product
from ptxgen.dsl.matrices.ring import StageRing
from ptxgen.dsl.matrices.staged import Arrival, StagedTile
from ptxgen.dsl.shared import SharedMemory
from ptxgen.dsl.swizzle import CHUNK_BYTES, SwizzledTile
from ptxgen.dsl.values import Pointer, Scalar, Value, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import Target
from ptxgen.types import ScalarType, f32, u32

_ON_THE_WAY: Final = "its copies have not been waited for; call k.await_copies(), or use it in a k.pipeline"
_OVER: Final = "it is a stage of a k.pipeline that has ended, and may hold another block; use it inside"
_LEAST_STAGES: Final = 2


class Matrices(SharedMemory):
    """Blocks of matrices in shared memory and registers, and their products on tensor cores."""

    def __init__(self, name: str, target: Target, block_shape: Extents) -> None:
        super().__init__(name, target, block_shape)
        self._lanes = Lanes(self)
        self._blocks = 0  # tiles that copies fill, for their names
        self._on_the_way: list[Arrival] = []

    def matrix(
        self,
        at: Pointer,
        rows: Scalar,
        columns: Scalar,
        *,
        stride: Scalar | None = None,
        width: int | None = None,
    ) -> Matrix:
        """`rows` x `columns` elements in global memory from `at` on, row-major, neighbouring rows
        `stride` elements apart (default: `columns`). They are u32 values below 2**31, or positive
        Python ints.

        An access takes `width` elements, by default those of 16 bytes: `at` must be aligned to `width`
        elements, and stride and columns must be multiples of it; if they are not, the kernel traps. Then take
        a smaller width, down to 1, which fits any matrix; below 4 bytes copies to shared memory go through
        registers, and the pipeline is slower. Raises `ConfigError` and `TypeMismatchError` for other
        arguments.
        """
        _require_global(at)
        stride = columns if stride is None else stride
        for what, extent in (("rows", rows), ("columns", columns), ("stride", stride)):
            require_extent(f"matrix: {what}", extent)
        widest = max(1, CHUNK_BYTES // max(1, at.dtype.nbytes))
        width = widest if width is None else width
        if not is_count(width) or width > widest or width & (width - 1):
            raise ConfigError(
                f"matrix: width must be a power of two up to {widest} elements of {at.dtype}, which are 16 "
                f"bytes, got {shown(width)}"
            )
        require_multiple(self, "matrix: columns", columns, width)
        if stride is not columns:
            require_multiple(self, "matrix: stride", stride, width)
        return Matrix(self, at, rows, columns, stride, width)

    def staged(self, block: Walk) -> StagedTile:
        """Start to copy one block, `matrix.block(shape, row, column)`, into shared memory.

        The tile may be used after `k.await_copies()`, and inside a `k.pipeline` that begins later. Inside a
        loop, the copy begins when all threads are done with the block of the iteration before.
        """
        self.refuse_predicated("staged")
        self.require_all_threads("staged")
        if not _is_walk(block) or block.axis is not None:
            raise TypeMismatchError(
                f"staged: takes one block, such as Q.block((64, 64), row), got {shown(block)}"
            )
        self._await_last_iteration()
        arrival = Arrival(_ON_THE_WAY)
        tile = self._declared(block, 1)
        BlockCopier(block, tile).start(0)
        self._on_the_way.append(arrival)
        return StagedTile(tile, origin=lambda: (block.row, block.column), arrival=arrival)

    def await_copies(self) -> None:
        """Wait until all copies of the CTA's threads into shared memory have arrived."""
        self.require_all_threads("await_copies")
        self.cp_async_wait_all()
        self.barrier()
        self._arrived()

    def _await_last_iteration(self) -> None:
        """In a block, which may run again: wait until the tiles that are filled next are free."""
        if self.is_in_block:
            self.await_copies()

    def _arrived(self) -> None:
        for arrival in self._on_the_way:
            arrival.problem = ""
        self._on_the_way = []

    def accumulator(
        self,
        shape: tuple[int, int],
        dtype: ScalarType = f32,
        initial: Scalar = 0,
        *,
        warps: tuple[int, int] | None = None,
    ) -> RegisterTile:
        """A matrix of variables in the registers of the CTA's warps, set to `initial`.

        `warps` is (warps along the rows, warps along the columns); by default the split that reads the least
        of a product's operands. Raises `ConfigError` for a shape that cannot be dealt to them.
        """
        layout = Layout.of("accumulator", self._lanes, shape, warps)
        with self.placed():
            elements = [[self.var(dtype, initial) for _ in layout.lane_columns] for _ in layout.lane_rows]
        return RegisterTile(layout, (layout.rows, layout.columns), elements)

    def mma(
        self,
        a: StagedTile | SwizzledTile | PackedTile,
        b: StagedTile | SwizzledTile,
        *,
        warps: tuple[int, int] | None = None,
    ) -> RegisterTile:
        """Compute a @ b on tensor cores, in the registers of the CTA's warps (`RegisterTile.mma` has the
        types, `accumulator` has `warps`).
        """
        left, right = factors(a, b)
        layout = Layout.of("mma", self._lanes, (left.shape[0], right.shape[1]), warps)
        with self.placed():
            return product(layout, left, right)

    @block
    def pipeline(self, *walks: Walk, stages: int = 3) -> Iterator[tuple[StagedTile, ...]]:
        """Run the body for the blocks of each walk, side by side: the first of each, then the second
        of each, and so on, as often as the first walk has blocks.

        The blocks are copied to shared memory asynchronously (`cp.async`), up to `stages` - 1 of them
        ahead; in the body, those of this iteration have arrived. Each has one barrier. The body gets
        the blocks as a tuple; blocks after the end of a walk are zeros. All threads of the CTA must
        run the pipeline. Inside a loop, the copies begin when all threads are done with the blocks of
        the iteration before. Raises `ConfigError` for less than two stages.
        """
        self.refuse_predicated("pipeline")
        self.require_all_threads("pipeline")
        if not walks or not all(_is_walk(walk) and walk.axis is not None for walk in walks):
            raise TypeMismatchError(
                "pipeline: takes walks over matrices, such as A.across(shape, row) and B.down(shape), "
                f"got {shown(walks)}"
            )
        if not is_int(stages) or stages < _LEAST_STAGES:
            raise ConfigError(f"pipeline: stages must be an integer of at least 2, got {shown(stages)}")
        self._await_last_iteration()
        copiers = [BlockCopier(walk, self._declared(walk, stages)) for walk in walks]
        sizes = [copier.tile.stage_bytes for copier in copiers]
        iterations = walks[0].iterations()
        for ahead in range(stages - 1):
            self._start(copiers, [ahead * size for size in sizes])
        rings = {size: StageRing(self, stages, size) for size in dict.fromkeys(sizes)}
        read = {size: ring.at for size, ring in rings.items() if ring.at is not None}
        fill = {size: self.var(u32, (stages - 1) * size) for size in read}
        over, staged_before = Arrival(), self._on_the_way
        with self.loop(0, iterations, type=None if isinstance(iterations, Value) else u32) as n:
            self.cp_async_wait_group(stages - 2)
            self.barrier()  # the blocks have arrived for all threads, and nobody reads the stage filled next
            self._arrived()  # groups of copies arrive in order, and the first one has what was staged before
            self._start(copiers, [fill[size] for size in sizes])
            yield tuple(
                StagedTile(
                    copier.tile,
                    stage=read[copier.tile.stage_bytes],
                    origin=functools.partial(copier.walk.origin, n),
                    arrival=over,
                )
                for copier in copiers
            )
            for size, ring in rings.items():
                fill[size].set(read[size])  # the stage that has been read is filled next
                ring.advance()
        over.problem = _OVER
        self._on_the_way = staged_before
        for arrival in staged_before:  # without any iteration, nobody has waited for them
            arrival.problem = _ON_THE_WAY

    def _start(self, copiers: Sequence[BlockCopier], stages: Sequence[int | Value]) -> None:
        with self.placed():
            for copier, stage in zip(copiers, stages, strict=True):
                copier.start(stage)
                copier.advance()
        self.cp_async_commit_group()

    def _declared(self, walk: Walk, stages: int) -> SwizzledTile:
        self._blocks += 1
        return self._swizzled(f"block_{self._blocks}", walk.shape, walk.matrix.dtype, stages)


def _require_global(at: object) -> None:
    if not isinstance(at, Pointer) or at.space != "global":
        raise TypeMismatchError(f"matrix: takes a pointer to global memory, got {shown(at)}")


def _is_walk(walk: object) -> bool:
    return isinstance(walk, Walk)
