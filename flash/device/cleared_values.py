"""NaN and infinity in V that the producer clears before the consumers get the tile.

If consumers cleared a tile, no product would be under way meanwhile in the first tile of each block of
queries. The producer has nothing else to do while a tile of V waits for the weights of its keys.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final

from flash.device.cta import Cta
from flash.device.nonfinite import RestoredValues, clear_together
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Pointer, Role, Value, marked
from ptxgen.dsl.hopper import Ring
from ptxgen.target import WARP_SIZE
from ptxgen.tensormap import CHUNK
from ptxgen.types import u32

# Chunks of 16 bytes that a thread reads together, where it has the registers without spilling.
_AT_ONCE: Final = 2
_WORDS: Final = CHUNK // u32.nbytes  # of a chunk


class ClearedValues(RestoredValues):
    """Clears NaN and infinity in tiles of V, in the ring `values`, by the threads of `producer`, and restores
    them in O by those of `consumer`. At the end of each work tile each warp of the producer sends whether it
    has cleared any, through a ring of one stage, so that the producer may already be at the next work tile.
    """

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, producer: Role, consumer: Role, values: Ring
    ) -> None:
        super().__init__(k, config)
        self.producer = producer
        self.values = values
        self._at_once = 1 if config.is_persistent or config.gathers else _AT_ONCE
        words = -(-producer.warps // _WORDS) * _WORDS
        self.findings = k.tma.ring(1, producer, consumer, written=True, found=((1, words), u32))

    # ------------------------------------------------------------------------------ the producer's part

    @contextmanager
    def sent_findings(self) -> Iterator[None]:
        """Run the body, which fills the tiles of a work tile, and then send to the consumer whether NaN or
        infinity was cleared in any of them.
        """
        self._nonfinite = self.k.var(u32, 0)
        self._waits = self.k.var(u32, 0)  # whether the newest tile is to be cleared
        yield
        self._send_findings()

    @contextmanager
    @marked("cleared values: fill")
    def fills(self, cta: Cta, row: Value, follows: Value | bool) -> Iterator[Value | None]:
        """Clear the previous tile of V, if there is one (`follows`), and run the body, which fills the tile
        whose first key is `row`. Yields the argument of `Ring.fill` that says whether that tile will be
        cleared.
        """
        k = self.k
        if follows is not False:
            with nullcontext() if follows is True else k.when(follows, uniform=True):
                self.clear_last(cta)
        if cta.mask.hides_anywhere:
            yield None
            return
        cut = cta.hides_keys(row)
        yield cut
        with k.when(~cut, uniform=True):
            self.values.pass_on()
        self._waits.set(k.selp(1, 0, cut))

    def clear_last(self, cta: Cta) -> None:
        """Set NaN and infinity to 0 in the tile of V filled last, if the mask hides keys of it."""
        if cta.mask.hides_anywhere:
            self._clear()
            return
        with self.k.when(self._waits != 0, uniform=True):
            self._clear()

    @marked("cleared values: findings")
    def _send_findings(self) -> None:
        k, producer = self.k, self.producer
        nonfinite = k.warp.any(self._nonfinite != 0)
        with self.findings.write() as stage, k.when(producer.is_first_lane):
            k.store(stage.found.pointer(0, producer.thread // WARP_SIZE), k.selp(1, 0, nonfinite, type=u32))

    @marked("cleared values: clear")
    def _clear(self) -> None:
        """Set NaN and infinity to 0 in the tile of V filled last, and pass the tile to the consumer."""
        k, producer = self.k, self.producer
        with self.values.rework() as stage:
            tile, width = stage.v, stage.v.layout.slab_columns
            with k.loop(0, tile.columns, step=width, type=u32) as first:
                chunks = tile.from_column(first, width).chunks(producer.thread, producer.threads)
                # Where some threads have a chunk less than others, each is cleared before the next.
                uneven = tile.rows * tile.layout.row_bytes % (producer.threads * CHUNK) > 0
                for some in ((at,) for at in chunks) if uneven else _in_groups(list(chunks), self._at_once):
                    clear_together(k, self.dtype, some, lambda: self._nonfinite.set(1), self._signs)

    # ------------------------------------------------------------------------------ the consumer's part

    @contextmanager
    @marked("cleared values: end of a part")
    def received_findings(self) -> Iterator[Value]:
        """Run the body, which stores and restores O, at the end of a work tile; yields whether NaN or
        infinity was cleared in its tiles of V.
        """
        with self.findings.drain():
            yield self.has_nonfinite()

    @marked("cleared values: whether there were any")
    def has_nonfinite(self) -> Value:
        """See `RestoredValues`."""
        words = self.k.load(self.findings.tile("found").pointer(0, 0), self.producer.warps)
        return functools.reduce(operator.or_, words) != 0


def _in_groups(chunks: Sequence[Pointer], count: int) -> Iterator[Sequence[Pointer]]:
    """The chunks of 16 bytes in groups of `count`."""
    for n in range(0, len(chunks), count):
        yield chunks[n : n + count]
