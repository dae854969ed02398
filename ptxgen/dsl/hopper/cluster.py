"""Clusters (`k.cluster`): CTAs that run at once and reach each other's shared memory."""

from __future__ import annotations

import math

from ptxgen.arguments import integer
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.values import Value
from ptxgen.errors import ConfigError, UnsupportedTargetError, shown
from ptxgen.target import Target

_FIRST_SM = 90
_MOST_CTAS = 8  # of every GPU; 16 need the consent of the launch (CUDA C++ Programming Guide)
_DIMENSIONS = 3

Extents = tuple[int, int, int]


def cluster_of(caller: str, cluster: object, target: Target | None = None) -> Extents:
    """The extents of a cluster along x, y and z; (1, 1, 1) for None. Raises `ConfigError` for an invalid
    cluster, and `UnsupportedTargetError` for a target without clusters.
    """
    if cluster is None:
        return 1, 1, 1
    parts = cluster if isinstance(cluster, tuple | list) else (cluster,)
    extents = [integer(n, 1, _MOST_CTAS) for n in parts]
    if (
        not 1 <= len(extents) <= _DIMENSIONS
        or None in extents
        or math.prod(n or 0 for n in extents) > _MOST_CTAS
    ):
        raise ConfigError(
            f"{caller}: cluster must be 1 to 3 positive integers with a product of at most {_MOST_CTAS}, got "
            f"{shown(cluster)}"
        )
    x, y, z = (*[n or 1 for n in extents], 1, 1)[:_DIMENSIONS]
    if target is not None and target.sm < _FIRST_SM and (x, y, z) != (1, 1, 1):
        raise UnsupportedTargetError(
            f"{caller}: clusters need sm_{_FIRST_SM}, but the target is {target.name}"
        )
    return x, y, z


class Cluster:
    """The cluster of a CTA; `extents` are its CTAs along x, y and z."""

    def __init__(self, k: Roles, extents: Extents) -> None:
        self._k = k
        self.extents = extents

    @property
    def size(self) -> int:
        """The number of CTAs in the cluster, an int."""
        return math.prod(self.extents)

    def rank(self) -> Value:
        """The rank of this CTA in its cluster (`%cluster_ctarank`), u32."""
        return self._k.special("cluster_ctarank")

    def barrier(self) -> None:
        """Wait for all threads of the cluster's CTAs; their earlier writes are visible afterwards."""
        self._k.cluster_barrier()
