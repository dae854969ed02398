"""DTensors in and out: tensors that are sharded along rows over a mesh of one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from flash.distributed.layouts import Sharding
from ptxgen.errors import LaunchError

_CALLER: Final = "ContextParallel"


def is_dtensor(x: object) -> bool:
    """Whether a tensor is a DTensor; the module of DTensor is not imported."""
    return any(
        c.__name__ == "DTensor" and c.__module__.startswith("torch.distributed") for c in type(x).__mro__
    )


@dataclass(frozen=True)
class Sharded:
    """How DTensors are sharded: along rows over `mesh`, whose ranks are those of the group."""

    mesh: Any
    axis: int
    sharding: Sharding

    @classmethod
    def of(cls, x: Any, axis: int, sharding: Sharding) -> Sharded:
        """The sharding of a DTensor along `axis`. Raises `LaunchError` for another mesh or rows that do
        not divide evenly.
        """
        mesh, axis = x.device_mesh, axis % x.dim()
        if mesh.ndim != 1 or mesh.size() != sharding.world:
            raise LaunchError(
                f"{_CALLER}: a DTensor must have a mesh of one axis with the {sharding.world} ranks of the "
                f"group, got {mesh}; pass x.to_local() of a rank's rows, and the group of the mesh's axis"
            )
        chunks = sharding.world * (2 if sharding.layout == "zigzag" else 1)
        if x.shape[axis] % chunks:
            raise LaunchError(
                f"{_CALLER}: the rows of a DTensor must be a multiple of {chunks} with layout "
                f"{sharding.layout!r}, got {x.shape[axis]}; pad them, or pass local tensors"
            )
        return cls(mesh, axis, sharding)

    def shard(self, x: Any, local_rows: Callable[[Tensor, int], Tensor]) -> Any:
        """A sharded DTensor of a replicated one."""
        if not x.placements[0].is_replicate():
            raise LaunchError(f"{_CALLER}.shard: a DTensor must be replicated, got {x.placements[0]}")
        return self.wrapped(local_rows(x.to_local(), self.axis))

    def replicated(self, whole: Tensor) -> Any:
        """A replicated DTensor of a tensor that every rank has whole."""
        from torch.distributed.tensor import DTensor, Replicate

        return DTensor.from_local(whole, self.mesh, [Replicate()], run_check=False)

    def local(self, x: Any, name: str) -> Tensor:
        """This rank's rows of a DTensor. Raises `LaunchError` if it is not sharded along rows."""
        if not x.placements[0].is_shard(self.axis):
            raise LaunchError(
                f"{_CALLER}: {name} must be sharded along axis {self.axis}, its rows, got {x.placements[0]}; "
                "make it with ContextParallel.shard"
            )
        rows: Tensor = x.to_local()
        return rows

    def wrapped(self, local: Tensor, axis: int | None = None) -> Any:
        """A DTensor of the rows of all ranks; `axis` is that of rows if it differs from the sharding's."""
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(
            local, self.mesh, [Shard(self.axis if axis is None else axis)], run_check=False
        )


def local_of(
    tensors: Sequence[Tensor], axis: int, sharding: Sharding
) -> tuple[Sharded | None, Sequence[Tensor]]:
    """The local tensors of DTensors, and how those are sharded; plain tensors as they are.

    Raises `LaunchError` for a mix, and for DTensors with another sharding.
    """
    kinds = [is_dtensor(x) for x in tensors]
    if not any(kinds):
        return None, tensors
    if not all(kinds):
        raise LaunchError(f"{_CALLER}.attention: q, k and v must all be DTensors, or none, got a mix")
    sharded = Sharded.of(tensors[0], axis, sharding)
    for x in tensors:
        Sharded.of(x, axis, sharding)
    return sharded, [sharded.local(x, name) for name, x in zip("qkv", tensors, strict=True)]
