"""Kernels of functions for sm_90a: tensor maps as arguments on both backends, clusters, attributes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray, on_device
from error_texts import refused
from fake_driver import FakeDriver

import ptxgen as px
from ptxgen import Pointer, TensorMap, bf16, f16, f32, interpreter, u32
from ptxgen.check.prove import prove
from ptxgen.contract import schema
from ptxgen.dsl.tensors import TensorPointer
from ptxgen.errors import ConfigError, LaunchError, UnsupportedTargetError
from ptxgen.kernels import KernelFunction
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.target import target as find_target
from ptxgen.tensormap import TensorMapType

ROWS, COLUMNS, INNER = 100, 88, 72  # no multiple of a tile


def gemm(k: Any, A: TensorMap[f16], B: TensorMap[f16], C: TensorMap[f32], n: u32, *, stages: int = 2) -> None:
    producer = k.warp_role("producer", warps=4)
    consumer = k.warpgroup_role("consumer", warpgroups=1)
    ring = k.tma.ring(stages, producer, consumer, a=((64, 32), f16), b=((32, 64), f16))
    out = k.tma.tile("out", (64, 64), f32)
    row, column = k.block_id("y") * 64, k.block_id("x") * 64
    with producer, k.loop(0, n, 32) as i, ring.fill() as stage:
        k.tma.load(stage.a, A[row, i])
        k.tma.load(stage.b, B[i, column])
    with consumer:
        acc = k.wgmma.accumulator(64, 64)
        with k.loop(0, n, 32), ring.drain() as stage:
            acc += stage.a @ stage.b
            k.wgmma.wait()
        acc.write(out)
        k.tma.store(out, C[row, column])


def made(function: Any = gemm, **choices: Any) -> KernelFunction:
    return px.kernel(**{"threads": 256, "target": "sm_90a", **choices})(function)


def matrices(seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (ROWS, INNER)).astype(np.float16)  # whose sums are exact
    b = rng.integers(-4, 5, (INNER, COLUMNS)).astype(np.float16)
    return a, b, np.full((ROWS, COLUMNS), np.nan, np.float32)


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32)


def on_gpu(driver: FakeDriver, function: Any = gemm, **choices: Any) -> KernelFunction:
    return made(function, cuda=CudaBackend(driver), cache=ModuleCache(None), **choices)


# ------------------------------------------------------------------------------------- tensor maps


def test_arrays_become_tensor_maps_on_the_interpreter() -> None:
    a, b, c = matrices()
    made()[2, 2](a, b, c, INNER, backend="interpreter")
    assert np.array_equal(c, exact(a, b))


def test_tensor_maps_of_views_have_the_strides_of_the_view() -> None:
    a, b, c = matrices()
    wide = np.zeros((2 * ROWS, INNER + 8), np.float16)
    view = wide[::2, :INNER]
    view[...] = a
    made()[2, 2](view, b, c, INNER, backend="interpreter")
    assert np.array_equal(c, exact(a, b))


def test_a_gpu_gets_maps_that_the_driver_encoded(driver: FakeDriver) -> None:
    a, b, c = matrices()
    there = [on_device(driver, x) for x in (a, b, c)]
    kernel = on_gpu(driver)
    kernel[2, 2](*there, INNER)
    assert np.array_equal(driver.fetch(there[2].pointer, c), exact(a, b))
    encoded = [call.arguments for call in driver.calls if call.name == "cuTensorMapEncodeTiled"]
    assert [int(x[0]) for x in encoded] == [6, 6, 7]  # f16, f16, f32
    assert [x[2] for x in encoded] == [x.pointer for x in there]
    assert [[int(n) for n in x[3]] for x in encoded] == [[INNER, ROWS], [COLUMNS, INNER], [COLUMNS, ROWS]]
    assert [[int(n) for n in x[4]] for x in encoded] == [[2 * INNER], [2 * COLUMNS], [4 * COLUMNS]]
    assert [[int(n) for n in x[5]] for x in encoded] == [[32, 64], [64, 32], [32, 64]]
    assert [int(x[8]) for x in encoded] == [2, 3, 3]  # 64B, 128B, 128B
    (launch,) = driver.launches
    assert [len(launch.values[name]) for name in "ABC"] == [128] * 3  # type: ignore[arg-type]
    assert launch.values["n"] == INNER
    assert launch.attributes == {}


def test_tensors_of_three_dimensions_have_the_strides_of_their_views(driver: FakeDriver) -> None:
    def copy(k: Any, A: TensorMap[f32, 3], X: Pointer[f32]) -> None:
        producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
        ring = k.tma.ring(1, producer, consumer, a=((4, 32), f32))
        with producer, ring.fill() as stage:
            k.tma.load(stage.a, A[1, 2, 0])
        with consumer, ring.drain() as stage:
            for row in range(4):
                X[row * 32 + k.signed(consumer.thread)] = stage.a[row, consumer.thread]

    a = np.arange(6 * 2 * 32, dtype=np.float32).reshape(6, 2, 32)
    x = np.zeros((4, 32), np.float32)
    made(copy, threads=64)[1](a.transpose(1, 0, 2), x, backend="interpreter")
    assert np.array_equal(x, a[2:6, 1])
    there = driver.place(a)
    view = CudaArray(there, a.transpose(1, 0, 2))
    out = on_device(driver, np.zeros_like(x))
    on_gpu(driver, copy, threads=64)[1](view, out)
    assert np.array_equal(driver.fetch(out.pointer, x), x)


def test_a_map_is_made_once_for_the_same_array(driver: FakeDriver) -> None:
    a, b, c = matrices()
    there = [on_device(driver, x) for x in (a, b, c)]
    kernel = on_gpu(driver)
    for _ in range(3):
        kernel[2, 2](*there, INNER)
    assert driver.names().count("cuTensorMapEncodeTiled") == 3
    kernel[2, 2](there[0], there[1], on_device(driver, c), INNER)
    assert driver.names().count("cuTensorMapEncodeTiled") == 4
    rows = CudaArray(there[2].pointer, c[: ROWS // 2])  # the same address with another shape
    kernel[2, 1](there[0], there[1], rows, INNER)
    assert driver.names().count("cuTensorMapEncodeTiled") == 5


def test_arrays_of_the_host_go_to_the_gpu_and_back(driver: FakeDriver) -> None:
    a, b, c = matrices()
    a.flags.writeable = b.flags.writeable = False
    on_gpu(driver)[2, 2](a, b, c, INNER, backend="cuda")
    assert np.array_equal(c, exact(a, b))
    assert driver.names().count("cuMemcpyDtoHAsync") == 1  # what the kernel stores to
    assert not driver.memory


def prefetched(k: Any, A: TensorMap[f32], X: Pointer[f32], Y: Pointer[f32]) -> None:
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, a=((8, 32), f32))
    with producer:
        k.cp_async_bulk_prefetch(X, 128)
        k.cp_async_bulk_prefetch_tensor(A[0, 0].pointer(0), dim="2d")
        with ring.fill() as stage:
            k.tma.load(stage.a, A[0, 0])
    with consumer, ring.drain() as stage:
        Y[consumer.thread] = stage.a[3, consumer.thread] + X[consumer.thread]


def test_prefetches_write_no_array() -> None:
    kernel = px.kernel(prefetched, threads=64, target="sm_90a")
    assert kernel.build().uses.written == {"Y"}
    a, x, y = (
        np.arange(8 * 32, dtype=np.float32).reshape(8, 32),
        np.ones(32, np.float32),
        np.zeros(32, np.float32),
    )
    a.flags.writeable = x.flags.writeable = False
    kernel[1](a, x, y, backend="interpreter")
    assert np.array_equal(y, a[3] + 1)


def test_bulk_copies_and_reductions_need_arrays_at_a_multiple_of_16_bytes() -> None:
    def reduced(k: Any, X: Pointer[u32], Y: Pointer[u32]) -> None:
        tile = k.shared("tile", (1, 32), u32, align=128)
        k.cp_reduce_async_bulk_add(X, tile.pointer(), 128, type=u32, op="add")
        k.cp_async_bulk_store(Y, tile.pointer(), 128)

    uses = px.kernel(reduced, threads=32, target="sm_90a").build().uses
    assert uses.written == {"X", "Y"}
    assert uses.alignment == {"X": 16, "Y": 16}


def map_replaced(k: Any, M: Pointer[u32], X: Pointer[f32]) -> None:
    k.tensormap_replace_address(M, X.value, space="global")


def map_copied(k: Any, M: Pointer[u32], _X: Pointer[f32]) -> None:
    tile = k.shared("map", (1, 32), u32, align=128)
    k.tensormap_cp_fenceproxy(M, tile.pointer(), scope="gpu")


def test_maps_in_global_memory_are_written_and_lead_anywhere() -> None:
    for function in (map_replaced, map_copied):
        assert px.kernel(function, threads=32, target="sm_90a").build().uses.written == {"M"}

    def stored(k: Any, M: Pointer[f32], _X: Pointer[f32]) -> None:
        tile = k.tma.tile("tile", (8, 32), f32)
        k.cp_async_bulk_tensor_store(TensorPointer(M.value, f32, (0, 0)), tile.slab(0), dim="2d")

    assert px.kernel(stored, threads=32, target="sm_90a").build().uses.written == {"M", "_X"}


def test_only_maps_that_the_kernel_stores_to_are_written() -> None:
    assert made().build().uses.written == {"C"}

    def copy(k: Any, A: TensorMap[f32], X: Pointer[f32]) -> None:
        producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
        ring = k.tma.ring(1, producer, consumer, a=((8, 32), f32))
        with producer, ring.fill() as stage:
            k.tma.load(stage.a, A[0, 0])
        with consumer, ring.drain() as stage:
            X[consumer.thread] = stage.a[3, consumer.thread]

    kernel = made(copy, threads=64)
    assert kernel.build().uses.written == {"X"}
    a, x = np.arange(8 * 32, dtype=np.float32).reshape(8, 32), np.zeros(32, np.float32)
    kernel[1](a, x, backend="interpreter")
    assert np.array_equal(x, a[3])
    assert kernel.check(1, a, x).clean


def shifted(array: Any, nbytes: int) -> Any:
    """A copy of an array, `nbytes` bytes behind a multiple of 64."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + nbytes
    result = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


@pytest.mark.parametrize(
    ("problem", "change"),
    {
        "A must be float16 (TensorMap[f16, 2]), got float32; convert it": lambda a: a.astype(np.float32),
        "A must have 2 dimensions (TensorMap[f16, 2]), got shape [7200]; reshape it": lambda a: a.reshape(-1),
        "A must have 1 to 2**32 elements along each dimension, got shape [0, 72]": lambda a: a[:0],
        "A must have a contiguous last dimension for its tensor map, got strides [2, 144] bytes; copy "
        "it": lambda a: a.T,
        "A must have strides of a multiple of 16 bytes below 2**40 for its tensor map, got 142 bytes "
        "along axis 0 of shape [100, 71]; pad its rows": lambda a: np.ascontiguousarray(a[:, :-1]),
        "A must begin at a multiple of 16 bytes for its tensor map, got 0x": lambda a: shifted(a, 8),
    }.items(),
)
def test_arrays_that_no_map_describes_are_named_before_any_call(
    driver: FakeDriver, change: Any, problem: str
) -> None:
    a, b, c = matrices()
    kernel = on_gpu(driver)
    for how in ("interpreter", "cuda"):
        with pytest.raises(LaunchError) as error:
            kernel[2, 2](change(a), b, c, INNER, backend=how)
        assert str(error.value).startswith("gemm: ")
        assert problem in str(error.value)
    assert not driver.calls


def test_a_view_whose_dense_copy_has_no_map_is_refused_before_it_is_copied(driver: FakeDriver) -> None:
    a, b, c = matrices()
    wide = np.zeros((ROWS, 80), np.float16)
    view = wide[:, :70]  # rows of 140 bytes, 160 apart
    with pytest.raises(
        LaunchError, match="the dense copy on the GPU: A must have strides of a multiple of 16"
    ):
        on_gpu(driver)[2, 2](view, b, c, 70, backend="cuda")
    assert "cuMemAlloc" not in driver.names()
    view[...] = a[:, :70]
    made()[2, 2](view, b, c, 70, backend="interpreter")
    assert np.array_equal(c, exact(a[:, :70], b[:70]))


def test_checks_copy_views_so_that_maps_describe_them() -> None:
    a, b, c = matrices()
    wide = np.zeros((ROWS, 80), np.float16)
    view = wide[:, :38]
    view[...] = a[:, :38]
    assert made().check((1, 1), view, b, c, 38).clean
    assert np.isnan(c).all()


def test_annotations_have_an_element_type_and_a_rank() -> None:
    assert TensorMap[f16] == TensorMapType(f16, 2)
    assert TensorMap[bf16, 4] == TensorMapType(bf16, 4)
    for wrong, problem in (
        (px.s8, "the elements must be one of u8, "),
        ((f16, 6), "has 1 to 5 dimensions, got 6"),
    ):
        with pytest.raises(ConfigError, match="TensorMap") as error:
            _ = TensorMap[wrong]  # type: ignore[index]
        assert problem in str(error.value)


def test_a_tensor_map_that_no_copy_uses_is_an_error_of_the_build() -> None:
    def nothing(k: Any, A: TensorMap[f16]) -> None:
        k.note(f"no copy of {A.name}")

    with pytest.raises(ConfigError, match="no copy uses the tensor map A, so its box is not known"):
        made(nothing).build()


def test_tensor_maps_need_sm_90() -> None:
    with pytest.raises(
        UnsupportedTargetError, match=r"tma\.tensor_map needs sm_90, but kernel 'gemm' targets sm_80"
    ):
        made(target="sm_80").build()


# ------------------------------------------------------------------------------------- what is known


def test_the_contract_says_what_another_host_encodes() -> None:
    contract = json.loads(json.dumps(made().contract()))
    jsonschema.validate(contract, schema())
    first, *_, n = contract["parameters"]
    assert [p["kind"] for p in contract["parameters"]] == ["tensor_map"] * 3 + ["number"]
    assert (first["offset"], first["size"], n["offset"], n["size"]) == (0, 128, 384, 4)
    assert first["tensor_map"] == {
        "dtype": "f16",
        "rank": 2,
        "address": "A",
        "dims": ["A.shape[1]", "A.shape[0]"],
        "strides": ["A.strides[0]"],
        "box": [32, 64],
        "element_strides": [1, 1],
        "interleave": "none",
        "swizzle": "64B",
        "l2_promotion": "none",
        "oob_fill": "zeros",
        "alignment": 16,
        "access": ["load"],
    }
    assert contract["parameters"][2]["tensor_map"]["access"] == ["store"]
    assert "tensor_map" not in n


def test_a_host_that_follows_the_contract_gets_the_result() -> None:
    """It reads the dictionary alone, and launches the text on the interpreter."""
    kernel = made()
    contract, arrays = kernel.contract(), dict(zip("ABC", matrices(), strict=True))
    arguments: list[Any] = []
    for parameter in contract["parameters"]:
        of = parameter.get("tensor_map")
        if of is None:
            arguments.append(INNER)
            continue
        array = arrays[of["address"]]
        names = {of["address"]: array}
        assert [eval(text, names) for text in of["dims"]] == list(array.shape[::-1])
        assert [eval(text, names) for text in of["strides"]] == list(array.strides[-2::-1])
        arguments.append(TensorMap(array, tuple(of["box"]), of["dtype"], swizzle=of["swizzle"]))
    block, shared = contract["block"], contract["dynamic_shared_bytes"]
    interpreter.run(kernel.ptx, grid=(2, 2), block=block, args=arguments, dynamic_smem=shared)
    assert np.array_equal(arrays["C"], exact(arrays["A"], arrays["B"]))


def test_proofs_take_the_dimensions_of_maps() -> None:
    kernel = made()
    dims: dict[str, Any] = {"A": ("m", "n"), "B": ("n", "c"), "C": ("m", "c")}
    sizes = {"m": (1, 2**20), "c": (1, 2**20)}
    proofs = kernel.prove(**dims, bounds=sizes, grid=("(c + 63) // 64", "(m + 63) // 64"))
    assert proofs.shared.accesses
    assert {access.verdict for access in proofs.shared.accesses} == {"proved"}
    with pytest.raises(LaunchError, match="the dimensions of B must be given"):
        kernel.prove(A=("m", "n"), C=("m", "c"), bounds=sizes)
    with pytest.raises(LaunchError, match="A must be a tuple of 2 dimensions"):
        kernel.prove(**{**dims, "A": ("m",)}, bounds=sizes)


def test_a_proof_sees_copies_beyond_the_shared_memory() -> None:
    built = made().build()
    maps = {name: boxes.smallest() for name, boxes in built.maps.items()}
    size = built.kernel.dynamic_shared_bytes
    whole = prove(built.module, block=256, dynamic_smem=size, params=maps).shared
    less = prove(built.text, block=256, dynamic_smem=size - 1024, params=maps).shared
    assert not whole.problems
    assert less.problems


# ------------------------------------------------------------------------------------- attributes


def ranks(k: Any, X: Pointer[u32]) -> None:
    k.cluster.barrier()
    with k.when(k.thread_id() == 0):
        X[k.block_id()] = k.cluster.rank() + 10 * k.cluster.size


def test_clusters_reach_the_text_the_interpreter_and_the_driver(driver: FakeDriver) -> None:
    x = np.zeros(4, np.uint32)
    kernel = made(ranks, threads=32, cluster=2)
    kernel[4](x, backend="interpreter")
    assert x.tolist() == [20, 21, 20, 21]
    assert ".reqnctapercluster 2, 1, 1" in kernel.ptx
    assert kernel.contract()["cluster"] == [2, 1, 1]
    gpu = on_gpu(driver, ranks, threads=32, cluster=(2, 1, 1))
    there = on_device(driver, np.zeros(4, np.uint32))
    gpu[4](there)
    assert driver.names().count("cuLaunchKernelEx") == 1
    assert "cuLaunchKernel" not in driver.names()
    (launch,) = driver.launches
    assert launch.attributes == {"CLUSTER_DIMENSION": (2, 1, 1)}
    assert (launch.grid, launch.block) == ((4, 1, 1), (32, 1, 1))
    assert driver.fetch(there.pointer, x).tolist() == [20, 21, 20, 21]


def test_launches_with_attributes_have_their_stream_and_shared_memory(driver: FakeDriver) -> None:
    def passed_on(k: Any, X: Pointer[u32]) -> None:
        tile = k.shared("t", (1, 32), u32)
        tile[0, k.thread_id()] = k.thread_id() + k.cluster.rank()
        k.barrier()
        X[k.block_id() * 32 + k.thread_id()] = tile[0, 31 - k.thread_id()]

    kernel = on_gpu(driver, passed_on, threads=32, cluster=2)
    x = np.zeros((2, 32), np.uint32)
    there, stream = on_device(driver, x), driver.make_stream()
    kernel.launch(2, there, stream=stream)
    (launch,) = driver.launches
    assert (launch.stream, launch.dynamic_shared) == (stream, 128)
    assert driver.fetch(there.pointer, x).tolist() == [list(range(31, -1, -1)), list(range(32, 0, -1))]


def test_a_grid_is_a_multiple_of_the_cluster(driver: FakeDriver) -> None:
    kernel = on_gpu(driver, ranks, threads=32, cluster=2)
    for how in ("interpreter", "cuda"):
        with refused(
            LaunchError,
            "ranks: grid.x must be a multiple of 2, because the kernel runs in clusters of (2, 1, 1) "
            "CTAs, got 3",
        ):
            kernel[3](np.zeros(4, np.uint32), backend=how)
    assert not driver.calls


def test_clusters_are_refused_where_there_are_none() -> None:
    with pytest.raises(
        ConfigError, match="cluster must be 1 to 3 positive integers with a product of at most 8"
    ):
        made(ranks, cluster=(4, 4))
    with pytest.raises(UnsupportedTargetError, match="clusters need sm_90, but the target is sm_80"):
        made(ranks, threads=32, cluster=2, target="sm_80").build()


def dependent(k: Any, X: Pointer[f32]) -> None:
    k.griddepcontrol_wait()
    X[k.thread_id()] = X[k.thread_id()] * 2
    k.griddepcontrol_launch_dependents()


def test_dependent_and_cooperative_launches_reach_the_driver(driver: FakeDriver) -> None:
    kernel = on_gpu(driver, dependent, threads=32, programmatic=True, cooperative=True)
    there = on_device(driver, np.ones(32, np.float32))
    kernel[1](there)
    (launch,) = driver.launches
    assert launch.attributes == {"COOPERATIVE": 1, "PROGRAMMATIC_STREAM_SERIALIZATION": 1}
    assert driver.fetch(there.pointer, np.ones(32, np.float32)).tolist() == [2.0] * 32
    contract = kernel.contract()
    assert (contract["cooperative"], contract["programmatic"]) == (True, True)


def test_a_dependent_launch_waits_for_the_grid_before_it() -> None:
    def hasty(k: Any, X: Pointer[f32]) -> None:
        X[k.thread_id()] = 1.0

    with pytest.raises(ConfigError, match=r"programmatic=True .* so it must call k.griddepcontrol_wait\(\)"):
        made(hasty, programmatic=True).build()


def test_bfloat16_arrays_have_maps(driver: FakeDriver) -> None:
    def double(k: Any, A: TensorMap[bf16], X: Pointer[f32]) -> None:
        producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
        ring = k.tma.ring(1, producer, consumer, a=((4, 64), bf16))
        with producer, ring.fill() as stage:
            k.tma.load(stage.a, A[0, 0])
        with consumer, ring.drain() as stage:
            for row in range(4):
                X[row * 32 + k.signed(consumer.thread)] = k.cvt(stage.a[row, consumer.thread], dtype=f32) * 2

    a = np.arange(256).reshape(4, 64).astype(ml_dtypes.bfloat16)
    x = np.zeros((4, 32), np.float32)
    on_gpu(driver, double, threads=64)[1](a, x, backend="cuda")
    assert np.array_equal(x, 2 * a[:, :32].astype(np.float32))


@pytest.mark.ptxas
@pytest.mark.parametrize("stages", [2, 4])
def test_the_assembler_has_nothing_to_say(stages: int) -> None:
    built = made().build(stages=stages)
    done = find_assembler(target="sm_90a").assemble(built.text, "sm_90a")
    assert done.kernel("gemm").spill_store_bytes == 0
    assert not done.advisories


@pytest.mark.gpu
def test_a_gpu_computes_what_the_interpreter_does() -> None:
    device = cuda_backend().device_properties(cuda_backend().current_device())
    if not find_target("sm_90a").runs_on(device.major, device.minor):
        pytest.skip(f"sm_90a does not run on {device}")
    a, b, c = matrices()
    made()[2, 2](a, b, c, INNER, backend="cuda")
    assert np.array_equal(c, exact(a, b))
    x = np.zeros(4, np.uint32)
    made(ranks, threads=32, cluster=2)[4](x, backend="cuda")
    assert x.tolist() == [20, 21, 20, 21]
