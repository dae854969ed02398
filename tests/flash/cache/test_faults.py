"""A call that raises has changed nothing, whichever of its steps raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDriver
from faults import steps_of, sweep
from judge import rounded_normal
from kernel_runs import nightly

import flash
from flash.cache.host_memory import HostMemory
from flash.cpu.threads import BlasThreads
from flash.host.results import DeviceArray
from flash.operands.dtypes import DTYPES
from flash.pages.placement import Paged
from flash.problem.rotary import rotary_tables
from ptxgen.errors import BackendError
from ptxgen.runtime.cuda import CudaBackend

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("unproved")

LAYERS, BATCH, HEADS, KV_HEADS, DIM, CAPACITY, PAGE = 2, 4, 2, 1, 16, 16, 4
BACKENDS = ("cpu", "interpreter", "cuda")
ON_EACH = pytest.mark.parametrize("backend", BACKENDS)
FAULTS = 4  # of a call, in the gate


@dataclass
class Place:
    """A backend, and for "cuda" the fake GPU that it computes on."""

    backend: str
    driver: FakeDriver | None = None
    cuda: CudaBackend | None = None

    @property
    def driver_calls(self) -> int:
        """How many there were."""
        return 0 if self.driver is None else len(self.driver.calls)

    def put(self, array: Array) -> Any:
        """The array where the backend reads it."""
        return array if self.driver is None else on_device(self.driver, array)

    def bits(self, result: Any) -> Any:
        """What a call gave, as bytes."""
        if isinstance(result, tuple):
            return tuple(self.bits(each) for each in result)
        if isinstance(result, DeviceArray):
            return result.numpy().tobytes()
        return result.tobytes() if isinstance(result, np.ndarray) else result

    def cache(self, **how: Any) -> flash.KVCache:
        """Lengths 5, 3, 5 and 0 in both layers, of which the last is a copy of the first."""
        built = flash.KVCache(
            LAYERS, BATCH, KV_HEADS, DIM, CAPACITY, backend=self.backend, cuda=self.cuda, **how
        )
        if isinstance(built.memory, HostMemory):  # what `grow` lets count is not written
            built.memory.k[...] = built.memory.v[...] = 0
        if built.dtype == "e4m3":
            built.set_scales([[0.5], [2.0]], 0.03)
        for layer in range(LAYERS):
            _, k, v = tokens(5, layer, 2)
            built.append(layer, k, v, [0, 1], counts=[5, 3])
        built.fork(0)
        built.update(0)
        return built


@pytest.fixture
def place(backend: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    if backend != "cuda":
        return Place(backend)

    without_assembler(monkeypatch)
    driver = interpreting(FakeDriver())
    return Place(backend, driver, CudaBackend(driver))


def tokens(count: int, seed: int, items: int = BATCH) -> list[Array]:
    rng, f32 = np.random.default_rng(seed), DTYPES["f32"].numpy
    return [rounded_normal(rng, (items, h, count, DIM), f32) for h in (HEADS, KV_HEADS, KV_HEADS)]


def state_of(cache: flash.KVCache, driver: FakeDriver | None, not_written: int = 0) -> dict[str, Any]:
    """All that a user or a kernel can see of a cache, and all that it will do next. The last rows
    of sequences may count though they are not written yet.
    """
    lengths = cache.lengths - not_written
    result: dict[str, Any] = {
        "lengths": cache.lengths.tolist(),
        "rows": [
            [rows[:, : lengths[layer, b]].tobytes() for rows in cache.rows(layer, b)]
            for layer in range(cache.layers)
            for b in range(cache.batch)
        ],
    }
    if cache.scales is not None:
        result["scales"] = [scale.tolist() for scale in cache.scales]
    placement = cache.placement
    if isinstance(placement, Paged):
        pool = placement.pool
        result["table"] = placement.table.tolist()
        result["counts"] = list(placement._counts)
        result["users"] = [pool.users(page) for page in range(pool.pages)]
        result["free"] = list(pool._free)
    if driver is not None:
        there = cache.memory.arrays(0)  # where lengths of all layers begin
        result["lengths there"] = driver.fetch(there.lengths.pointer, cache.lengths).tolist()
        if there.block_table is not None:
            table = driver.fetch(there.block_table.pointer, placement.table)
            result["table there"] = table.tolist()
    return result


# Prepares a call on a cache: what does it.
Case = Callable[[Place, flash.KVCache], Callable[[], Any]]


def _append(which: list[int] | None, counts: list[int] | None) -> Case:
    def do(_: Place, cache: flash.KVCache) -> Callable[[], Any]:
        _, k, v = tokens(3, 7, BATCH if which is None else len(which))
        return lambda: cache.append(0, k, v, which, counts=counts)

    return do


def _attend(which: list[int] | None, **how: Any) -> Case:
    def do(place: Place, cache: flash.KVCache) -> Callable[[], Any]:
        q, k, v = (place.put(x) for x in tokens(2, 8, BATCH if which is None else len(which)))
        arguments = {n: place.put(x) if isinstance(x, np.ndarray) else x for n, x in how.items()}
        return lambda: flash.attention_with_kvcache(
            q, cache, k, v, layer=0, cache_batch_idx=which, **arguments
        )

    return do


def _step(which: list[int] | None, part: str) -> Case:
    def do(place: Place, cache: flash.KVCache) -> Callable[[], Any]:
        q, k, v = (place.put(x) for x in tokens(2, 8, BATCH if which is None else len(which)))

        def make() -> Any:
            return flash.DecodeStep(q, cache, k, v, layer=0, cache_batch_idx=which, splits=2, return_lse=True)

        if part == "made":
            return lambda: (make(), None)[1]
        step = make()
        if part == "launch":
            step.advance()

            def launch() -> Any:
                step.launch()
                return step.out, step.lse

            return launch
        return {"call": step, "advance": step.advance}[part]

    return do


COS, SIN = rotary_tables(CAPACITY, DIM)
CASES: dict[str, Case] = {
    "append": _append(None, [3, 0, 3, 2]),
    "append to some": _append([1, 0], None),
    "grow": lambda _, cache: lambda: cache.grow(3, [1, 2]),
    "truncate": lambda _, cache: lambda: cache.truncate([3, 4, 1], [1, 2, 0]),
    "reset": lambda _, cache: lambda: cache.reset(),
    "reset one": lambda _, cache: lambda: cache.reset(1),
    "fork": lambda _, cache: lambda: cache.fork(1),
    "reorder": lambda _, cache: lambda: cache.reorder([1, 0, 0], [0, 1, 3]),
    "attend": _attend(None),
    "attend by some": _attend([2, 1], splits=2, return_lse=True),
    "attend turned": _attend([2, 1], rotary_cos=COS, rotary_sin=SIN, leftpad=[1, 0]),
    "step made": _step([2, 1], "made"),
    "step": _step(None, "call"),
    "step of some": _step([2, 1], "call"),
    "step advance": _step([2, 1], "advance"),
    "step launch": _step(None, "launch"),
}


# Those in which the interpreter, or a GPU that it plays, does not attend.
QUICK = {name for name in CASES if not name.startswith(("attend", "step"))}
QUICK |= {"step made", "step advance"}


@dataclass
class Done:
    """What a call without a fault gives, what it leaves, and how many steps it takes."""

    bits: Any
    state: dict[str, Any]
    steps: int
    driver_calls: int


def done(place: Place, name: str, page_size: int | None, steps: str = "calls") -> Done:
    """The same call twice, on caches of their own: the first makes kernels."""
    warm, cache = (place.cache(page_size=page_size) for _ in range(2))
    CASES[name](place, warm)()
    call = CASES[name](place, cache)
    before = place.driver_calls
    result, count = steps_of(call, steps)
    after = place.driver_calls
    return Done(place.bits(result), state_of(cache, place.driver), count, after - before)


def sweep_case(place: Place, name: str, page_size: int | None, faults: int | None = None, **how: Any) -> None:
    """So many faults in a call, or one at each step, change nothing; then it gives what it does
    without.
    """
    wanted = done(place, name, page_size, how.get("steps", "calls"))
    stride = 1 if faults is None else max(wanted.steps // faults, 1)
    cache = place.cache(page_size=page_size)
    call = CASES[name](place, cache)
    not_written = 2 if name == "step launch" else 0
    state = functools.partial(state_of, cache, place.driver, not_written)
    got, met = sweep(call, state, stride=stride, **how)
    assert met >= min(wanted.steps, faults or wanted.steps) // 2 > 0
    assert place.bits(got) == wanted.bits
    assert state_of(cache, place.driver) == wanted.state


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, backend) for name in CASES for backend in BACKENDS if backend == "cpu" or name in QUICK],
)
def test_a_call_that_raises_has_changed_nothing(name: str, place: Place) -> None:
    sweep_case(place, name, PAGE, FAULTS)


@pytest.mark.nightly
@ON_EACH
@pytest.mark.parametrize(
    ("name", "page_size"),
    [(name, size) for name in CASES for size in (None, PAGE) if size or name != "reorder"],
)
@pytest.mark.parametrize("steps", ["calls", "lines"])
def test_faults_all_over_a_call_change_nothing(
    name: str, place: Place, page_size: int | None, steps: str
) -> None:
    exhaustive = place.backend == "cpu" or name in QUICK
    sweep_case(place, name, page_size, None if exhaustive else 40, steps=steps)


@ON_EACH
def test_an_interrupt_changes_nothing_either(place: Place) -> None:
    sweep_case(place, "append to some", PAGE, 4 * FAULTS, steps="lines", error=KeyboardInterrupt)


@pytest.mark.parametrize("backend", ["cpu"])
def test_an_interrupt_at_the_last_line_of_a_call_changes_nothing(place: Place) -> None:
    sweep_case(place, "reset", PAGE, steps="lines", error=KeyboardInterrupt)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of cuMemFree
@pytest.mark.parametrize("backend", ["cuda"])
@pytest.mark.parametrize(
    ("name", "every"), [("append to some", 7), ("grow", 3), *(nightly(name, 1) for name in CASES)]
)
def test_a_gpu_that_fails_at_any_call_has_changed_nothing(name: str, every: int, place: Place) -> None:
    driver = place.driver
    wanted = done(place, name, PAGE)
    for n in range(1, wanted.driver_calls + 1, every):
        cache = place.cache(page_size=PAGE)
        call, before = CASES[name](place, cache), state_of(cache, driver)
        driver.fail(n, "CUDA_ERROR_OUT_OF_MEMORY")
        try:
            got = call()
        except BackendError:
            assert state_of(cache, driver) == before, f"changed by a failure of call {n}"
            got = call()
        assert place.bits(got) == wanted.bits
        assert state_of(cache, driver) == wanted.state
        driver._faults.clear()


@ON_EACH
def test_a_sequence_that_shares_a_page_never_sees_that_another_could_not_write(place: Place) -> None:
    cache = place.cache(page_size=PAGE)
    _, k, v = tokens(9, 3, 1)
    before = cache.keys(0, 2).tobytes()
    sweep(lambda: cache.append(0, k, v, [0]), lambda: cache.keys(0, 2).tobytes(), stride=29)
    assert cache.lengths[0].tolist() == [14, 3, 5, 0]
    assert cache.keys(0, 2).tobytes() == before
    np.testing.assert_array_equal(cache.keys(0, 0)[:, 5:], k[0])


@ON_EACH
def test_scales_are_set_both_or_neither(place: Place) -> None:
    def made() -> flash.KVCache:
        return flash.KVCache(
            LAYERS, BATCH, KV_HEADS, DIM, CAPACITY, dtype="e4m3", backend=place.backend, cuda=place.cuda
        )

    cache, wanted = made(), made()
    wanted.set_scales([[2.0], [3.0]], 0.25)
    _, met = sweep(lambda: cache.set_scales([[2.0], [3.0]], 0.25), lambda: state_of(cache, place.driver))
    assert met > 5
    assert state_of(cache, place.driver) == state_of(wanted, place.driver)


@pytest.mark.parametrize("backend", ["cpu", nightly("interpreter"), nightly("cuda")])
def test_new_rows_in_arrays_of_the_caller_are_written_by_the_call_that_comes_through(place: Place) -> None:
    config = flash.AttentionConfig(head_dim=DIM, causal=True, tile=16)
    kernel = flash.DecodeKernel(config, cuda=place.cuda)
    rng = np.random.default_rng(4)
    q, k, v = tokens(2, 5, 2)
    first = [rng.standard_normal((2, KV_HEADS, 12, DIM), dtype=np.float32) for _ in range(2)]
    used = np.array([7, 12], np.int32)

    def prepared() -> tuple[Callable[[], Any], Callable[[], Any]]:
        caches = [place.put(x.copy()) for x in first]
        arguments, lengths = [place.put(x) for x in (q, k, v)], place.put(used)

        def call() -> Any:
            return kernel.launch(
                arguments[0], *caches, *arguments[1:], seqused_k=lengths, backend=place.backend, splits=2
            )

        def rows() -> list[Array]:
            if place.driver is None:
                return caches
            pairs = zip(caches, first, strict=True)
            return [place.driver.fetch(there.pointer, like) for there, like in pairs]

        def seen() -> Any:
            old = used - 2
            return [x[b, :, : old[b]].tobytes() for x in rows() for b in range(2)]

        return call, seen

    warm, _ = prepared()
    warm()
    one, _ = prepared()
    wanted, count = steps_of(one)
    call, seen = prepared()
    got, met = sweep(call, seen, stride=max(count // 3, 1))
    assert met >= 2
    assert place.bits(got) == place.bits(wanted)


@ON_EACH
def test_a_cache_that_could_not_be_made_leaves_nothing_behind(place: Place) -> None:
    def memory() -> int:
        return 0 if place.driver is None else len(place.driver.memory)

    built, met = sweep(lambda: place.cache(page_size=PAGE), memory, stride=97)
    assert met > 2
    assert state_of(built, place.driver) == state_of(place.cache(page_size=PAGE), place.driver)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of cuMemFree
@pytest.mark.parametrize("backend", ["cuda"])
def test_memory_of_a_gpu_is_given_back_whichever_of_its_calls_fails(place: Place) -> None:
    driver = place.driver
    q, k, v = tokens(3, 6)
    driver.on_launch = lambda _: None  # what is computed does not matter
    kernel = flash.AttentionKernel(flash.AttentionConfig(head_dim=DIM), cuda=place.cuda)
    kernel.launch(q, k, v, backend="cuda")
    assert not driver.memory
    driver.calls.clear()
    kernel.launch(q, k, v, backend="cuda")
    for n in range(1, len(driver.calls) + 1):
        driver.fail(n, "CUDA_ERROR_OUT_OF_MEMORY")
        with pytest.raises(BackendError) as caught:
            kernel.launch(q, k, v, backend="cuda")
        # What cannot be freed is all that stays.
        assert len(driver.memory) <= str(caught.value).startswith("cannot free")
        driver.memory.clear()


class Library:
    """A BLAS of so many threads."""

    def __init__(self, threads: int) -> None:
        self.num_threads = threads

    def set_num_threads(self, threads: int) -> None:
        self.num_threads = threads


def test_blas_has_its_threads_after_a_call_that_raised() -> None:
    # A fault at each line would also stop `with self._lock` before it gives the lock back.
    blas = BlasThreads()
    libraries = [Library(4), Library(2)]
    blas._libraries = SimpleNamespace(lib_controllers=libraries)

    def call() -> int:
        with blas.one_each() as usual:
            assert [library.num_threads for library in libraries] == [1, 1]
            return usual

    def threads() -> list[int]:
        with blas.one_each():  # whatever the one before has left
            pass
        return [library.num_threads for library in libraries]

    got, met = sweep(call, threads)
    assert (got, threads()) == (4, [4, 2])
    assert met >= 5
