"""Rings of stages in tensor memory, by which products and the threads of other roles hand matrices over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from ptxgen.dsl.blackwell.accumulator import Accumulator
from ptxgen.dsl.blackwell.cells import CELL, Memory
from ptxgen.dsl.blackwell.tensor_operand import TensorOperand
from ptxgen.dsl.blocks import block
from ptxgen.dsl.hopper.products import FP8, MOST_COLUMNS, STEP, STEP_BYTES, Products
from ptxgen.dsl.hopper.role import WARPGROUP, Role
from ptxgen.dsl.hopper.stage import Cursor, RingMemory, StepStage
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Pointer, Value, is_count
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.isa.tensor_memory import LANES
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, bf16, f16, u8, u32, u64

_STEPS: Final = {"fill": "fill", "drain": "drain", "then": "drain"}  # by cursor
_BARRIERS: Final = 2  # of a stage: full and empty
_BARRIER_ALIGN: Final = 8  # bytes
_COLUMN_STEP: Final = 8  # columns of sums in one CTA; twice as many in a pair


class RingHost(Memory, Products, Protocol):
    """The interface of tensor memory that a ring of stages in it uses."""

    def take(self, caller: str, columns: int) -> int:
        """Allot columns of tensor memory; returns the first column's number."""

    def address(self, column: int, moved_by: Value | None = None) -> Pointer:
        """The address of a column in tensor memory, u32."""


@dataclass(frozen=True)
class _Shape:
    """A matrix of each stage, its type (None: sums), the columns of tensor memory, the first of them, and of
    an operand of fp8 the name of its type.
    """

    columns: int
    dtype: ScalarType | None
    width: int
    first: int
    fp8: str


class TensorRing(RingMemory):
    """`stages` stages in tensor memory, each with the `matrices`: sums that products of the producer fill and
    threads of the consumer load, or if the ring is `written` matrices to which threads of the producer store
    and which products of the consumer read or add to. Operands of a ring that is not written are those that
    threads of the consumer store for the products of the next fill of their stage.

    The side of products has one arrival, that of a commit, and the side of threads one of each warp, in a
    pair of CTAs of both. A `tcgen05.fence` comes before and after each, where tensor memory of other threads
    is concerned (PTX ISA, "tcgen05.fence"). If the ring is `dealt`, each warpgroup of the consumer has a
    stage of its own. The role `then` takes a stage when the consumer hands it on, at a third barrier, and
    both release it.
    """

    def __init__(
        self,
        memory: RingHost,
        name: str,
        stages: int,
        producer: Role,
        consumer: Role,
        written: bool,
        matrices: Mapping[str, object],
        *,
        then: Role | None = None,
        dealt: bool = False,
    ) -> None:
        k = memory.k
        caller = "tensor_memory.ring"
        for role in (producer, consumer, *([] if then is None else [then])):
            if getattr(role, "k", None) is not k:
                raise ConfigError(
                    f"{caller}: the producer, the consumer and then=… must be roles of this kernel, got "
                    f"{shown(role)}"
                )
        if not is_count(stages) or not matrices:
            raise ConfigError(
                f"{caller}: it takes a positive number of stages, two roles, and matrices by name, such as "
                f"c=(128, 128); got {shown(stages)}, {producer!r}, {consumer!r} and {shown(matrices)}"
            )
        if then in (producer, consumer):
            raise ConfigError(
                f"{caller}: then=… must be a third role, which takes stages from role {consumer.name!r}, got "
                f"{then!r}; leave it out where that role releases them"
            )
        _check_consumers(caller, stages, consumer, then, written=written, dealt=dealt)
        self.memory = memory
        self.rows = LANES
        self.then = then
        self._shapes: dict[str, _Shape] = {}
        width = 0
        for matrix, form in matrices.items():
            if matrix.startswith("_") or hasattr(TensorStage, matrix):
                raise ConfigError(
                    f"{caller}: a matrix cannot be called {matrix!r}, a word of stages; rename it"
                )
            columns, dtype, over, fp8 = _checked(caller, matrix, form, LANES * memory.cta_group)
            needed = columns * dtype.nbytes // CELL if dtype else columns
            if over is None:
                self._shapes[matrix] = _Shape(columns, dtype, needed, width, fp8)
                width += needed
            else:
                first = _last_columns(caller, matrix, needed, over, self._shapes)
                self._shapes[matrix] = _Shape(columns, dtype, needed, first, fp8)
        self._width = width
        self._first = memory.take(caller, stages * width)
        barriers = k.shared(name, (1, _BARRIERS * stages), u64, align=_BARRIER_ALIGN)
        super().__init__(k, name, producer, consumer, {}, {}, barriers, 1, False, written, dealt=dealt)
        self._handed: TilePointer | None = None  # the third barrier of each stage
        if then is not None:
            handed = k.shared(f"{name}_handed", (1, stages), u64, align=_BARRIER_ALIGN)
            self._handed = handed.pointer()
        self.spans_cluster = memory.cta_group > 1
        k.add_role_user(self)

    def __repr__(self) -> str:
        return f"TensorRing({self.name!r}, {self.stages} stages of {', '.join(self._shapes)})"

    # ------------------------------------------------------------------------------ roles

    def prepare(self) -> None:
        """Initialise the mbarriers of the ring's stages, in one thread."""
        group = self.memory.cta_group
        hands_on = (WARPGROUP if self.dealt else self.consumer.warps) * group
        back = hands_on if self.then is None else hands_on + self.then.warps * group
        full, empty = (self.producer.warps * group, 1) if self.written else (1, back)
        for stage in range(self.stages):
            self.k.mbarrier_init(self._barriers.step(columns=stage), full, space="shared::cta")
            at = self._barriers.step(columns=self.stages + stage)
            self.k.mbarrier_init(at, empty, space="shared::cta")
            if self._handed is not None:
                self.k.mbarrier_init(self._handed.step(columns=stage), hands_on, space="shared::cta")

    def enter(self, role: Role) -> None:
        """Declare the role's stage index and parity; a fresh empty barrier lets the producer pass."""
        # The stage index of the role `then` is in a register even if there is one stage: a wait at a constant
        # address that begins a loop would be one block with it, and proofs would not know that lanes go round
        # together.
        sides = (self.producer, "fill", 1), (self.consumer, "drain", 0), (self.then, "then", 0)
        for mine, kind, parity in sides:
            if mine is role:
                index: Any = 0
                if self.dealt and kind == "drain":
                    index = self.k.mov(role.warpgroup, type=u32)
                elif not self.dealt and (self.stages > 1 or kind == "then"):
                    index = self.k.var(u32, 0)
                self._cursors[kind] = Cursor(index, self.k.var(u32, parity))

    def leave(self, role: Role) -> None:
        """Raise `ConfigError` unless the code of the role takes all stages of a dealt ring in turn."""
        for kind, cursor in self._cursors.items():
            if isinstance(cursor.index, int) and cursor.index:
                raise ConfigError(
                    f"ring {self.name!r}: role {role.name!r} has taken {cursor.index} of {self.stages} "
                    f"stages by {_STEPS[kind]}, expected all in turn, since the ring is made with dealt=True"
                )

    # ------------------------------------------------------------------------------ steps

    @block
    def fill(self) -> Iterator[TensorStage]:
        """A step of the producer whose products fill a stage: wait until the next stage is free, start
        products in the body, and commit them at its end. All threads of the role come here, and one of them,
        in a pair of the even CTA, waits and commits; drains of operands in the body are of this thread. In
        `tensor_memory.by_warp()` all threads wait, drains are of all of them, and one commits.
        """
        self._require("fill", self.producer, of_threads=False)
        yield from self._of_products("fill", self._cursors["fill"], self.stages, 0)

    @block
    def write(self) -> Iterator[TensorStage]:
        """A step of the producer of a `written` ring: wait until the next stage is free, store to its
        matrices by all threads of the role, and hand it to the consumer's products.
        """
        self._require("write", self.producer, of_threads=True)
        yield from self._of_threads("write", self._cursors["fill"], self.stages, 0)

    @block
    def drain(self) -> Iterator[TensorStage]:
        """A step of the consumer: wait until the next stage is full, use it in the body, and release it. In a
        `written` ring one thread runs the body, in `tensor_memory.by_warp()` all threads of the role, and a
        commit of its products releases the stage; otherwise all threads of the role run it, of a `dealt` ring
        each warpgroup with its stage. It is also a step of the role `then`, which waits until the consumer
        has handed the stage on.
        """
        if self.then is not None and self.then.has(self.k.present_role):
            self._require("drain", self.then, of_threads=True)
            yield from self._of_threads("drain", self._cursors["then"], None, self.stages)
            return
        self._require("drain", self.consumer, of_threads=not self.written)
        cursor = self._cursors["drain"]
        if not self.written:
            yield from self._of_threads("drain", cursor, 0, self.stages)
            return
        with self.memory.step(self.consumer):
            yield from self._of_products("drain", cursor, 0, self.stages)

    def _require(self, step: str, role: Role, *, of_threads: bool) -> None:
        """Raise `ConfigError` or `TypeMismatchError` for a step in a ring of the other kind, or elsewhere."""
        k, caller = self.k, f"ring {self.name!r}: {step}"
        if step != "drain" and self.written is not of_threads:
            raise ConfigError(
                f"{caller} is for rings made with{'' if of_threads else 'out'} written=True; use "
                f"{'fill' if of_threads else 'write'}"
            )
        if of_threads:
            k.require_whole_role(caller, role)
        else:
            k.require_role(caller, role)
            k.refuse_predicated(caller)

    def _of_products(self, kind: str, cursor: Cursor, waits: int, arrives: int) -> Iterator[TensorStage]:
        """A ring step of the thread that starts products: it waits and arrives at barriers from these columns
        on.
        """
        k, memory = self.k, self.memory
        role = self.producer if kind == "fill" else self.consumer
        stage = self._stage_of(kind, cursor)
        with memory.step(role):
            self.wait(self.barrier(stage.index, waits), cursor.parity)
            k.tcgen05_fence_after()
        try:
            yield stage
            with memory.issuing(role):
                memory.commit(self.barrier(stage.index, arrives))
        finally:
            stage.close()
        self.advance(cursor)

    def _of_threads(
        self, kind: str, cursor: Cursor, waits: int | None, arrives: int
    ) -> Iterator[TensorStage]:
        """A step of the side of threads, which waits at the barriers from column `waits` on, or for None at
        those by which the consumer hands stages on.
        """
        k = self.k
        stage = self._stage_of(kind, cursor)
        role = self.producer if self.written else self.consumer
        if waits is None:
            assert self.then is not None  # which comes here
            role = self.then
            # A wait at a constant address that begins a loop would be one block with it, and proofs would not
            # know that lanes go round together.
            self.wait(self._handed_barrier(stage.index), k.mov(cursor.parity, type=u32))
        else:
            self.wait(self.barrier(stage.index, waits), cursor.parity)
        k.tcgen05_fence_after()
        stage.owes_hand_on = self.then is not None and waits is not None
        try:
            yield stage
            if stage.owes_hand_on:
                raise ConfigError(
                    f"ring {self.name!r}: a drain of role {role.name!r} does not hand its stage on, so that "
                    f"role {self.then.name!r} waits for ever; call stage.hand_on() in it"  # type: ignore[union-attr]
                )
            k.tcgen05_fence_before()
            self._arrive_at_products(self.barrier(stage.index, arrives), role)
        finally:
            stage.close()
        if kind == "drain" and self.dealt and waits is not None:
            cursor.parity.set(cursor.parity ^ 1)
        else:
            self.advance(cursor)

    def hand_on(self, stage: TensorStage) -> None:
        """Arrive at the barrier at which the role `then` waits for a stage."""
        self.k.require_whole_role(f"ring {self.name!r}: hand_on", self.consumer)
        self.k.tcgen05_fence_before()
        self._arrive_at_products(self._handed_barrier(stage.index), self.consumer)

    def _handed_barrier(self, index: Value | int) -> TilePointer:
        """The mbarrier at which the role that takes a stage over waits for it."""
        at = self._handed
        assert at is not None  # a role takes stages then
        if isinstance(index, int):
            return at.step(columns=index)
        return at.moved(self.k.mad(index, _BARRIER_ALIGN, at.value, mode="lo"))

    def _arrive_at_products(self, barrier: TilePointer, role: Role) -> None:
        """Arrive, once for each warp, at the mbarrier where the thread that starts products waits."""
        k = self.k
        there = self.memory.of_even_cta(barrier) if self.spans_cluster else barrier
        k.bar_warp_sync(-1)
        with k.only_if(role.is_first_lane):
            if self.spans_cluster:
                k.arrive_in_cluster(Pointer(there.value, "shared", u64))
            else:
                k.mbarrier_arrive(barrier, space="shared::cta")

    def _stage_of(self, kind: str, cursor: Cursor) -> TensorStage:
        index = cursor.index if isinstance(cursor.index, int) else self.k.mov(cursor.index, type=u32)
        return TensorStage(self, kind, index)

    def matrix(self, name: str, stage: TensorStage) -> Accumulator | TensorOperand:
        """A matrix in tensor memory that belongs to a stage of the ring."""
        shape = self._shapes[name]
        first, moved_by = self._first + shape.first, stage.index * self._width
        if isinstance(moved_by, int):
            at = self.memory.address(first + moved_by)
        else:
            at = self.memory.address(first, moved_by)
        if shape.dtype is None:
            return Accumulator(self.memory, name, self.rows, shape.columns, at, stage)
        return TensorOperand(self.memory, name, self.rows, shape.columns, at, stage, shape.dtype, shape.fp8)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the matrices that each stage of the ring has."""
        return tuple(self._shapes)


class TensorStage(StepStage):
    """A stage of a ring in tensor memory that one role uses: `stage.c` is its matrix `c`."""

    __slots__ = ("_matrices", "index", "owes_hand_on")

    ring: TensorRing

    def __init__(self, ring: TensorRing, kind: str, index: Value | int) -> None:
        super().__init__(kind)
        self.ring = ring
        self.index = index
        self.owes_hand_on = False
        # All at once: what a branch computes is undefined after it.
        self._matrices = {name: ring.matrix(name, self) for name in ring.names}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._matrices:
            raise AttributeError(f"{self.ring!r} has no matrix {name!r}")
        self.use(f"matrix {name!r}")
        return self._matrices[name]

    def hand_on(self) -> None:
        """Let the role `then` of the ring take the stage: what this role's threads have stored so far is
        there for it, in tensor memory and in shared memory. All threads of the role come here, once in each
        drain. Raises `TypeMismatchError` elsewhere.
        """
        self.use("the stage")
        if not self.owes_hand_on:
            raise TypeMismatchError(
                f"ring {self.ring.name!r}: hand_on is for a drain of the first consumer of a ring made with "
                "then=…, once in each; leave it out here"
            )
        self.owes_hand_on = False
        self.ring.hand_on(self)

    @property
    def is_of_products(self) -> bool:
        """Whether matrix products use the stage at this point of the kernel, not loads and stores."""
        return self._kind == "fill" or (self._kind == "drain" and self.ring.written)

    def require_side(self, caller: str, *, products: bool) -> None:
        """Raise `TypeMismatchError` unless products use the stage here, or threads that load and store do."""
        if self.is_of_products is not products:
            sides = "threads load and store", "products use"
            raise TypeMismatchError(
                f"{caller}: expected a stage that {sides[products]}, but in this {self._kind} of ring "
                f"{self.ring.name!r} {sides[not products]} it; the other role of the ring "
                f"{'starts products' if products else 'loads and stores'}"
            )


def _checked(caller: str, name: str, form: Any, rows: int) -> tuple[int, ScalarType | None, str | None, str]:
    """The columns of a matrix, its type, None for sums, the sums whose columns it shares, or None, and the
    name of its type if that is fp8.
    """
    shape, over, fp8 = form, None, ""
    dtype: Any = None
    if isinstance(form, tuple) and len(form) in (2, 3) and isinstance(form[0], tuple):
        shape, dtype, *rest = form
        over = rest[0] if rest else None
    if isinstance(dtype, str) and dtype in FP8:
        dtype, fp8 = u8, dtype
    step = _COLUMN_STEP * rows // LANES if dtype is None else STEP_BYTES // getattr(dtype, "nbytes", 1)
    right = isinstance(shape, tuple) and len(shape) == 2 and shape[0] == rows
    columns = shape[1] if right and (dtype in (None, f16, bf16) or fp8) else None
    if not is_count(columns) or columns % step or columns > MOST_COLUMNS:
        raise ConfigError(
            f"{caller}: expected matrix {name!r} as ({rows}, columns) for sums, in multiples of "
            f"{_COLUMN_STEP * rows // LANES} columns up to {MOST_COLUMNS}, or as (({rows}, columns), f16 or "
            f"bf16 or {' or '.join(map(repr, FP8))}) for an operand, in multiples of {STEP} columns, of fp8 "
            f"of {STEP_BYTES}; got {shown(form)}"
        )
    return columns, dtype, over, fp8


def _last_columns(caller: str, name: str, needed: int, over: object, shapes: Mapping[str, _Shape]) -> int:
    """The first of the last `needed` columns of the sums `over`. Raises `ConfigError` for other sums."""
    of = shapes.get(over) if isinstance(over, str) else None
    if of is None or of.dtype is not None or of.width < needed:
        raise ConfigError(
            f"{caller}: matrix {name!r} needs {needed} columns, expected the name of sums before it that "
            f"have as many, got {shown(over)}"
        )
    return of.first + of.width - needed


def _check_consumers(
    caller: str, stages: int, consumer: Role, then: Role | None, *, written: bool, dealt: bool
) -> None:
    """Raise `ConfigError` unless the threads of the consumer can take stages as these arguments say."""
    if written and (dealt or then is not None):
        raise ConfigError(
            f"{caller}: dealt=True and then=… are for stages that threads drain, but products drain those of "
            "a ring made with written=True; leave out one of both"
        )
    if dealt and stages != consumer.warpgroups:
        raise ConfigError(
            f"{caller}: dealt=True gives a stage to each warpgroup of role {consumer.name!r}, expected "
            f"{consumer.warpgroups} stages, got {stages}"
        )
