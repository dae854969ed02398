"""Appends new rows on a GPU to a KV cache there by a kernel, which may also rotate them (RoPE)."""

from __future__ import annotations

from collections.abc import Callable

from flash.decode.append_launch import NewRows, Rotation, append_step
from flash.launch.gpu import launcher_of
from flash.launch.step import require_grid
from flash.operands.dtypes import OF_ARRAYS
from ptxgen.runtime.cuda import CudaBackend


def prepared_append(
    who: str, cuda: CudaBackend, ordinal: int, new: NewRows, turned: Rotation | None = None
) -> Callable[[int], None]:
    """A function of a stream that launches the kernel which writes the new rows to the cache and,
    with `turned`, rotates new keys and queries. It may be called repeatedly. When it runs,
    `seqused_k` in the operands must include the new rows. Rows of padding get position 0 only if
    `leftpad_k` is in the operands.

    Raises `LaunchError` in the name of `who` for more CTAs than a grid can have, and `BackendError`
    for a kernel that cannot be compiled or loaded.
    """
    launcher = launcher_of(cuda)
    step = append_step(launcher.own_target(ordinal), OF_ARRAYS[new.k.dtype], new, turned)
    require_grid(who, step.plan.grid[0])
    ready = launcher.ready(step, ordinal)
    producers = [new.k, new.v] + ([] if turned is None else [turned.q, turned.cos, turned.sin])

    def append(stream: int) -> None:
        launcher.wait_for_producers(producers, stream, ordinal)
        ready.launch(launcher.backend, step.pointers, stream)

    return append
