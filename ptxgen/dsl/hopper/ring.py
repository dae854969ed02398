"""Rings of stages in shared memory, which one role fills by tensor copies and another one drains."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.dsl.blocks import block
from ptxgen.dsl.hopper.products import Products
from ptxgen.dsl.hopper.role import Role
from ptxgen.dsl.hopper.stage import Cursor, RingMemory, Stage
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Value, Var
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.types import pred, u32


class Ring(RingMemory):
    """`stages` stages, each with one tile of each layout in `tiles`, whose regions are `regions`.

    `full` barriers count the bytes of the copies, `empty` barriers one arrival of each warp of the consumer.
    Phases follow from the order in which stages are taken, which is the same in both roles. With `overlapped`
    a step of the consumer ends while its products are under way, and releases the stage of the step before.
    With `reworked` the producer works on the tiles that copies have filled: `ready` barriers, of which
    `barriers` then has as many, count one arrival of each of its warps, or of each of its threads if the ring
    is `gathered`, and the consumer waits for these. `ctas` above 1 are those of the cluster, whose producers
    fill stages of each other: a stage is free when the consumers of all have released it. If the ring is
    `written`, the threads of the producer store to its tiles, and `full` barriers count an arrival of each of
    its warps. If it is `gathered`, these threads fill its tiles by `k.copy_async`, and `full` barriers count
    an arrival of each thread. The threads of the producer store to the tiles named in `stored`, while copies
    fill the others: `full` barriers then count an arrival of each of its warps besides the bytes, unless the
    ring is `reworked`. In a ring made `at_once` such a second step follows its fill directly, and both have
    one cursor. If it is `dealt`, a warpgroup of the consumer names the stage that it takes,
    and `empty` barriers count one arrival of each warp of a single warpgroup. The tiles of a stage arrive in
    `parts`, each of which has a `full` barrier. A role may be both producer and consumer of a ring. Commits
    of `products` in tensor memory release stages, if there are any: `empty` barriers then count one arrival,
    and in a pair of CTAs the `full` barrier of the even one counts the bytes of both. `k.tma.ring` makes it.
    """

    def __repr__(self) -> str:
        return f"Ring({self.name!r}, {self.stages} stages of {', '.join(self.tiles)})"

    # ------------------------------------------------------------------------------ what roles do

    def enter(self, role: Role) -> None:
        """Declare the role's stage index and parity in the ring. A fresh empty barrier lets the producer
        pass: its phase before the first has parity 1 (PTX ISA, "mbarrier.test_wait").
        """
        for mine, kind, parity in ((self.producer, "fill", 1), (self.consumer, "drain", 0)):
            if mine is role and not (self.dealt and kind == "drain"):
                index: Var | int = self.k.var(u32, 0) if self.stages > 1 else 0
                cursor = self._cursors[kind] = Cursor(index, self.k.var(u32, parity))
                if self.overlapped and kind == "drain":
                    cursor.held, cursor.holds = self.k.var(u32, 0), self.k.var(u32, 0)
                if self.at_once and role is self.producer:
                    self._second = cursor
                elif (self.reworked or self.stored) and role is self.producer:
                    index = self.k.var(u32, 0) if self.stages > 1 else 0
                    self._second = Cursor(index, self.k.var(u32, 0 if self.reworked else 1))

    def leave(self, role: Role) -> None:
        """Raise `ConfigError` if the producer's code fills stages of a reworked ring, or of one with `stored`
        tiles, without a second step, or the reverse.
        """
        has_second = self.stored or (self.reworked and not self.gathered)
        if role is not self.producer or not has_second or len(self._steps) != 1:
            return
        lacks, step = "fills", "'with ring.fill() as stage:'"
        if "fill" in self._steps:
            lacks = "stores to" if self.stored else "reworks"
            step = f"'with ring.{'rework' if self.reworked else 'store'}() as stage:'"
        raise ConfigError(
            f"ring {self.name!r}: role {role.name!r} has no step that {lacks} its stages, so that consumers "
            f"wait for ever; add {step}"
        )

    @block
    def fill(self, *, reworked: Value | None = None) -> Iterator[Stage]:
        """A step of the producer: wait until the next stage is free, and fill it by `k.tma.load`, each tile
        once. One thread of the role runs the body.

        The stages of a reworked ring are all reworked, or those for which `reworked` holds, a predicate that
        is the same in all threads of the role: `pass_on` replaces `rework` for the other stages, or `store`
        in a ring with `stored` tiles, which this step does not load.
        """
        k = self.k
        k.require_role(f"ring {self.name!r}: fill", self.producer)
        self._check_reworked("fill", reworked)
        k.refuse_predicated("ring.fill")
        if self.written:
            raise ConfigError(f"ring {self.name!r}: fill is for copies; the threads of this ring use write")
        if self.gathered:
            raise ConfigError(f"ring {self.name!r}: fill is for copies of tensors; this ring uses gather")
        if self._filling is not None:
            raise ConfigError(f"ring {self.name!r}: fill is inside another fill of the same ring")
        self._take_step("fill", second=False)
        self._steps.add("fill")
        cursor, copied_bytes = self._cursors["fill"], sum(tile.nbytes for tile in self.copied.values())
        with k.when(self.producer.leads):
            stage = self._filling = self._stage(cursor, "fill")
            try:
                self.wait(stage.empty, cursor.parity)
                if self.of_pair:
                    self._expect_pair(stage, copied_bytes)
                elif reworked is None:
                    for part in range(self.parts):
                        nbytes = copied_bytes // self.parts
                        k.mbarrier_arrive_expect_tx(stage.arrival(part), nbytes, space="shared::cta")
                else:
                    copied = self._choose_barrier(stage, reworked)
                    k.mbarrier_expect_tx(stage.full, copied_bytes, space="shared::cta")
                    k.mbarrier_arrive(copied, space="shared::cta")
                yield stage
                missing = [name for name in self.copied if name not in stage.loaded]
                if missing:
                    have = sum(self.tiles[name].nbytes for name in stage.loaded)
                    raise ConfigError(
                        f"ring {self.name!r}: a stage has {copied_bytes} bytes, of which the loads bring "
                        f"{have}; load {' and '.join(missing)} too, or consumers wait for ever"
                    )
            finally:
                self._filling = None
                stage.close()
        if not self.at_once:
            self.advance(cursor)

    @block
    def write(self) -> Iterator[Stage]:
        """A step of the producer of a `written` ring: wait until the next stage is free, and store to
        its tiles, by all threads of the role. Products see what they stored.
        """
        self.k.require_whole_role(f"ring {self.name!r}: write", self.producer)
        if not self.written:
            raise ConfigError(f"ring {self.name!r}: write is for rings made with written=True; use fill")
        cursor = self._cursors["fill"]
        stage = self._stage(cursor, "write")
        self.wait(stage.empty, cursor.parity)
        yield from self._hand_on(stage, stage.full)
        self.advance(cursor)

    @block
    def store(self) -> Iterator[Stage]:
        """A step of the producer of a ring with `stored` tiles, once for each `fill`, after it and in their
        order: store to these tiles of the stage by all threads of the role, while copies fill the others. The
        consumer has the stage when both are done, and its products see what was stored.

        In a reworked ring `store` replaces `pass_on`, for stages filled with a false `reworked`. Raises
        `ConfigError` in a ring without `stored` tiles, and for the use of a tile that copies fill (PTX ISA,
        "mbarrier.arrive" and "Async proxy").
        """
        self.k.require_whole_role(f"ring {self.name!r}: store", self.producer)
        if not self.stored:
            raise ConfigError(
                f"ring {self.name!r}: store is for rings made with stored=…, such as stored=('numbers',), "
                "and this one is not"
            )
        yield from self._second_step("store")

    def _second_step(self, kind: str) -> Iterator[Stage]:
        """Yield the next stage of `rework` or `store`, when its threads may store to it."""
        self._steps.add("store")
        cursor = self._second
        assert cursor is not None  # the role has been entered
        self._take_step(kind, second=True)
        stage = self._stage(cursor, kind)
        # The thread that fills a stage of a reworked ring arrives at its full barrier when it is free.
        self.wait(stage.full if self.reworked else stage.empty, self._second_parity(cursor))
        yield from self._hand_on(stage, stage.ready)
        self.advance(cursor)

    def _second_parity(self, cursor: Cursor) -> Value:
        """The parity for which the second step of the producer waits: of full barriers, whose phases are one
        behind those of empty ones, or of empty barriers.
        """
        return cursor.parity ^ 1 if self.at_once and self.reworked else cursor.parity

    def _take_step(self, kind: str, *, second: bool) -> None:
        """Note a step of the producer. Raises `ConfigError` in a ring made `at_once` unless second steps
        follow their fills directly.
        """
        if self.at_once and second is not self._owes_second:
            wanted = "rework, store or pass_on" if self._owes_second else "fill"
            raise ConfigError(
                f"ring {self.name!r}: {kind} comes where {wanted} is due, because at_once=True says that "
                "fills and second steps alternate; leave at_once out for another order"
            )
        self._owes_second = self.at_once and not second

    def _choose_barrier(self, stage: Stage, reworked: Value) -> TilePointer:
        """Have the copies to a stage count at the consumer's barrier, or where `reworked` holds at the `full`
        barrier, which is returned.
        """
        copied, distance = stage.full, stage.ready.offset - stage.full.offset
        stage.full = copied.moved(self.k.selp(copied.value, copied.value + distance, reworked))
        return copied

    def _check_reworked(self, kind: str, reworked: object) -> None:
        """Raise `ConfigError` or `TypeMismatchError` for an invalid argument `reworked` of the method
        `kind`.
        """
        if reworked is None:
            return
        caller = f"ring {self.name!r}: {kind}"
        if not self.reworked:
            raise ConfigError(
                f"{caller} takes reworked=… in rings made with reworked=True, and this one is not"
            )
        if self.at_once:
            raise ConfigError(
                f"{caller} with reworked=… may take one of two second steps, but at_once=True has one cursor "
                "for both; leave at_once out"
            )
        if self.spans_cluster:
            raise ConfigError(f"{caller} with reworked=… is for stages of one CTA; leave out multicast=True")
        if getattr(reworked, "type", None) is not pred:
            raise TypeMismatchError(
                f"{caller}: reworked must be a predicate, such as n < 2, got {shown(reworked)}"
            )

    @block
    def gather(self, *, reworked: Value | None = None) -> Iterator[Stage]:
        """A step of the producer of a `gathered` ring: wait until the next stage is free, and start copies
        to its tiles by `k.copy_async`, by all threads of the role. The barrier waits for these copies.
        `reworked` is as for `fill`.
        """
        self.k.require_whole_role(f"ring {self.name!r}: gather", self.producer)
        self._check_reworked("gather", reworked)
        if not self.gathered:
            raise ConfigError(f"ring {self.name!r}: gather is for rings made with gathered=True; use fill")
        cursor = self._cursors["fill"]
        stage = self._stage(cursor, "gather")
        self.wait(stage.empty, cursor.parity)
        if reworked is not None:
            copied = self._choose_barrier(stage, reworked)
            with self.k.only_if(~reworked):
                self.k.mbarrier_arrive(copied, space="shared::cta")
        try:
            yield stage
            self.k.cp_async_mbarrier_arrive(stage.full, noinc=True, space="shared::cta")
        finally:
            stage.close()
        self.advance(cursor)

    @block
    def rework(self) -> Iterator[Stage]:
        """The producer's second step in a reworked ring: wait until the copies of the next stage that it
        has filled are there, read and write its tiles by ordinary accesses of all threads, and hand the
        stage on to the consumer, whose products see what was written.
        """
        self.k.require_whole_role(f"ring {self.name!r}: rework", self.producer)
        if not self.reworked:
            raise ConfigError(f"ring {self.name!r}: rework is for rings made with reworked=True")
        yield from self._second_step("rework")

    def pass_on(self) -> None:
        """The producer's second step, if the next stage was filled with a false `reworked`: the consumer has
        the stage when its copies are there. All threads of the role come here, and do not wait for these.
        """
        k = self.k
        k.require_whole_role(f"ring {self.name!r}: pass_on", self.producer)
        if not self.reworked:
            raise ConfigError(f"ring {self.name!r}: pass_on is for rings made with reworked=True")
        if self.stored:
            raise ConfigError(
                f"ring {self.name!r}: pass_on stores nothing, but consumers expect what the producer stores "
                "to each stage; replace it by 'with ring.store() as stage:'"
            )
        cursor = self._second
        assert cursor is not None  # the role has been entered
        self._take_step("pass_on", second=True)
        self._steps.add("store")
        stage = self._stage(cursor, "pass_on")
        if not self.gathered:  # whose copies arrive for their threads
            self.wait(
                stage.full, self._second_parity(cursor)
            )  # so that no warp is a step ahead of the copies
            with k.only_if(self.producer.is_first_lane):
                k.mbarrier_arrive(stage.ready, space="shared::cta")
        stage.close()
        self.advance(cursor)

    def _hand_on(self, stage: Stage, barrier: TilePointer) -> Iterator[Stage]:
        """Yield a stage to which the producer's threads store, and arrive at a barrier of the consumer."""
        k = self.k
        try:
            yield stage
            k.fence_proxy_async(space="shared::cta")
            if self.gathered:
                k.mbarrier_arrive(barrier, space="shared::cta")
                return
            k.bar_warp_sync(-1)
            with k.only_if(self.producer.is_first_lane):
                k.mbarrier_arrive(barrier, space="shared::cta")
        finally:
            stage.close()

    @block
    def drain(self) -> Iterator[Stage]:
        """A step of the consumer: wait until the next stage is full, use it in the body, and release it.

        Of an overlapped ring the step starts at least one product and does not wait for it: its end waits
        until only the newest group is under way, and releases the stage of the step before. Of a ring that is
        `released_by` tensor memory one thread of the role, in a pair of the even CTA, runs the body, and a
        commit of its products releases the stage.
        """
        if self.products is not None:
            yield from self._drain_by(self.products)
            return
        stage, start = self.acquire(), self.k.flight.mark()
        try:
            yield stage
            if self.overlapped:
                self._hold(stage, start)
            elif stage.is_open:
                stage.release()
        finally:
            stage.close()

    def _drain_by(self, products: Products) -> Iterator[Stage]:
        """A consumer's step in which products to tensor memory (`tcgen05.mma`) read the stage."""
        k = self.k
        k.require_role(f"ring {self.name!r}: drain", self.consumer)
        k.refuse_predicated("ring.drain")
        cursor = self._cursors["drain"]
        with products.step(self.consumer):
            stage = self._stage(cursor, "drain")
            self.wait(stage.ready, cursor.parity)
            self._show_copies()
            try:
                yield stage
                if stage.is_open:
                    with products.issuing(self.consumer):
                        stage.release()
            finally:
                stage.close()
        self.advance(cursor)

    def _expect_pair(self, stage: Stage, nbytes: int) -> None:
        """Have the full barrier of the even CTA wait for the bytes of both CTAs."""
        k, products = self.k, self.products
        assert products is not None  # of a pair
        is_even = products.is_even
        assert is_even is not None  # of a pair
        with k.only_if(is_even):
            k.mbarrier_arrive_expect_tx(stage.full, products.cta_group * nbytes, space="shared::cta")
        stage.full = products.of_even_cta(stage.full)

    def finish(self) -> None:
        """Wait for the last products of an overlapped ring, and release its last stage."""
        k = self.k
        k.require_whole_role(f"ring {self.name!r}: finish", self.consumer)
        if not self.overlapped:
            raise ConfigError(f"ring {self.name!r}: finish is for rings made with overlapped=True")
        k.wgmma_wait_group(0)
        k.flight.waited(0)
        self._give_back().set(0)

    def look(self) -> Value:
        """Whether the consumer's next stage is full (pred), for the following `acquire`: nothing is waited
        for, and the answer may come while the thread does other work.
        """
        stage = self._next("look", "drain")
        parity = self._cursors["drain"].parity
        return self.k.mbarrier_test_wait_parity(stage.ready, parity, space="shared::cta")

    def acquire(self, known: Value | None = None) -> Stage:
        """Wait until the consumer's next stage is full; it is used until its `release`, so that stages
        of several rings may overlap. With nested use `drain` is shorter. Threads whose `known`, the result
        of `look` since the last `acquire`, is true do not wait.
        """
        stage = self._next_full("drain", known)
        self.advance(self._cursors["drain"])
        return stage

    def peek(self) -> Stage:
        """Wait until the consumer's next stage is full, without taking it: the following `acquire` or `drain`
        returns it again. The result may be used until its `close`.
        """
        return self._next_full("peek")

    def take(self, index: Value | int, parity: Value) -> Stage:
        """Wait until stage `index` (u32) of a `dealt` ring is full; `parity` (u32) is 0 for its first use, 1
        for its second, and so on. Of several parts this waits for the first, `stage.wait` for others. All
        threads of a warpgroup come here; several warpgroups may take a stage, and one of them releases it,
        when all have done with it.
        """
        k = self.k
        k.require_role(f"ring {self.name!r}: take", self.consumer)
        k.refuse_predicated(f"ring {self.name!r}: take")
        if not self.dealt:
            raise ConfigError(f"ring {self.name!r}: take is for rings made with dealt=True; use acquire")
        stage = Stage(self, "drain", index, parity)
        stage.wait(0)
        self._show_copies()
        return stage

    # ------------------------------------------------------------------------------ inside

    def _next(self, what: str, kind: str) -> Stage:
        """The consumer's next stage, for a step of a `kind`; `what` names the method that takes it."""
        self.k.require_whole_role(f"ring {self.name!r}: {what}", self.consumer)
        if self.products is not None:
            raise ConfigError(
                f"ring {self.name!r}: acquire, peek and look are for rings whose stages threads release; one "
                "thread drains this one, which is released_by tensor memory: 'with ring.drain() as stage:'"
            )
        if self.dealt:
            raise ConfigError(f"ring {self.name!r}: warpgroups name the stage of a dealt ring; use take")
        return self._stage(self._cursors["drain"], kind)

    def _next_full(self, kind: str, known: Value | None = None) -> Stage:
        """Wait until the consumer's next stage is full, and return it."""
        stage = self._next(kind, "drain")
        self.wait(stage.ready, self._cursors["drain"].parity, known)
        self._show_copies()
        return stage

    def _show_copies(self) -> None:
        """Let products see a stage of a `gathered` ring that is full."""
        if self.gathered:
            # The copies end, and arrive, after all that their threads could execute before: so it is the
            # reader that lets its products see them (PTX ISA, "Proxies" and "Async proxy").
            self.k.fence_proxy_async(space="shared::cta")

    def _hold(self, stage: Stage, start: int) -> None:
        """End the step of an overlapped ring, which began at step `start` of the flight."""
        k, held = self.k, self._cursors["drain"].held
        assert held is not None  # the ring is overlapped
        if not k.flight.has_started(start):
            raise ConfigError(
                f"ring {self.name!r}: a step of an overlapped ring starts a product, as in acc += stage.a @ "
                "stage.b; make the ring without overlapped=True"
            )
        k.wgmma_wait_group(1)
        k.flight.waited(1)
        self._give_back().set(1)
        held.set(stage.index)

    def _give_back(self) -> Var:
        """Release the stage that is held, if any; returns the variable that says whether one is held."""
        cursor = self._cursors["drain"]
        assert cursor.held is not None  # the ring is overlapped
        assert cursor.holds is not None
        self.arrive(self.barrier(cursor.held, self.stages), cursor.holds != 0)
        return cursor.holds

    def _stage(self, cursor: Cursor, kind: str) -> Stage:
        index = cursor.index if isinstance(cursor.index, int) else self.k.mov(cursor.index, type=u32)
        return Stage(self, kind, index)
