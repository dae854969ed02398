"""Measures the host time of a repeated launch: this project's Python, without driver and GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from benchmarks.measure.machine import MACHINE_REMARK, this_machine
from flash.cache.attention import DecodeStep, attention_with_kvcache
from flash.cache.cache import KVCache
from flash.commands.measure.record import US, Goal, Job, Rows, Setting, Work, measured
from flash.commands.measure.report import ROOT
from flash.functions import attention
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import view
from ptxgen.dsl import Pointer
from ptxgen.kernels.function import KernelFunction
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.types import f32, u32

GOAL_US: Final = 8.0
OWN_KERNEL_GOAL_US: Final = 6.0
OPERATOR_GOAL_US: Final = 15.0
SDPA_GOAL_US: Final = 30.0
TINY_GOAL_US: Final = 60.0
SHAPE: Final = (2, 4, 200, 64)
STEP_GOAL_US: Final = 10.0
CALL_GOAL_US: Final = 40.0
HEADS, KV_HEADS, DIM, SPLITS = 32, 8, 128, 4
PAGE_SIZES: Final = (0, 64)
CALLS_PER_SAMPLE: Final = 500
_FAKE: Final = ROOT / "tests" / "fake_driver.py"
# A driver older than every assembler: kernels then stay PTX text, which the fake driver reads.
_OLD_DRIVER: Final = 1000

LAUNCH_REMARKS: Final = (
    "processor time of one thread, with the recording fake driver, whose calls are answered from "
    "memory; what the driver itself takes comes on top (see driver calls)",
    "arrays are stand-ins with the attributes of CuPy arrays, of torch tensors, and of objects "
    "with __cuda_array_interface__ only, which does not say the device; out and stream are given",
    "decoding is of one token of one sequence with cupy arrays: by a DecodeStep, and by the "
    "function, which checks its arguments; appends, attends, merges",
    "`current` is whether the device's context is the thread's current one, as PyTorch and CuPy "
    "make it; if not, it is pushed and popped",
    MACHINE_REMARK,
)


def launch_jobs(quick: bool) -> list[Job]:
    """Jobs: repeated launches with arrays of three kinds and of a kernel made by `ptxgen.kernel`, the share
    of reading torch tensors, the calls of the adapter of PyTorch and on the CPU, and decoding.
    """
    samples = 5 if quick else 20
    cases = [(kind, True) for kind in _KINDS] + [("torch", False)]
    return [
        *(
            Job(f"launch {kind}", functools.partial(launches, kind, current, samples))
            for kind, current in cases
        ),
        Job("own kernel", functools.partial(own_kernel, samples)),
        Job("read tensors", functools.partial(readings, samples)),
        Job("torch operator", functools.partial(operator_calls, samples)),
        Job("tiny calls", functools.partial(tiny_calls, samples)),
        *(
            Job(
                f"decode page {page_size}" + (" turned" if rotary else ""),
                functools.partial(decoding, page_size, rotary, samples),
            )
            for page_size in PAGE_SIZES
            for rotary in (False, True)
        ),
        Job("this machine", lambda: [this_machine()]),
    ]


def launches(kind: str, current: bool, samples: int, calls: int = CALLS_PER_SAMPLE) -> Rows:
    """Microseconds of one repeated launch of a kernel on arrays of a kind.

    `current` says whether the device's context is current, as it is in a thread that has used the
    library the arrays are from.
    """
    try:
        driver = _fake_driver()
    except ImportError as error:
        return [f"launch overhead was not measured: {error}"]
    # A separate cache, because this kernel does not belong into the user's.
    config = AttentionConfig(SHAPE[-1], splits=1)  # or a grid of few CTAs takes a second kernel
    kernel = AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    content = np.zeros(SHAPE, np.float32)
    q, k, v, out = (_KINDS[kind](driver.place(content), SHAPE) for _ in range(4))

    def launch() -> None:
        kernel.launch(q, k, v, out=out, stream=0, backend="cuda")

    times, names = _measured(driver, launch, current, samples, calls)
    settings: dict[str, Setting] = {"arrays": kind, "current": current}
    return [
        measured(
            "Python of one launch", "us", times, config=settings, goal=Goal("<=", GOAL_US), headline=True
        ),
        measured("driver calls of one launch", "calls", [len(names)], config=settings),
        f"driver calls with {kind} arrays, current={current}: {', '.join(names)}",
    ]


def own_kernel(samples: int, calls: int = CALLS_PER_SAMPLE) -> Rows:
    """Microseconds of one repeated launch of a kernel made by `ptxgen.kernel`, with two arrays and a number,
    which are stand-ins for torch tensors.
    """
    try:
        driver = _fake_driver()
    except ImportError as error:
        return [f"a kernel of one's own was not measured: {error}"]

    def doubled(k: Any, X: Pointer[f32], Y: Pointer[f32], n: u32) -> None:  # type: ignore[type-arg, valid-type]
        with k.strided(n) as i:
            Y[i] = X[i] + X[i]

    kernel = KernelFunction(doubled, threads=128, cuda=CudaBackend(driver), cache=ModuleCache(None))
    content = np.zeros(SHAPE, np.float32)
    x, y = (_Tensor(driver.place(content), SHAPE) for _ in range(2))
    times, _ = _measured(driver, lambda: kernel[1](x, y, content.size, stream=0), True, samples, calls)
    goal = Goal("<=", OWN_KERNEL_GOAL_US)
    return [measured("Python of one launch of @ptxgen.kernel", "us", times, goal=goal, headline=True)]


def decoding(page_size: int, rotary: bool, samples: int, calls: int = CALLS_PER_SAMPLE) -> Rows:
    """Microseconds of a token of one sequence: the host makes room in the cache, copies lengths to
    the device, and launches the kernels that append, attend and merge. Measured for a `DecodeStep`
    and for `attention_with_kvcache`. `page_size` 0 is contiguous; `rotary`: with rotary embedding.
    """
    try:
        driver = _fake_driver()
    except ImportError as error:
        return [f"decoding was not measured: {error}"]
    room = (2 * samples + 4) * calls
    cache = KVCache(
        1, 1, KV_HEADS, DIM, room, page_size=page_size or None, backend="cuda", cuda=CudaBackend(driver)
    )
    shapes = [(1, heads, 1, DIM) for heads in (HEADS, HEADS, KV_HEADS, KV_HEADS)]
    q, out, k, v = (_CupyLike(driver.place(np.zeros(shape, np.float32)), shape) for shape in shapes)
    how: dict[str, Any] = {"layer": 0, "out": out, "stream": 0, "splits": SPLITS}
    if rotary:
        for name in ("rotary_cos", "rotary_sin"):
            shape = (room, DIM // 2)
            how[name] = _CupyLike(driver.place(np.zeros(shape, np.float32)), shape)
    step = DecodeStep(q, cache, k, v, **how)

    def once() -> None:
        attention_with_kvcache(q, cache, k, v, **how)

    results: Rows = []
    for name, work, goal in (
        ("Python of one decode step", step, Goal("<=", STEP_GOAL_US)),
        ("Python of one attention_with_kvcache", once, Goal("<=", CALL_GOAL_US)),
    ):
        times, names = _measured(driver, work, True, samples, calls)
        settings: dict[str, Setting] = {"page": page_size, "splits": SPLITS, "turned": rotary}
        results += [
            measured(name, "us", times, config=settings, goal=goal, headline=True),
            f"driver calls of it with page={page_size}, turned={rotary}: {', '.join(names)}",
        ]
    return results


def _fake_driver() -> Any:
    return load_fake_driver().FakeDriver(version=_OLD_DRIVER)


def _measured(
    driver: Any, work: Work, current: bool, samples: int, calls: int
) -> tuple[list[float], list[str]]:
    """Microseconds of one call of `work`, and the names of the driver functions that it calls."""
    with _recording(driver):
        work()
        if current:
            driver.stack.append(driver.context_of(0))
        driver.calls.clear()
        work()
        names = driver.names()
        answer_at_once(driver, names)
        work()
        times = [_cpu_seconds(_repeated(work, calls)) / calls for _ in range(samples)]
    return [t * US for t in times], names


@contextlib.contextmanager
def _recording(driver: Any) -> Iterator[None]:
    """Have the fake driver record calls inside the `with` block, and simulate again after it."""
    try:
        yield
    finally:
        for name in [name for name in vars(driver) if name.startswith("cu")]:
            delattr(driver, name)
        driver.stack.clear()


def readings(samples: int, calls: int = CALLS_PER_SAMPLE) -> Rows:
    """Microseconds that a launch takes to read its four arrays: stand-ins, or real tensors."""
    arrays: dict[str, list[object]] = {"stand-ins": [_Tensor(256, SHAPE) for _ in range(4)]}
    remarks: Rows = []
    try:
        torch: Any = importlib.import_module("torch")
        arrays["tensors on the CPU"] = [torch.empty(SHAPE, device="cpu") for _ in range(4)]
    except ImportError as error:
        remarks.append(f"reading real torch tensors was not measured: {error}; pip install torch")

    def read(four: list[object]) -> None:
        for array in four:
            view(array, "array")

    def read_attributes(four: list[Any]) -> None:
        for t in four:
            _ = t.is_cuda and t.get_device(), t.layout, t.is_neg(), t.dtype, t.requires_grad
            _ = t.data_ptr(), t.shape, t.stride()

    for name, four in arrays.items():
        work = _repeated(functools.partial(read_attributes, four), calls)
        work()
        times = [_cpu_seconds(work) / calls * US for _ in range(samples)]
        remarks.append(measured("the attributes of four arrays alone", "us", times, config={"arrays": name}))
        work = _repeated(functools.partial(read, four), calls)
        work()
        times = [_cpu_seconds(work) / calls * US for _ in range(samples)]
        remarks.append(measured("of it reading four arrays", "us", times, config={"arrays": name}))
    return remarks


def operator_calls(samples: int, calls: int = CALLS_PER_SAMPLE) -> Rows:
    """Microseconds that calls of the adapter's `attention` and `scaled_dot_product_attention` take beyond
    `AttentionKernel.launch`, on tensors without a query, for which nothing is computed.
    """
    try:
        torch: Any = importlib.import_module("torch")
        adapter: Any = importlib.import_module("flash.adapters.torch")
    except ImportError as error:
        return [f"the operator of PyTorch was not measured: {error}; pip install torch"]
    batch, heads, rows, dim = SHAPE
    q, k = (torch.empty(batch, heads, n, dim, device="cpu") for n in (0, rows))
    kernel = AttentionKernel(AttentionConfig(dim))
    direct = _repeated(lambda: kernel.launch(q, k, k, backend="cpu"), calls)
    adapter_calls: dict[str, tuple[Work, float]] = {
        "torch's operator": (lambda: adapter.attention(q, k, k, backend="cpu"), OPERATOR_GOAL_US),
        "scaled_dot_product_attention": (lambda: adapter.scaled_dot_product_attention(q, k, k), SDPA_GOAL_US),
    }
    results: Rows = []
    for name, (call, most) in adapter_calls.items():
        through = _repeated(call, calls)
        direct()
        through()
        times = [(_cpu_seconds(through) - _cpu_seconds(direct)) / calls * US for _ in range(samples)]
        goal = Goal("<=", most)
        results.append(measured(f"Python of {name} beyond a launch", "us", times, goal=goal, headline=True))
    return results


def tiny_calls(samples: int, calls: int = CALLS_PER_SAMPLE) -> Rows:
    """Microseconds of `flash.attention` of one query and one key on the CPU, where little is computed."""
    q, k, v = (np.ones((1, 1, 1, DIM), np.float32) for _ in range(3))
    work = _repeated(lambda: attention(q, k, v, backend="cpu"), calls)
    work()
    times = [_cpu_seconds(work) / calls * US for _ in range(samples)]
    return [measured("a tiny call on the CPU", "us", times, goal=Goal("<=", TINY_GOAL_US), headline=True)]


def load_fake_driver() -> ModuleType:
    """The module tests/fake_driver.py; raises ImportError without it, pytest or cuda-python."""
    spec = importlib.util.spec_from_file_location("bench_fake_driver", _FAKE)
    if spec is None or spec.loader is None or not _FAKE.exists():
        raise ImportError("tests/fake_driver.py is not there; run in a checkout of the repository")
    for needed in ("pytest", "cuda.bindings"):
        if not _installed(needed):
            raise ImportError(f"the fake driver needs {needed}; pip install -e '.[test]'")
    module = importlib.util.module_from_spec(spec)
    # Registered, because dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def answer_at_once(driver: Any, names: list[str]) -> None:
    """Let these driver functions return their current results, without recording or simulating.

    A simulated launch decodes all arguments, which takes ten times as long as the work to measure.
    """
    for name in dict.fromkeys(names):
        status = driver.CUresult.CUDA_SUCCESS
        answer = (status,) if name == "cuLaunchKernel" else _last_answer(driver, name)
        setattr(driver, name, _answering(answer))


def _last_answer(driver: Any, name: str) -> Any:
    arguments = next(call.arguments for call in reversed(driver.calls) if call.name == name)
    return getattr(driver, name)(*arguments)


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_: answer


def _cpu_seconds(work: Work) -> float:
    """Processor time of one call, which waits for nothing; other processes do not count."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def _repeated(work: Work, times: int) -> Work:
    def run() -> None:
        for _ in range(times):
            work()

    return run


# -------------------------------------------------------------------------------- stand-ins


class _Interface:
    """A stand-in for a GPU array that only has `__cuda_array_interface__`."""

    def __init__(self, pointer: int, shape: tuple[int, ...]) -> None:
        self._pointer = pointer
        self.shape = shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self._pointer, False),
            "shape": self.shape,
            "strides": None,
            "typestr": "<f4",
            "version": 3,
        }


class _CupyLike(_Interface):
    """A stand-in for a CuPy array, which has `__cuda_array_interface__` and its device."""

    device = SimpleNamespace(id=0)


class _TorchLike:
    """A stand-in with the attributes of a torch GPU tensor that a launch reads."""

    is_cuda = True
    layout = "torch.strided"
    dtype = "torch.float32"
    requires_grad = False

    def __init__(self, pointer: int, shape: tuple[int, ...]) -> None:
        self._pointer = pointer
        self.shape = shape
        _, heads, rows, columns = shape
        self._stride = (heads * rows * columns, rows * columns, columns, 1)

    def data_ptr(self) -> int:
        return self._pointer

    def stride(self) -> tuple[int, ...]:
        return self._stride

    def get_device(self) -> int:
        return 0

    def is_neg(self) -> bool:
        return False


# A tensor is recognised by the name of its class, so that torch need not be imported.
_Tensor = type("Tensor", (_TorchLike,), {"__module__": "torch"})

_KINDS: Final[dict[str, Callable[[int, tuple[int, ...]], Any]]] = {
    "torch": _Tensor,
    "cupy": _CupyLike,
    "interface": _Interface,
}
