"""KV caches and their kernels on a GPU: small problems on a fake driver whose GPU is the
interpreter, and all of them on a real one, where there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaArray, interpreting
from fake_driver import FakeDriver
from judge import assert_items_are_accurate

import flash
from flash.error_bound import PARTS_OF_F32, arithmetic_of
from flash.operands.dtypes import DTYPES, FP8_DTYPES, INPUT_DTYPES, OF_ARRAYS
from flash.problem.features import MAX_SPLITS
from flash.problem.rotary import rotary_tables, rotated
from ptxgen.runtime.cuda import CudaBackend, cuda_backend

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = np.ndarray[Any, Any]

ON_HARDWARE = pytest.mark.gpu
HEADS, KV_HEADS, DIM = 4, 2, 16
E4M3_FROM = (8, 9)  # compute capability
CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


@dataclass(frozen=True)
class Gpu:
    """A backend, and which of its streams to use; stream 0 waits for all."""

    cuda: CudaBackend

    def there(self, array: Array) -> Any:
        return flash.to_device(array, cuda=self.cuda)

    def write(self, there: Any, values: Array) -> None:
        """Other numbers in an array of the same type and size."""
        dense = np.ascontiguousarray(values)
        self.cuda.copy_to_device(there.pointer, dense.ctypes.data, dense.nbytes, ordinal=0)
        self.cuda.synchronize(ordinal=0)

    def capability(self) -> tuple[int, int]:
        device = self.cuda.device_properties(self.cuda.current_device())
        return device.major, device.minor

    def cache(self, dtype: str, page_size: int | None, dim: int, capacity: int) -> flash.KVCache:
        """An empty one of two layers and three sequences, whose rows are no numbers."""
        if dtype == "e4m3" and self.capability() < E4M3_FROM:
            pytest.skip(f"this GPU has no e4m3: compute capability {self.capability()}")
        built = flash.KVCache(
            2, 3, KV_HEADS, dim, capacity, dtype=dtype, page_size=page_size, backend="cuda", cuda=self.cuda
        )
        for layer in range(2):
            arrays = built.arrays(layer)
            for array in (arrays.k, arrays.v):
                nans = np.full(array.size * built.element.nbytes, 0xFF, np.uint8)
                self.cuda.copy_to_device(array.pointer, nans.ctypes.data, nans.nbytes, ordinal=0)
                self.cuda.synchronize(ordinal=0)
        if dtype in FP8_DTYPES:
            built.set_scales([[0.5, 2.0], [1.0, 0.7]], 0.03)
        return built


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU of the fake driver, on which the interpreter runs launches."""
    driver = interpreting(FakeDriver(version=1000))  # too old for cubins: programs stay text
    gpu = Gpu(CudaBackend(driver))
    monkeypatch.setattr("flash.decode.merge.cuda_backend", lambda: gpu.cuda)
    return gpu


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """The fake one, or the real one in tests that are marked for it."""
    if request.node.get_closest_marker("gpu") is None:
        result: Gpu = request.getfixturevalue("fake")
        return result
    return Gpu(cuda_backend())


def few_and_all(few: list[Any], every: Iterator[tuple[Any, ...]]) -> list[Any]:
    """Parameters for the fake GPU, and those for a real one."""
    return [*few, *(pytest.param(*each, marks=ON_HARDWARE) for each in every)]


def rows(dtype: str, count: int, dim: int, seed: int, items: int = 3) -> tuple[Array, ...]:
    """q, k and v of `count` new tokens; those for a cache of a narrow type are f16."""
    element = DTYPES.get(dtype, DTYPES["f16"]).numpy
    rng = np.random.default_rng(seed)
    shapes = [(items, heads, count, dim) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return tuple(rng.standard_normal(shape, np.float32).astype(element) for shape in shapes)


def assert_attends(out: Array, lse: Array | None, q: Array, rows: Any, **how: Any) -> None:
    """Each item attends to its own K and V in `rows`."""
    arithmetic = arithmetic_of(OF_ARRAYS[str(q.dtype)].name, parts=PARTS_OF_F32)
    assert_items_are_accurate(out, lse, q, rows, causal=True, arithmetic=arithmetic, **how)


def in_pages(array: Array, page_size: int) -> Array:
    """The rows of sequences in pages, one after another."""
    batch, heads, rows, dim = array.shape
    pages = array.reshape(batch, heads, rows // page_size, page_size, dim).swapaxes(1, 2)
    return pages.reshape(-1, heads, page_size, dim)


# ------------------------------------------------------------------------- attention_with_kvcache


@pytest.mark.sample(50)
@pytest.mark.parametrize(
    ("dtype", "page_size", "rotary", "dim", "steps"),
    few_and_all(
        [
            ("f32", None, "halves", DIM, (5, 1)),
            ("bf16", 4, "neighbours", DIM, (5, 1)),
            ("f16", 16, "", DIM, (5, 3)),
            ("e4m3", 4, "halves", DIM, (5, 1)),
            ("e5m2", None, "halves", DIM, (5, 1)),
        ],
        itertools.product(
            INPUT_DTYPES, (None, 16, 64, 256), ("", "halves", "neighbours"), (64, 128), [(300, 1, 1, 3)]
        ),
    ),
)
def test_tokens_are_appended_and_attended_to_on_the_gpu(
    dtype: str, page_size: int | None, rotary: str, dim: int, steps: tuple[int, ...], gpu: Gpu
) -> None:
    cache, layer, capacity = gpu.cache(dtype, page_size, dim, sum(steps)), 1, sum(steps)
    tables = rotary_tables(capacity, dim // 2)
    how: dict[str, Any] = {}
    if rotary:
        how = {f"rotary_{name}": gpu.there(x) for name, x in zip(("cos", "sin"), tables, strict=True)}
        how["rotary_interleaved"] = rotary == "neighbours"
    padding = [2, 0, 1]
    seen = 0
    for count in steps:
        q, k, v = rows(dtype, count, dim, seed=seen)
        out, lse = flash.attention_with_kvcache(
            *map(gpu.there, (q,)),
            cache,
            *map(gpu.there, (k, v)),
            layer=layer,
            leftpad=padding,
            splits=2 if count == 1 else "auto",
            return_lse=True,
            **how,
        )
        got, got_lse = out.numpy(), lse.numpy()
        for b, left in enumerate(padding):
            mine = slice(b, b + 1)
            rotation, new = q[mine], k[mine]
            if rotary:
                at = np.maximum(np.arange(seen, seen + count) - left, 0)[None]
                rotation, new = (
                    rotated(x, *tables, at, interleaved=rotary == "neighbours").astype(q.dtype)
                    for x in (rotation, new)
                )
            keys, values = cache.keys(layer, b), cache.values(layer, b)
            if dtype not in FP8_DTYPES:
                np.testing.assert_array_equal(keys[:, seen:], new[0])
                np.testing.assert_array_equal(values[:, seen:], v[b])
            first = max(left - seen, 0)  # a query of padding sees nothing
            of_item = [(keys[None, :, left:], values[None, :, left:])]
            assert_attends(got[mine, :, first:], got_lse[mine, :, first:], rotation[:, :, first:], of_item)
        seen += count
    assert cache.lengths.tolist() == [[0] * 3, [capacity] * 3]


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("dtype", "page_size"),
    few_and_all(
        [("f32", None), ("bf16", 4), ("e4m3", 4)], itertools.product(INPUT_DTYPES, (None, 1, 16, 64, 256))
    ),
)
def test_rows_from_the_host_and_from_the_gpu_become_the_same_bits(
    dtype: str, page_size: int | None, gpu: Gpu
) -> None:
    kept = []
    for location in (gpu.there, np.asarray):
        cache = gpu.cache(dtype, page_size, DIM, 40)
        for count in (7, 1, 2):
            q, k, v = rows(dtype, count, DIM, seed=count, items=2)
            flash.attention_with_kvcache(
                gpu.there(q), cache, location(k), location(v), layer=0, cache_batch_idx=[2, 0]
            )
        assert cache.lengths.tolist() == [[10, 0, 10], [0, 0, 0]]
        kept.append([cache.keys(0, b).tobytes() + cache.values(0, b).tobytes() for b in (0, 2)])
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("dtype", "page_size"), few_and_all([("f16", 4)], itertools.product(INPUT_DTYPES, (None, 16, 64)))
)
def test_forks_and_cuts_are_seen_by_the_kernels(dtype: str, page_size: int | None, gpu: Gpu) -> None:
    cache = gpu.cache(dtype, page_size, DIM, 40)
    q, k, v = rows(dtype, 9, DIM, seed=1, items=1)
    flash.attention_with_kvcache(*map(gpu.there, (q,)), cache, k, v, layer=0, cache_batch_idx=[1])
    cache.append(1, k, v, [1])
    cache.truncate(6, [1])
    both = [1, cache.fork(1)]
    if page_size:  # 2, which is empty, and 1 change places
        cache.reorder([1, 2], [2, 1])
        both[0] = 2
    q, k, v = rows(dtype, 1, DIM, seed=2, items=2)
    out, lse = flash.attention_with_kvcache(
        gpu.there(q), cache, gpu.there(k), gpu.there(v), layer=0, cache_batch_idx=both, return_lse=True
    )
    of_items = [(cache.keys(0, sequence)[None], cache.values(0, sequence)[None]) for sequence in both]
    assert [keys.shape[2] for keys, _ in of_items] == [7, 7]
    assert_attends(out.numpy(), lse.numpy(), q, of_items)


# ------------------------------------------------------------------------------------ DecodeKernel

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": (20, None)},
    "scores": {"softcap": 3.0, "sink": True, "alibi": True},
}


@pytest.mark.parametrize(
    ("dtype", "page_size", "features", "seq_q", "splits"),
    few_and_all(
        [("f32", 0, "scores", 1, "auto"), ("bf16", 4, "window", 2, 3)],
        itertools.product(DTYPES, (0, 1, 16, 128), FEATURES, (1, 4, 16), ("auto", 1, 5)),
    ),
)
def test_caches_of_any_origin_are_attended_to(
    dtype: str, page_size: int, features: str, seq_q: int, splits: int | str, gpu: Gpu
) -> None:
    capacity, used, padding, index = 256, [200, 33, 17], [3, 0, 1], [2, 0, 1]
    rng = np.random.default_rng(seq_q)
    q, k, v = rows(dtype, capacity, DIM, seed=3)
    q = q[:, :, :seq_q].copy()
    how: dict[str, Any] = dict(FEATURES[features])
    operands: dict[str, Array] = {}
    if how.get("sink"):
        operands["sink"] = rng.standard_normal(HEADS).astype(np.float32)
    if how.get("alibi"):
        operands["alibi_slopes"] = np.float32([0.5, 0.25, 0.1, 0])
    kernel = flash.DecodeKernel(flash.AttentionConfig(DIM, dtype=dtype, causal=True, **how), cuda=gpu.cuda)
    numbers: dict[str, Any] = {"seqused_k": used, "leftpad_k": padding, "cache_batch_idx": index}
    places = [k.copy(), v.copy()]
    for array in places:
        for b, sequence in enumerate(index):
            array[sequence, :, used[b] :] = np.nan
    if page_size:
        columns = capacity // page_size
        order = rng.permutation(3 * columns)
        numbers["block_table"] = np.argsort(order).reshape(3, columns)
        places = [in_pages(x, page_size)[order] for x in places]
    out, lse = kernel.launch(
        *map(gpu.there, (q, *places)),
        **{name: gpu.there(np.array(x, np.int32)) for name, x in numbers.items()},
        **{name: gpu.there(x) for name, x in operands.items()},
        return_lse=True,
        splits=splits,
    )
    reference = {name: value for name, value in how.items() if name in ("window", "softcap")}
    at = [(slice(s, s + 1), slice(None), slice(*rows)) for s, *rows in zip(index, padding, used, strict=True)]
    of_items = [(k[rows].copy(), v[rows].copy()) for rows in at]
    assert_attends(out.numpy(), lse.numpy(), q, of_items, **reference, **operands)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", few_and_all([0, 16], iter([(0,), (16,)])))
def test_with_fixed_splits_bits_do_not_depend_on_the_batch(page_size: int, gpu: Gpu) -> None:
    q, k, v = rows("f16", 64, DIM, seed=4)
    q, used = q[:, :, :1].copy(), np.array([64, 10, 33], np.int32)
    kernel = flash.DecodeKernel(flash.AttentionConfig(DIM, dtype="f16", causal=True), cuda=gpu.cuda)
    table = np.arange(12, dtype=np.int32).reshape(3, 4)

    def attend(items: slice) -> Array:
        where, places = {}, [k[items], v[items]]
        if page_size:
            where = {"block_table": gpu.there(table[items])}
            places = [in_pages(x, 16) for x in (k, v)]
        out = kernel.launch(
            *map(gpu.there, (q[items], *places)), seqused_k=gpu.there(used[items]), splits=3, **where
        )
        result: Array = out.numpy()
        return result

    whole = attend(slice(None))
    for b in range(3):
        assert attend(slice(b, b + 1)).tobytes() == whole[b : b + 1].tobytes()


@ON_HARDWARE
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("page_size", [0, 16])
def test_a_captured_launch_reads_the_lengths_of_its_replay(page_size: int, splits: int) -> None:
    """Whoever captures has no array that is waited for: those here name no stream."""
    gpu = Gpu(cuda_backend())
    q, k, v = rows("bf16", 256, 64, seed=5)
    q = q[:, :, :1].copy()
    used = np.array([20, 1, 77], np.int32)
    places = [k, v]
    table = np.arange(48, dtype=np.int32).reshape(3, 16)
    if page_size:
        places = [in_pages(x, 16) for x in (k, v)]
    kept = [gpu.there(x) for x in (q, *places, np.zeros_like(q), used, table)]
    hosts = (q, *places, q, used, table)
    bare = [CudaArray(x.pointer, host) for x, host in zip(kept, hosts, strict=True)]
    where = {"block_table": bare[5]} if page_size else {}
    kernel = flash.DecodeKernel(flash.AttentionConfig(64, dtype="bf16", causal=True), cuda=gpu.cuda)
    with own_stream(gpu) as stream:

        def launch() -> None:
            kernel.launch(*bare[:3], seqused_k=bare[4], out=bare[3], splits=splits, stream=stream, **where)

        launch()  # makes what a capture must not: kernels, and memory for parts
        with captured(gpu, stream, launch) as replay:
            for lengths in ([21, 2, 78], [256, 100, 3]):
                gpu.write(kept[4], np.array(lengths, np.int32))
                replay()
                seen = [(x[b : b + 1, :, :n] for x in (k, v)) for b, n in enumerate(lengths)]
                assert_attends(kept[3].numpy(), None, q, seen)


@ON_HARDWARE
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [None, 4])
def test_a_captured_token_of_all_layers_is_replayed(page_size: int | None, splits: int) -> None:
    gpu, before, tokens = Gpu(cuda_backend()), 7, 6
    new = [rows("bf16", before + tokens, DIM, seed) for seed in range(2)]  # of each layer
    cache = gpu.cache("bf16", page_size, DIM, before + tokens)
    for layer, (_, k, v) in enumerate(new):
        cache.append(layer, k[:, :, :before], v[:, :, :before])
    kept = [[gpu.there(x[:, :, :1]) for x in of_layer] for of_layer in new]
    with own_stream(gpu) as stream:
        steps = [
            flash.DecodeStep(q, cache, k, v, layer=n, splits=splits, stream=stream)
            for n, (q, k, v) in enumerate(kept)
        ]

        def launch() -> None:
            for step in steps:
                step.launch()

        with captured(gpu, stream, launch) as replay:
            for token in range(before, before + tokens):
                cache.grow(1, stream=stream)
                for of_layer, arrays in zip(new, kept, strict=True):
                    for there, rows_of in zip(arrays, of_layer, strict=True):
                        gpu.write(there, rows_of[:, :, token : token + 1])
                replay()
                for step, (q, k, v) in zip(steps, new, strict=True):
                    seen = [(x[b : b + 1, :, : token + 1] for x in (k, v)) for b in range(len(q))]
                    assert_attends(step.out.numpy(), None, q[:, :, token : token + 1], seen)


def _call(gpu: Gpu, name: str, *given: Any) -> Any:
    """A function of the driver, which succeeds."""
    status, *result = getattr(gpu.cuda._driver.require(), name)(*given)
    assert not status, (name, status)
    return result[0] if result else None


@contextmanager
def own_stream(gpu: Gpu) -> Iterator[int]:
    """A stream that waits for no other."""
    with gpu.cuda._driver.on(0, "make a stream"):
        stream = _call(gpu, "cuStreamCreate", NON_BLOCKING)
        yield int(stream)
        _call(gpu, "cuStreamDestroy", stream)


@contextmanager
def captured(gpu: Gpu, stream: int, work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """What replays the launches of `work` on the stream, and waits for them."""
    mode = gpu.cuda._driver.require().CUstreamCaptureMode(CAPTURE_RELAXED)
    _call(gpu, "cuStreamSynchronize", stream)
    _call(gpu, "cuStreamBeginCapture", stream, mode)
    work()
    graph = _call(gpu, "cuStreamEndCapture", stream)
    replayed = _call(gpu, "cuGraphInstantiate", graph, 0)

    def replay() -> None:
        _call(gpu, "cuGraphLaunch", replayed, stream)
        _call(gpu, "cuStreamSynchronize", stream)

    yield replay
    _call(gpu, "cuGraphExecDestroy", replayed)
    _call(gpu, "cuGraphDestroy", graph)


# ---------------------------------------------------------------------------------- merge_partials


@pytest.mark.parametrize(
    ("dtype", "splits", "dim"),
    few_and_all(
        [("f32", 3, 20), ("bf16", 5, 16)], itertools.product(DTYPES, (1, 2, 33, 300), (1, 64, 100, 512))
    ),
)
def test_parts_are_merged_as_by_numpy(dtype: str, splits: int, dim: int, gpu: Gpu) -> None:
    rng = np.random.default_rng(splits)
    outs = rng.standard_normal((splits, 2, 3, 5, dim), np.float32).astype(DTYPES[dtype].numpy)
    lses = (3 * rng.standard_normal((splits, 2, 3, 5))).astype(np.float32)
    lses[splits // 2, 0], outs[splits // 2, 0] = -np.inf, np.nan  # of no key: it may hold anything
    lses[:, 1, 0, 0] = -np.inf
    out, lse = flash.merge_partials(gpu.there(outs), gpu.there(lses))
    wanted, wanted_lse = flash.merge_partials(outs, lses, backend="cpu")
    step = float(np.finfo(np.float32).eps) if dtype == "f32" else 2.0 ** -{"f16": 10, "bf16": 7}[dtype]
    np.testing.assert_allclose(
        out.numpy().astype(np.float32), wanted.astype(np.float32), rtol=8 * step, atol=8 * step
    )
    np.testing.assert_allclose(lse.numpy(), wanted_lse, rtol=1e-5, atol=1e-5)
    assert splits <= MAX_SPLITS
