"""Clusters of CTAs, fences between proxies, and the order of dependent grids (PTX ISA,
"barrier.cluster", "mapa", "getctarank", "membar", "griddepcontrol").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.control import SYNCHRONIZATION
from ptxgen.isa.declare import each, inst
from ptxgen.isa.spec import Effect, gate
from ptxgen.types import u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MOVES: Final = "Data Movement and Conversion Instructions"
_SM90: Final[dict[str, Any]] = {"ptx": (7, 8), "sm": 90}
_PTX80: Final = gate(ptx=(8, 0), sm=90)

# ---------------------------------------- shared memory of other CTAs


@inst(
    "mapa{.space}.type d, a, b:u32",
    name="mapa",
    space=("shared::cluster",),
    type=(u32, u64),
    effect=Effect.ADDRESS,
    section=f"{MOVES}: mapa",
    **_SM90,
)
def mapa(machine: Machine, a: Lanes, b: Lanes, *, space: str | None) -> Lanes:
    """d = the address, in the CTA of rank b of the cluster, of the byte of shared memory that a is
    the address of; without .shared::cluster, both are generic addresses.
    """
    del space  # a generic address shows that it is one
    return machine.map_shared(a, b)


@inst(
    "getctarank{.space}.type d:u32, a",
    name="getctarank",
    space=("shared::cluster",),
    type=(u32, u64),
    effect=Effect.ADDRESS,
    section=f"{MOVES}: getctarank",
    **_SM90,
)
def getctarank(machine: Machine, a: Lanes, *, space: str | None) -> Lanes:
    """d = the rank in the cluster of the CTA whose shared memory a points to; without
    .shared::cluster, a is a generic address.
    """
    if space is None:
        a = machine.convert_address("shared", a, to_space=True)
    return machine.shared_rank(a)


# ---------------------------------------- barrier.cluster


@inst(
    "barrier.cluster.arrive{.sem}{.aligned}",
    name="barrier_cluster_arrive",
    sem={"release": _PTX80, "relaxed": _PTX80},
    ignores=("sem", "aligned"),
    effect=Effect.BARRIER,
    section=f"{SYNCHRONIZATION}: barrier.cluster",
    **_SM90,
)
def barrier_cluster_arrive(machine: Machine) -> tuple[()]:
    """Arrive at the barrier of the cluster, without waiting."""
    machine.cluster_arrive()
    return ()


@inst(
    "barrier.cluster.wait{.sem}{.aligned}",
    name="barrier_cluster_wait",
    sem={"acquire": _PTX80},
    ignores=("sem", "aligned"),
    effect=Effect.BARRIER,
    section=f"{SYNCHRONIZATION}: barrier.cluster",
    **_SM90,
)
def barrier_cluster_wait(machine: Machine) -> tuple[()]:
    """Wait until all threads of the cluster have arrived at its barrier."""
    machine.cluster_wait()
    return ()


# ---------------------------------------- fences


@inst(
    "fence.proxy.kind",
    name="fence_proxy",
    kind={"alias": gate(ptx=(7, 5), sm=70), "async": _PTX80},
    ptx=(7, 5),
    sm=70,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_proxy(machine: Machine, *, kind: str) -> tuple[()]:
    """Order accesses by ordinary instructions and accesses through the proxy."""
    machine.fence(f"proxy.{kind}")
    return ()


@inst(
    "fence.proxy.async.space",
    name="fence_proxy_async",
    space=("global", "shared::cta", "shared::cluster"),
    ptx=(8, 0),
    sm=90,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_proxy_async(machine: Machine, *, space: str) -> tuple[()]:
    """Order accesses to the space by ordinary instructions and by asynchronous ones."""
    machine.fence(f"proxy.async.{space}")
    return ()


@inst(
    "fence.proxy.tensormap::generic.release.scope",
    name="fence_proxy_tensormap_release",
    scope=("cta", "cluster", "gpu", "sys"),
    ptx=(8, 3),
    sm=90,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_proxy_tensormap_release(machine: Machine, *, scope: str) -> tuple[()]:
    """Make this thread's writes of tensor maps visible in the scope, to threads that acquire the
    maps there.
    """
    machine.fence(scope)
    return ()


@inst(
    "fence.proxy.tensormap::generic.acquire.scope [addr:u64], 128",
    name="fence_proxy_tensormap_acquire",
    scope=("cta", "cluster", "gpu", "sys"),
    ptx=(8, 3),
    sm=90,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_proxy_tensormap_acquire(machine: Machine, addr: Lanes, *, scope: str) -> tuple[()]:
    """Make writes of the tensor map at addr visible to this thread, if a release in the scope came
    after them.
    """
    del addr
    machine.fence(scope)
    return ()


@inst(
    "fence.proxy.async::generic.<sem>.sync_restrict::<space>.cluster",
    each(
        "sem space side",
        ("acquire", "shared::cluster", "for the threads that wait"),
        ("release", "shared::cta", "for the threads that arrive"),
    ),
    name="fence_proxy_async_<sem>",
    ptx=(8, 6),
    sm=90,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_proxy_async_restricted(machine: Machine) -> tuple[()]:
    """fence.proxy.async, restricted to accesses that mbarriers of the cluster order: <side>."""
    machine.fence("proxy.async")
    return ()


@inst(
    "fence.mbarrier_init.release.cluster",
    name="fence_mbarrier_init",
    ptx=(8, 0),
    sm=90,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_mbarrier_init(machine: Machine) -> tuple[()]:
    """Make the initialisation of this thread's mbarriers visible to the cluster, after its next barrier."""
    machine.fence("mbarrier_init")
    return ()


# ---------------------------------------- dependent grids


@inst(
    "griddepcontrol.wait",
    name="griddepcontrol_wait",
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: griddepcontrol",
    **_SM90,
)
def griddepcontrol_wait(machine: Machine) -> tuple[()]:
    """Wait until the grids that this one depends on are complete, and their writes are visible."""
    machine.fence("grids")
    return ()


@inst(
    "griddepcontrol.launch_dependents",
    name="griddepcontrol_launch_dependents",
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: griddepcontrol",
    **_SM90,
)
def griddepcontrol_launch_dependents(machine: Machine) -> tuple[()]:
    """Let the grids that depend on this one begin, once all its CTAs have executed this instruction
    or are complete.
    """
    del machine  # grids run one after another
    return ()
