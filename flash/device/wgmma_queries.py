"""The tile of Q of the warpgroups that compute, made ready for their products."""

from __future__ import annotations

from typing import ClassVar

from flash.device.append_in_place import AppendedKV
from flash.device.box_rows import BoxRows
from flash.device.team import Team
from flash.device.tiles import await_copies, commit_copies
from flash.device.work_tiles import WorkTile
from ptxgen.dsl import marked
from ptxgen.dsl.hopper import BoxTile, Ring, Stage
from ptxgen.types import s32


class Queries:
    """The tile of Q, which the producer has copied or, if Q has no tensor map, the consumers copy."""

    signs: ClassVar[int] = 0x8000_8000  # of the elements in a word

    def __init__(self, work: WorkTile) -> None:
        self.work = work
        self.k = work.k
        self.role = work.role
        self.team = Team(work.role)
        self._stage: Stage | None = None  # if the producer fills it
        self._tile: BoxTile | None = None

    @property
    def tile(self) -> BoxTile:
        """The tile of Q in shared memory, which is valid after `acquire`."""
        assert self._tile is not None
        return self._tile

    @marked("wgmma: queries")
    def acquire(self) -> None:
        """Wait until the tile of Q is in shared memory."""
        k, queries, cta = self.k, self.work.pipeline.queries, self.work.cta
        if isinstance(queries, Ring):
            self._stage = queries.acquire()
            self._tile = self._stage.q
            return
        BoxRows(k, self.team, queries).load(cta.Q, cta.first_row)
        commit_copies(k)
        await_copies(k)
        k.fence_proxy_async(space="shared::cta")
        self.role.barrier.sync()
        self._tile = queries

    def prepare(self) -> None:
        """Negate and rotate the queries in shared memory, if the kernel does either."""
        self.negate()
        self.rotate()

    @marked("wgmma: negative scale")
    def negate(self) -> None:
        """Negate Q in shared memory if the softmax scale is negative: the softmax takes a positive one."""
        if self.work.cta.scoring is not None:
            return
        with self.k.when(self.work.parameters.scale.as_(s32) < 0, uniform=True):
            self.flip_signs()
            self.role.barrier.sync()

    @marked("wgmma: negative scale")
    def flip_signs(self) -> None:
        """Negate this thread's elements, which other threads read after a barrier."""
        k = self.k
        for at in self.tile.chunks(self.role.thread, self.role.threads):
            k.store(at, [word ^ self.signs for word in k.load(at, 4)])
        k.fence_proxy_async(space="shared::cta")

    def rotate(self) -> None:
        """Rotate the queries in shared memory by rotary angles, if the kernel does."""
        work = self.work
        appended = AppendedKV.of(self.k, work.config, work.parameters, work.cta)
        if appended is None or not appended.rotates:
            return
        appended.rotate_queries(self.tile.pointer, self.team)
        self.k.fence_proxy_async(space="shared::cta")
        self.role.barrier.sync()

    @marked("wgmma: queries given back")
    def release(self) -> None:
        """Let the producer fetch the queries of the next work tile."""
        if self._stage is not None:
            self._stage.release()

    @property
    def are_stored_by_threads(self) -> bool:
        """Whether threads write the memory of the tile, or rows of O from it."""
        return self._stage is None or self.work.cta.queries_from is not None
