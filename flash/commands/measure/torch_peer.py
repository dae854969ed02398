"""PyTorch's attention on a GPU, by each of its backends, for comparison with ours."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from flash.commands.measure.record import Job, Rows
from ptxgen.errors import BackendError, PtxGenError

_WARM_UP: Final = 3  # calls before a graph is captured (PyTorch's notes on CUDA graphs)

BACKENDS: Final = ("MATH", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "FLASH_ATTENTION")


def torch_with_gpu() -> tuple[Any, str]:
    """PyTorch and "", or None and why there is no PyTorch that uses a GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return None, f"no comparison with PyTorch: {error}; pip install torch"
    if not torch.cuda.is_available():
        return None, f"no comparison with PyTorch: torch {torch.__version__} sees no GPU"
    return torch, ""


def on_gpu(torch: Any, array: Any, ordinal: int) -> Any:
    """A copy of a host array of 16 or 32 bits on a GPU; bf16 travels as its bits, which PyTorch takes."""
    name = array.dtype.name
    if name == "bfloat16":
        return torch.from_numpy(array.view("int16")).to(f"cuda:{ordinal}").view(torch.bfloat16)
    return torch.from_numpy(array).to(f"cuda:{ordinal}")


def torch_contestants(
    torch: Any,
    tensors: Sequence[Any],
    causal: bool,
    backends: Sequence[str] = BACKENDS,
    tf32s: Sequence[bool] = (False, True),
) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Functions that compute the attention of q, k, v, by name, and remarks on backends that refuse them.

    Every backend is tried once, with TensorFloat-32 off (exact f32 products) and on, as `tf32s` has it;
    without any, as for 16-bit types, it is off, and names do not mention it.
    """
    attention = importlib.import_module("torch.nn.attention")
    contestants: dict[str, Callable[[], Any]] = {}
    remarks = []
    for name in backends:
        backend = getattr(attention.SDPBackend, name, None)
        if backend is None:
            remarks.append(f"torch {torch.__version__} has no backend {name}")
            continue
        for tf32 in tf32s or (False,):
            attend = _attend(torch, attention, backend, tensors, causal, tf32)
            label = f"torch {name} tf32={'on' if tf32 else 'off'}" if tf32s else f"torch {name}"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch warns about every refused backend
                    attend()
            except RuntimeError as error:
                remarks.append(f"{label} refuses {tensors[0].dtype} here: {first_line(error)}")
                continue
            contestants[label] = attend
    return contestants, remarks


def _attend(
    torch: Any, attention: Any, backend: Any, tensors: Sequence[Any], causal: bool, tf32: bool
) -> Callable[[], Any]:
    def run() -> Any:
        with attention.sdpa_kernel([backend]), torch.no_grad(), products_in_tf32(torch, tf32):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal, **grouped)

    grouped = {"enable_gqa": True} if tensors[0].shape[1] != tensors[1].shape[1] else {}
    return run


def sdpa_of_a_token(torch: Any, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """PyTorch's attention of a new token to all keys, with GQA, by the backend that PyTorch
    chooses.
    """

    def run() -> Any:
        with torch.no_grad():
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, enable_gqa=True)

    return run


def graphed(torch: Any, work: Callable[[], Any]) -> Callable[[], Any]:
    """A function that replays the launches of `work`, captured once in a CUDA graph. The work runs
    before on the same stream, because memory cannot be allocated while a graph is captured.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    replay: Callable[[], Any] = graph.replay
    return replay


@contextlib.contextmanager
def products_in_tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Allow or forbid TensorFloat-32 inside the context, and restore the settings afterwards."""
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [setting.allow_tf32 for setting in settings]
    try:
        for setting in settings:
            setting.allow_tf32 = allowed
        yield
    finally:
        for setting, usual in zip(settings, before, strict=True):
            setting.allow_tf32 = usual


def with_torch(job: Job) -> Job:
    """The job, which raises `BackendError` where PyTorch raises an error, such as for want of memory."""

    def run() -> Rows:
        try:
            return job.run()
        except RuntimeError as error:
            if isinstance(error, PtxGenError):
                raise
            raise BackendError(f"PyTorch: {first_line(error)}") from error

    return job._replace(run=run)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class."""
    return f"{error}".strip().split("\n", 1)[0] or type(error).__name__
