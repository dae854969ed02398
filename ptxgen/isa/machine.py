"""The interface that instructions use for more than registers: memory, barriers and other lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.isa.atomic_scans import Scan
    from ptxgen.isa.tensor_agent import Operation, RegisterShape
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]  # one value per thread
    Matrices = Any  # A and B as an asynchronous multiplication has read them


class Machine(Protocol):
    """The operations that the interpreter provides to instructions that touch more than registers.

    Lanes hold one value per thread; addresses are uint64 lanes; the machine applies the active mask
    itself. The value of an inactive lane is undefined. Spaces are `generic`, `global`, `shared`,
    `local`, `param` and `const`; an address in shared memory may belong to another CTA of the
    cluster (`map_shared`). `sm` is the number of the target, 90 for `sm_90a`.
    """

    sm: int

    def load(self, space: str, address: Lanes, type: ScalarType, count: int) -> tuple[Lanes, ...]:
        """`count` consecutive values of `type` at `address`."""

    def store(self, space: str, address: Lanes, type: ScalarType, values: tuple[Lanes, ...]) -> None:
        """Write consecutive values at `address`."""

    def store_zeros(self, space: str, address: Lanes, nbytes: Lanes) -> None:
        """Write as many zero bytes as `nbytes` says for each lane to shared memory at `address`, of the
        space `shared` or `generic`.
        """

    def atomic(
        self,
        space: str,
        address: Lanes,
        type: ScalarType,
        update: Callable[..., Lanes],
        operands: tuple[Lanes, ...],
        *,
        scan: Scan | None = None,
    ) -> Lanes:
        """Replace each value at `address` by `update(value, *operands)`, one lane after another;
        return the old values. A `scan` does so for many lanes of one address at once.

        `update` is called with the values and the operands of some lanes at a time, never with two
        lanes of one address.
        """

    def copy_async(self, dst: Lanes, src: Lanes, nbytes: int, src_nbytes: Lanes | None) -> None:
        """Start copying from global `src` to shared `dst`; bytes from `src_nbytes` to `nbytes`
        become zero.
        """

    def copy_async_commit(self) -> None:
        """Close the group of copies started since the last commit."""

    def copy_async_wait(self, pending: int | None) -> None:
        """Wait until at most `pending` groups are incomplete; None: for all copies."""

    def barrier(
        self, barrier: Lanes, threads: Lanes | None, *, wait: bool, vote: Lanes | None = None
    ) -> None:
        """Arrive at a CTA barrier, and with `wait` wait there; `barrier_outcome` combines the
        values of `vote`, bool.
        """

    def barrier_outcome(self, op: str) -> Lanes:
        """The combined votes at the barrier that each thread last waited at: by `and` or `or`
        (bool), or by `popc`, the number of true votes (uint32).
        """

    def cluster_arrive(self) -> None:
        """Arrive at the barrier of the cluster."""

    def cluster_wait(self) -> None:
        """Wait until all threads of the cluster have arrived."""

    def wait_until(
        self, address: Lanes, type: ScalarType, ready: Callable[[Lanes], Lanes], what: str
    ) -> None:
        """Wait until `ready` (bool, of values) holds for the value of `type` in shared memory at
        each address; `what` describes the wait in messages, for example `phase 1`.
        """

    def ask(self, address: Lanes) -> None:
        """Complete the asynchronous operations that the mbarriers at these addresses of shared
        memory wait for.
        """

    def copy_async_arrive(self, address: Lanes) -> None:
        """Have each thread arrive at the mbarrier at its address in shared memory once the copies
        that it started with `copy_async` are complete.
        """

    def bulk_load(self, dst: Lanes, src: Lanes, nbytes: Lanes, mbarrier: Lanes, ctas: Lanes | None) -> None:
        """Start copying `nbytes` from global `src` to shared `dst`, with completion on the mbarrier
        in shared memory. With `ctas`, a mask of ranks in the cluster, copy to the same offset in
        all these CTAs, with completion on their mbarriers.
        """

    def bulk_send(
        self,
        dst: Lanes,
        src: Lanes,
        nbytes: Lanes,
        mbarrier: Lanes,
        reduce: Callable[[Lanes, Lanes, ScalarType], Lanes] | None = None,
        type: ScalarType = ...,
    ) -> None:
        """Start copying `nbytes` from shared `src` to shared `dst` of a CTA of the cluster, with
        completion on the mbarrier there; or with `reduce`, a function of old and new values of
        `type`, combining them.
        """

    def send_values(
        self,
        dst: Lanes,
        values: tuple[Lanes, ...],
        mbarrier: Lanes,
        reduce: Callable[[Lanes, Lanes, ScalarType], Lanes] | None,
        type: ScalarType,
    ) -> None:
        """Start writing consecutive values of each thread's registers to shared memory of the
        cluster at `dst`, or reducing them into it, with completion on the mbarrier there.
        """

    def cancel_launch(self, space: str, address: Lanes, mbarrier: Lanes, *, everywhere: bool) -> None:
        """For each thread, cancel a cluster of the grid that has not begun, and start writing the response
        (`ptxgen.isa.launches`) to shared memory at `address`, with completion on the mbarrier; `space` is
        that of both. With `everywhere`, it is written to all CTAs of the cluster.
        """

    def tensormap_replace(
        self, space: str, address: Lanes, field: str, dimension: int, value: Lanes | int
    ) -> None:
        """Set a field of the tensor map at an address of the space to a value; `dimension` selects
        the dimension if the field has a value for each. `tensormap.replace` defines the names of
        fields and the numbers of dimensions.
        """

    def tensormap_copy(self, dst: Lanes, src: Lanes) -> None:
        """Copy the tensor map at shared `src` to global `dst`."""

    def bulk_store(
        self,
        dst: Lanes,
        src: Lanes,
        nbytes: Lanes,
        reduce: Callable[[Lanes, Lanes, ScalarType], Lanes] | None = None,
        type: ScalarType = ...,
    ) -> None:
        """Start copying, or combining as `bulk_send` does, `nbytes` from shared `src` to global
        `dst`, in the bulk group of the thread.
        """

    def tensor_load(
        self,
        dst: Lanes,
        map: Lanes,
        coordinates: tuple[Lanes, ...],
        mbarrier: Lanes,
        ctas: Lanes | None,
        *,
        rows: bool,
        pair: bool,
    ) -> None:
        """Start copying the box at the coordinates (innermost first) of the tensor whose map
        (`ptxgen.tensormap`) is at the generic address `map` to shared `dst`; `mbarrier` and `ctas`
        are those of `bulk_load`. With `rows`, the coordinates are a column and the rows of a matrix that
        are copied, each a box. With `pair`, the mbarrier may be in the other CTA of a pair.
        """

    def tensor_store(
        self, map: Lanes, coordinates: tuple[Lanes, ...], src: Lanes, op: str, *, rows: bool
    ) -> None:
        """Start copying shared `src` to a box of a tensor, or combining with the operation `op` of
        `ptxgen.isa.bulk.BOX_REDUCTIONS`, in the bulk group of the thread; `rows` is that of `tensor_load`.
        """

    def bulk_commit(self) -> None:
        """Close the group of bulk copies that each thread started since the last commit."""

    def bulk_wait(self, pending: int, read: bool) -> None:
        """Wait until at most `pending` bulk groups of each thread are incomplete, or with `read`
        until at most `pending` of them have yet to read their sources.
        """

    def texture_fetch(
        self, handle: Lanes, geometry: str, coordinates: tuple[Lanes, ...], type: ScalarType
    ) -> tuple[Lanes, ...]:
        """The four channels, as `type`, of the texture with a handle at coordinates in the order of
        `tex` (`ptxgen.texture`).
        """

    def texture_gather(
        self, handle: Lanes, geometry: str, coordinates: tuple[Lanes, ...], component: int, type: ScalarType
    ) -> tuple[Lanes, ...]:
        """One channel of the four texels around coordinates, as `tld4` gives it."""

    def texture_query(self, handle: Lanes, query: str) -> Lanes:
        """A property of the texture or the surface with a handle, uint32."""

    def surface_load(
        self,
        handle: Lanes,
        geometry: str,
        coordinates: tuple[Lanes, ...],
        type: ScalarType,
        count: int,
        outside: str,
    ) -> tuple[Lanes, ...]:
        """`count` values of the surface with a handle at coordinates, x in bytes. `outside` says
        what happens to accesses outside of it: `trap`, `clamp` to the nearest element, or give
        `zero`.
        """

    def surface_store(
        self,
        handle: Lanes,
        geometry: str,
        coordinates: tuple[Lanes, ...],
        type: ScalarType,
        values: tuple[Lanes, ...],
        outside: str,
    ) -> None:
        """Write values to a surface; the arguments are those of `surface_load`. With `zero`,
        nothing is written outside.
        """

    def load_by_warp(self, address: Lanes, rows: Lanes, type: ScalarType) -> Lanes:
        """The values of `type` in the shared memory of each warp's CTA, `[warps, n]`, at the addresses of the
        warp's row of `address`, int64 `[matrices, n]`; `rows` has its number for each warp. The values of
        warps without an active thread are undefined.
        """

    def multiply(
        self,
        read: Callable[[], Matrices],
        multiplied: Callable[[Matrices, tuple[Lanes, ...]], tuple[Lanes, ...]],
        d: tuple[Lanes, ...],
    ) -> tuple[Lanes, ...]:
        """Have an asynchronous agent compute `multiplied(read(), d)`; the result is the
        accumulators once the threads have waited for their group. `read` reads A and B.
        """

    def allocate_tensor(self, space: str, dst: Lanes, columns: Lanes, *, pair: bool) -> None:
        """Have each warp wait until its CTA, or with `pair` both CTAs of its pair, have `columns` of tensor
        memory for it, and write their address to shared memory of the space `shared` or `generic`.
        """

    def free_tensor(self, address: Lanes, columns: Lanes, *, pair: bool) -> None:
        """Have each warp free the columns of tensor memory that were allocated at `address`."""

    def relinquish_tensor(self, *, pair: bool) -> None:
        """Have the CTA of each warp, or both of its pair, allocate no more tensor memory."""

    def load_cells(self, address: Lanes, of: RegisterShape) -> tuple[Lanes, ...]:
        """The cells of a shape at each warp's address of tensor memory, as registers, uint32."""

    def store_cells(self, address: Lanes, of: RegisterShape, values: tuple[Lanes, ...]) -> None:
        """Write registers, uint32, to the cells of a shape at each warp's address of tensor memory, at the
        latest when the warp waits for its stores.
        """

    def wait_for_cells(self, way: str) -> None:
        """Wait until all loads from tensor memory that each active warp has started are complete, or with
        `way` "st" its stores.
        """

    def start_tensor(
        self, plan: Callable[..., Operation], operands: tuple[Lanes, ...], *, pair: bool
    ) -> None:
        """Start the operation that `plan` makes of each thread's operands, which are numbers there, on the
        memories of its CTA, or of both CTAs of its `pair`. A `ValueError` of `plan` stops the kernel.
        """

    def commit_tensor(self, mbarrier: Lanes, ctas: Lanes | None = None) -> None:
        """Have each thread arrive at the mbarrier in shared memory once the operations that it has started
        are complete; with `ctas`, a mask of ranks in the cluster, at the same offset in all these CTAs.
        """

    def set_registers(self, count: int, *, more: bool) -> None:
        """Give each thread of these warps `count` registers: fewer than before, or with `more`
        more, for which they wait until the CTA has them.
        """

    def warp_sync(self, membermask: Lanes) -> None:
        """Wait for the lanes of `membermask`."""

    def exchange(self, value: Lanes, source: Lanes, membermask: Lanes) -> Lanes:
        """The `value` of lane `source` (0..31) of each lane's own warp."""

    def lane_id(self) -> Lanes:
        """The lane number of each thread, 0..31, uint32."""

    def warp_id(self) -> Lanes:
        """The index of each thread's warp in its CTA, uint32."""

    def clock(self) -> int:
        """A count that grows with the instructions executed, below 2**64."""

    def active(self) -> Lanes:
        """A mask of the threads that execute this instruction, bool."""

    def convert_address(self, space: str, address: Lanes, *, to_space: bool) -> Lanes:
        """Convert between generic addresses and addresses of a space."""

    def in_space(self, space: str, address: Lanes) -> Lanes:
        """Whether generic addresses point into a space, bool; `cluster` for shared memory of any
        CTA of the cluster.
        """

    def map_shared(self, address: Lanes, rank: Lanes) -> Lanes:
        """The address of the same offset in the shared memory of the CTA with this rank in the
        cluster; for an address in the shared window, as wide as `address`.
        """

    def shared_rank(self, address: Lanes) -> Lanes:
        """The rank in the cluster of the CTA whose shared memory an address is in, uint32."""

    def carry(self) -> Lanes:
        """The carry flag of each thread, bool."""

    def set_carry(self, flag: Lanes) -> None:
        """Write the carry flag of each active thread, bool."""

    def fence(self, scope: str) -> None:
        """Order this thread's memory accesses for the scope `cta`, `cluster`, `gpu` or `sys`.
        Scopes that begin with `proxy.` order accesses between proxies; `mbarrier_init` orders the
        initialisation of mbarriers. `tensor_before` and `tensor_after` order operations on tensor memory.
        """

    def trap(self, reason: str) -> None:
        """Stop the kernel."""
