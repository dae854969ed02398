"""Features of sm_90 and later: copies of tensors by the tensor memory
accelerator, rings of mbarriers, roles of warps, matrix products of warpgroups, and clusters.
"""

from ptxgen.dsl.hopper.async_stores import AsyncStores
from ptxgen.dsl.hopper.cluster import Cluster, cluster_of
from ptxgen.dsl.hopper.layouts import Layout
from ptxgen.dsl.hopper.ping_pong import PingPong
from ptxgen.dsl.hopper.products import Operand
from ptxgen.dsl.hopper.ring import Ring
from ptxgen.dsl.hopper.role import NamedBarrier, Role, WarpgroupBarrier
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.scheduler import TileScheduler
from ptxgen.dsl.hopper.stage import Stage
from ptxgen.dsl.hopper.tensor_maps import Corner, TensorParameter
from ptxgen.dsl.hopper.tickets import TicketScheduler
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.hopper.tma import Tma
from ptxgen.dsl.hopper.wgmma import Accumulator, Wgmma

__all__ = [
    "Accumulator",
    "AsyncStores",
    "BoxTile",
    "Cluster",
    "Corner",
    "Layout",
    "NamedBarrier",
    "Operand",
    "PingPong",
    "Ring",
    "Role",
    "Roles",
    "Stage",
    "TensorParameter",
    "TicketScheduler",
    "TileScheduler",
    "Tma",
    "WarpgroupBarrier",
    "Wgmma",
    "cluster_of",
]
