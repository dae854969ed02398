"""New rows that lie on a GPU, written into a cache there by a kernel, and turned on the way."""

from __future__ import annotations

from collections.abc import Callable

from flash.decode.append_launch import NewRows, Turned, append_step
from flash.launch.gpu import launcher_of
from flash.launch.step import require_grid
from flash.problem.dtypes import OF_ARRAYS
from ptxgen.runtime.cuda import CudaBackend


def prepared_append(
    who: str, cuda: CudaBackend, ordinal: int, new: NewRows, turned: Turned | None = None
) -> Callable[[int], None]:
    """What writes new rows to the cache, on a stream, and turns them, as often as it is called. The
    lengths among the operands are, when it runs, those with the new rows. Rows of padding have
    position 0 only as far as `leftpad_k` is among them.

    Raises `LaunchError` for more CTAs than a grid has, of which it says `who` wanted them, and
    `BackendError` for a kernel that cannot be.
    """
    launcher = launcher_of(cuda)
    step = append_step(launcher.own_target(ordinal), OF_ARRAYS[new.k.dtype], new, turned)
    require_grid(who, step.plan.grid[0])
    kernel = launcher.load(step.made, step.plan, ordinal)
    producers = [new.k, new.v] + ([] if turned is None else [turned.q, turned.cos, turned.sin])

    def append(stream: int) -> None:
        launcher.wait_for_producers(producers, stream, ordinal)
        launcher.backend.launch(kernel, step.plan, stream)

    return append
