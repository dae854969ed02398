"""The tensor memory of a kernel (`k.tensor_memory`): its allocation, its rings and its scale factors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

from ptxgen.dsl.blackwell.cells import CELL
from ptxgen.dsl.blackwell.operands import FORMATS, operand_of, units_of
from ptxgen.dsl.blackwell.ring import TensorRing
from ptxgen.dsl.blackwell.scales import Scales
from ptxgen.dsl.blocks import block
from ptxgen.dsl.hopper.cluster import Cluster
from ptxgen.dsl.hopper.products import Operand
from ptxgen.dsl.hopper.role import Role
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Pointer, Value, is_count
from ptxgen.errors import ConfigError, TypeMismatchError, UnsupportedTargetError, did_you_mean, shown
from ptxgen.ir import Origin
from ptxgen.isa.spec import TENSOR_FAMILIES
from ptxgen.isa.tensor_memory import ALLOCATIONS, COLUMNS
from ptxgen.types import b32, u16, u32

_REGION: Final = "k.tensor_memory"  # the shared memory of the address; no tile can have this name
_PAIR: Final = 2  # CTAs
_BOTH: Final = 3  # the mask of a pair


class TensorMemory:
    """`columns` columns of tensor memory, which one warp allocates before the first role, and frees after the
    last: PTX ISA, "TensorCore 5th Generation Family Instructions": "Tensor Memory", "tcgen05.alloc".

    With `cta_group` 2 the two CTAs of a cluster multiply together: one thread of the even CTA starts products
    of both; `is_even` tells whether it is this one, and is None without pairs. `k.tensor_memory` returns it.
    """

    def __init__(self, k: Roles, cluster: Cluster, columns: int, cta_group: int) -> None:
        caller = f"kernel {k.name!r}: tensor_memory"
        _check(caller, k, cluster, columns, cta_group)
        self.k = k
        self.columns = columns
        self.cta_group = cta_group
        self.spans_cluster = cta_group == _PAIR
        self._taken = 0
        self._rings = 0
        self._by_warp = False
        self._issuing = 0  # open blocks of the thread that starts products
        self.account = k.account
        k.add_role_user(self, "tensor memory")
        self.true = k.mov(0, type=u32) == 0
        self.is_even = cluster.rank() == 0 if self.spans_cluster else None
        self._allocates = k.warp_index == 0
        at = k.scratch(1, u32, _REGION)
        with k.when(self._allocates, uniform="warp"):
            k.tcgen05_alloc(at, columns, group=self.group, space="shared::cta")
            k.tcgen05_relinquish_alloc_permit(group=self.group)
        k.tcgen05_fence_before()
        k.barrier()
        k.tcgen05_fence_after()
        self._address: Value = k.load(at)
        k.at_end(self._free)

    def __repr__(self) -> str:
        return f"TensorMemory({self.columns} columns, cta_group={self.cta_group})"

    @property
    def group(self) -> Any:
        """The modifier, `.cta_group::1` or `::2`, of instructions that one CTA or a pair executes."""
        return f"cta_group::{self.cta_group}"

    # ------------------------------------------------------------------------------ what lies in it

    def ring(
        self,
        stages: int,
        producer: Role,
        consumer: Role,
        /,
        *,
        then: Role | None = None,
        written: bool = False,
        dealt: bool = False,
        **matrices: object,
    ) -> TensorRing:
        """A ring of `stages` stages in tensor memory, each with the matrices that are named: sums, such as
        `ring(2, multiplying, storing, c=(128, 128))`, or with a type left operands of products, such as
        `p=((128, 64), f16)`. It is declared before the first role begins.

        The products of the thread that runs the `producer` fill a stage, and all threads of the `consumer`
        load it; with `written` the threads of the `producer` store to it, and products of the `consumer`
        read it. Matrices have 128 rows, or 256 in a pair of CTAs, of which each CTA has 128.

        In a ring that is not written, an operand is what threads of the consumer store in their `drain`, and
        products read it in the next `fill` of the stage. `p=((128, 64), f16, "s")` has the last columns of
        the sums `s`. With `dealt` warpgroup i of the consumer drains stage i, again and again, and the code
        of other roles takes all stages in turn, so that their addresses are constants. With `then`
        another role drains each stage, too, when the consumer has handed it on by `stage.hand_on()`, and the
        stage is free when both have released it.

        Raises `ConfigError` for other arguments, and if fewer columns are left.
        """
        self._rings += 1
        name = f"tensor_ring_{self._rings}"
        return TensorRing(self, name, stages, producer, consumer, written, matrices, then=then, dealt=dealt)

    def scales(self, rows: int, factors: int, form: str = "nvf4") -> Scales:
        """Memory for the scale factors of an operand of products, `factors` (a multiple of 4) of each of its
        `rows` rows in this CTA, or columns of B: `copy` brings them, and `mma(…, scales=…)` uses them.

        `form` is "nvf4" (blocks of 16 e2m1 with factors of ue4m3), "mxf4" (32 e2m1, ue8m0) or "mxf8" (32
        elements of fp8, ue8m0). Raises `ConfigError` for other arguments, and if fewer columns are left.
        """
        caller = "tensor_memory.scales"
        if form not in FORMATS:
            raise ConfigError(
                f"{caller}: form must be one of {', '.join(FORMATS)}, got {shown(form)}"
                f"{did_you_mean(form, FORMATS)}"
            )
        if not is_count(rows) or not is_count(factors) or factors % CELL:
            raise ConfigError(
                f"{caller}: expected a positive number of rows, and factors in multiples of {CELL}, got "
                f"{shown(rows)} and {shown(factors)}"
            )
        scales = Scales(self, rows, factors, form)
        scales.at = self.address(self.take(caller, scales.columns))
        return scales

    def take(self, caller: str, columns: int) -> int:
        """Allot columns of tensor memory; returns the first. Raises `ConfigError` if fewer are left."""
        if self._taken + columns > self.columns:
            raise ConfigError(
                f"{caller}: it needs {columns} columns of tensor memory, but {self.columns - self._taken} of "
                f"the {self.columns} that k.tensor_memory has allocated are left"
                + (f"; allocate more, up to {COLUMNS}" if self.columns < COLUMNS else "")
            )
        self._taken += columns
        return self._taken - columns

    def address(self, column: int, moved_by: Value | None = None) -> Pointer:
        """The address in tensor memory of a column, `moved_by` (u32) columns further on."""
        base = self._address if moved_by is None else self._address + moved_by
        return Pointer(base, "tensor", b32, column)

    # ------------------------------------------------------------------------------ order

    @block
    def one_thread(self) -> Iterator[None]:
        """The code of the one thread of this role that starts products and copies, in a pair of CTAs that of
        the even one, for code outside of the drains of rings, which are of this thread. Raises
        `TypeMismatchError` outside of roles.
        """
        role = self.k.present_role
        if role is None:
            raise TypeMismatchError("tensor_memory.one_thread is for the code of a role, 'with role:'")
        with self.issuing(role):
            yield

    @block
    def by_warp(self) -> Iterator[None]:
        """Code in which steps of rings are those of the whole warp, which waits and goes round loops
        together, and `one_thread()` in them has the products of one thread: the assembler then keeps
        addresses and indices in uniform registers, which products take. Raises `ConfigError` in pairs of
        CTAs.
        """
        if self.is_even is not None:
            raise ConfigError(
                "tensor_memory.by_warp: in a pair of CTAs one thread of the even one waits, got "
                "cta_group=2; use tensor_memory.one_thread"
            )
        self._by_warp = True
        try:
            yield
        finally:
            self._by_warp = False

    def operand(self, tile: object) -> Operand:
        """A tile in shared memory, or a part or a transpose of one, as an operand of products whose address
        is computed here for all of them, not in each `one_thread()`. Raises `TypeMismatchError` for others.
        """
        operand = operand_of("tensor_memory.operand", "a", tile)
        return replace(operand, units=units_of(operand.at))

    @contextmanager
    def step(self, role: Role) -> Iterator[None]:
        """The code of a step of a role: of the thread that starts products, or `by_warp` of its warp."""
        with nullcontext() if self._by_warp else self.issuing(role):
            yield

    @contextmanager
    def issuing(self, role: Role) -> Iterator[None]:
        """The code of the one thread of a role that starts products, in a pair that of the even CTA."""
        if self._issuing:
            yield  # which is this one
            return
        self._issuing += 1
        try:
            with self.k.when(role.leads if self.is_even is None else role.leads & self.is_even):
                yield
        finally:
            self._issuing -= 1

    def require_issuing(self, caller: str) -> None:
        """Raise `TypeMismatchError` outside of the code of the thread that starts products."""
        self.k.refuse_predicated(caller)
        if not self._issuing:
            raise TypeMismatchError(
                f"{caller} is for the one thread that commits products, but comes outside of its code; move "
                "it into 'with ring.drain() as stage:' of a ring that is released_by this memory, or into "
                "'with memory.one_thread():'"
            )

    def origin(self) -> Origin:
        """The line of the kernel's Python source that is being executed, with its file."""
        return self.k.origin()

    def commit(self, barrier: TilePointer) -> None:
        """Arrive at a barrier, in a pair at that of each CTA, when all products and copies that this thread
        has started are complete (PTX ISA, "tcgen05.commit").
        """
        k = self.k
        if self.cta_group == 1:
            k.tcgen05_commit(barrier, group=self.group, space="shared::cluster")
        else:
            k.tcgen05_commit_multicast(
                barrier, k.mov(_BOTH, type=u16), group=self.group, space="shared::cluster"
            )

    def of_even_cta(self, barrier: TilePointer) -> TilePointer:
        """The address of an mbarrier of the pair's even CTA, for either CTA of the pair."""
        k = self.k
        there = k.mapa(k.add(barrier.value, barrier.offset), 0, space="shared::cluster")
        return TilePointer(barrier.tile, there, 0)

    # ------------------------------------------------------------------------------ roles

    def prepare(self) -> None:
        """Emit nothing before the first role: tensor memory is allocated by then."""

    def enter(self, role: Role) -> None:
        """Emit nothing when a role begins: tensor memory needs no registers of a role."""

    def leave(self, role: Role) -> None:
        """Check nothing when a role ends: tensor memory is freed after the last role."""

    def _free(self) -> None:
        """Free the memory, when all threads of the CTA, or of the pair, have come to the end."""
        k = self.k
        k.tcgen05_fence_after()
        with k.only_if(self._allocates):
            k.tcgen05_dealloc(self._address, self.columns, group=self.group)


def _check(caller: str, k: Roles, cluster: Cluster, columns: object, cta_group: object) -> None:
    """Raise the errors of `caller` unless the kernel may allocate these columns of tensor memory."""
    if not any(k.target.has_features_of(family) for family in TENSOR_FAMILIES):
        raise UnsupportedTargetError(
            f"{caller}: expected a target with tensor memory, such as sm_100a, sm_103a or sm_110a, got "
            f"{k.target.name}"
        )
    if k.ends:
        raise ConfigError(
            f"{caller}: the kernel has called k.tensor_memory before, and has given up the permit "
            "to allocate more (tcgen05.relinquish_alloc_permit); ask for all columns in one call, and divide "
            "them by its rings"
        )
    if not is_count(columns) or columns not in ALLOCATIONS:
        raise ConfigError(
            f"{caller}: columns must be one of {', '.join(map(str, ALLOCATIONS))}, got {shown(columns)}"
        )
    if cta_group not in (1, _PAIR) or isinstance(cta_group, bool):
        raise ConfigError(f"{caller}: cta_group must be 1, or 2 for pairs of CTAs, got {shown(cta_group)}")
    if cta_group == _PAIR and cluster.size != _PAIR:
        raise ConfigError(
            f"{caller}: cta_group=2 is for clusters of 2 CTAs, but the kernel has {cluster.size} in a "
            "cluster; build it with cluster=2, or leave out cta_group"
        )
