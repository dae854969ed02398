"""The choice of the backend of a call, and the arrays and streams that it takes."""

from __future__ import annotations

from typing import Final

from flash.families.precision import TF32
from flash.operands.dtype_names import Backend, Precision
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import LaunchError
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import AUTO, BACKENDS, COMPILED, backend_setting


def choose(
    backend: object, q: ArrayView, cuda: CudaBackend, caller: str, *, copies_to_gpu: bool = True
) -> tuple[str, str]:
    """The backend of a call of `caller`, and why. `backend` is what the caller asked for; "auto" is
    PTXGEN_BACKEND, else "cuda" for arrays on a GPU, and for those on the host if a GPU opens and the call
    `copies_to_gpu`, else "cpu". Raises `ConfigError` for an unknown name, `BackendError` for "compiled"
    without Numba.
    """
    if not isinstance(backend, str) or backend != AUTO:
        is_known = isinstance(backend, str) and backend in _NEED_NOTHING
        return str(backend) if is_known else check_backend(backend, caller), "as asked"
    if (set_by_user := backend_setting()) != AUTO:
        return check_backend(set_by_user, caller), f"PTXGEN_BACKEND is {set_by_user}"
    if q.device != HOST:
        return "cuda", f"q is on {q.device_name}"
    if not copies_to_gpu:
        return "cpu", "the arrays are on the host"
    why_not = cuda.why_unavailable()
    return ("cpu", why_not) if why_not else ("cuda", "a GPU opens")


def for_gradients_of_host(backend: Backend, precision: Precision | None) -> Backend:
    """The backend of gradients of arrays on the host, computed for a framework whose caller asked for
    `backend`: "auto" is PTXGEN_BACKEND, else "cpu" also where a GPU opens, because kernels of gradients
    do not run on every GPU that attention runs on. With `precision` "tf32" it is what the forward pass
    took: its LSE is that of scores of tf32, which numpy does not have.
    """
    if backend == AUTO and precision != TF32.name and backend_setting() == AUTO:
        return "cpu"
    return backend


_NEED_NOTHING: Final = frozenset(BACKENDS) - {COMPILED}  # backends that no package must be there for


def check_device(
    caller: str, backend: str, q: ArrayView, stream: int | None, *, copies_to_gpu: bool = True
) -> None:
    """Refuse arrays on a GPU, and a stream, for a backend that computes on the host, and arrays on
    the host for a GPU unless the call `copies_to_gpu`.
    """
    if backend == "cuda":
        if q.device == HOST and not copies_to_gpu:
            raise LaunchError(
                f"{caller}: backend 'cuda' attends to a cache on a GPU, but q is on {q.device_name}; "
                "make the arrays there, or use backend='cpu'"
            )
        return
    if q.device != HOST:
        raise LaunchError(
            f"{caller}: backend {backend!r} computes on the host, but q is on {q.device_name}; copy "
            "the arrays to the host, or use backend='cuda'"
        )
    if stream is not None:
        raise stream_without_gpu(caller, backend)


def stream_without_gpu(caller: str, backend: str) -> LaunchError:
    """The error for a stream that is given to a backend which computes on the host."""
    return LaunchError(f"{caller}: stream is for a GPU, but the backend is {backend!r}; leave out the stream")
