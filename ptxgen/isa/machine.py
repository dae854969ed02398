"""What the meaning of an instruction may ask of whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.isa.atomic_scans import Scan
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]  # one value per thread
    Matrices = Any  # what an asynchronous multiplication has read of A and B


class Machine(Protocol):
    """What an instruction that touches more than registers may ask of the interpreter.

    Lanes hold one value per thread; addresses are uint64 lanes; the machine applies the active
    mask itself. A value for an inactive lane may be anything. Spaces are `generic`, `global`,
    `shared`, `local`, `param` and `const`; an address in shared memory may be one of another CTA of
    the cluster (`map_shared`). `sm` is the number of the target, 90 of `sm_90a`.
    """

    sm: int

    def load(self, space: str, address: Lanes, type: ScalarType, count: int) -> tuple[Lanes, ...]:
        """`count` consecutive values of `type` at `address`."""

    def store(self, space: str, address: Lanes, type: ScalarType, values: tuple[Lanes, ...]) -> None:
        """Write consecutive values at `address`."""

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

        `update` is called with the values and the operands of some lanes at a time, never two
        lanes with one address.
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
        """Arrive at a CTA barrier, and wait there unless told otherwise; `vote` is what
        `barrier_outcome` combines, bool.
        """

    def barrier_outcome(self, op: str) -> Lanes:
        """The votes at the barrier that each thread last waited at, combined: by `and` or `or`
        (bool), or by `popc`, the number of true ones (uint32).
        """

    def cluster_arrive(self) -> None:
        """Arrive at the barrier of the cluster."""

    def cluster_wait(self) -> None:
        """Wait until all threads of the cluster have arrived."""

    def wait_until(
        self, address: Lanes, type: ScalarType, ready: Callable[[Lanes], Lanes], what: str
    ) -> None:
        """Wait until `ready` (bool, of values) holds for the value of `type` in shared memory at
        each address; `what` says in messages what is waited for, such as `phase 1`.
        """

    def ask(self, address: Lanes) -> None:
        """Have asynchronous agents do what is left to do for the mbarriers at these addresses of
        shared memory.
        """

    def copy_async_arrive(self, address: Lanes) -> None:
        """Have each thread arrive at the mbarrier at its address in shared memory once the copies
        that it started with `copy_async` are complete.
        """

    def bulk_load(self, dst: Lanes, src: Lanes, nbytes: Lanes, mbarrier: Lanes, ctas: Lanes | None) -> None:
        """Start copying `nbytes` from global `src` to shared `dst`; the mbarrier in shared memory
        counts them. With `ctas`, a mask of ranks in the cluster, to the same place of all these
        CTAs, and for their mbarriers.
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
        """Start copying `nbytes` from shared `src` to shared `dst` of a CTA of the cluster, where
        the mbarrier counts them; or with `reduce`, of old and new values of `type`, combining.
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
        cluster at `dst`, or reducing them into it; the mbarrier there counts their bytes.
        """

    def tensormap_replace(
        self, space: str, address: Lanes, field: str, place: int, value: Lanes | int
    ) -> None:
        """Give a field of the tensor map at an address of the space a value, that of dimension
        `place` if there are several, as `tensormap.replace` calls and numbers them.
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
        self, dst: Lanes, map: Lanes, coordinates: tuple[Lanes, ...], mbarrier: Lanes, ctas: Lanes | None
    ) -> None:
        """Start copying the box at the coordinates (innermost first) of the tensor whose map
        (`ptxgen.tensormap`) lies at the generic address `map` to shared `dst`; the mbarrier and
        `ctas` mean what they do for `bulk_load`.
        """

    def tensor_store(
        self,
        map: Lanes,
        coordinates: tuple[Lanes, ...],
        src: Lanes,
        reduce: Callable[[Lanes, Lanes, ScalarType], Lanes] | None = None,
    ) -> None:
        """Start copying shared `src` to a box of a tensor, or combining as `bulk_send` does, in the
        bulk group of the thread.
        """

    def bulk_commit(self) -> None:
        """Close the group of bulk copies that each thread started since the last commit."""

    def bulk_wait(self, pending: int, read: bool) -> None:
        """Wait until at most `pending` bulk groups of each thread are incomplete, or have yet to
        read their sources if `read`.
        """

    def texture_fetch(
        self, handle: Lanes, geometry: str, coordinates: tuple[Lanes, ...], type: ScalarType
    ) -> tuple[Lanes, ...]:
        """The four channels, as `type`, of the texture with a handle at coordinates as `tex` has
        them (`ptxgen.texture`).
        """

    def texture_gather(
        self, handle: Lanes, geometry: str, coordinates: tuple[Lanes, ...], component: int, type: ScalarType
    ) -> tuple[Lanes, ...]:
        """One channel of the four texels around coordinates, as `tld4` gives them."""

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
        """`count` values of the surface with a handle at coordinates, x in bytes; `outside` of it,
        `trap`, `clamp` to the nearest, or give `zero`.
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
        """Write values to a surface as `surface_load` reads them; with `zero`, none outside."""

    def load_by_warp(self, address: Lanes, type: ScalarType) -> Lanes:
        """The values of `type` at addresses of shared memory of each warp's CTA, `[warps, n]`
        int64; those of warps without an active thread may be anything.
        """

    def multiply(
        self,
        read: Callable[[], Matrices],
        multiplied: Callable[[Matrices, tuple[Lanes, ...]], tuple[Lanes, ...]],
        d: tuple[Lanes, ...],
    ) -> tuple[Lanes, ...]:
        """Have an asynchronous agent compute `multiplied(read(), d)`, the accumulators once the
        threads have waited for their group; `read` reads A and B.
        """

    def set_registers(self, count: int, *, more: bool) -> None:
        """Have `count` registers for each thread of these warps: fewer, or `more`, for which they
        wait until the CTA has them.
        """

    def warp_sync(self, membermask: Lanes) -> None:
        """Wait for the lanes of `membermask`."""

    def exchange(self, value: Lanes, source: Lanes, membermask: Lanes) -> Lanes:
        """Each lane reads `value` of lane `source` (0..31) of its own warp."""

    def lane_id(self) -> Lanes:
        """The lane number of each thread, 0..31, uint32."""

    def warp_id(self) -> Lanes:
        """The number of each thread's warp in its CTA, uint32."""

    def clock(self) -> int:
        """A count that grows with what has been executed, below 2**64."""

    def active(self) -> Lanes:
        """Which threads execute this instruction, bool."""

    def convert_address(self, space: str, address: Lanes, *, to_space: bool) -> Lanes:
        """Between generic addresses and those of a space."""

    def in_space(self, space: str, address: Lanes) -> Lanes:
        """Whether generic addresses point into a space, bool; `cluster` for shared memory of any
        CTA of the cluster.
        """

    def map_shared(self, address: Lanes, rank: Lanes) -> Lanes:
        """The address that the CTA of this rank in the cluster has for the same place of its own
        shared memory; of shared memory, as wide as `address`.
        """

    def shared_rank(self, address: Lanes) -> Lanes:
        """The rank in the cluster of the CTA whose shared memory an address is in, uint32."""

    def carry(self) -> Lanes:
        """The carry flag of each thread, bool."""

    def set_carry(self, flag: Lanes) -> None:
        """Write the carry flag of each active thread, bool."""

    def fence(self, scope: str) -> None:
        """Order this thread's memory accesses for the scope: `cta`, `cluster`, `gpu` or `sys`;
        between proxies for `proxy.` and what the instruction says; of mbarriers that it has made
        for `mbarrier_init`.
        """

    def trap(self, reason: str) -> None:
        """Stop the kernel."""
