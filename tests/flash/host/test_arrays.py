from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray

from flash.host import results
from flash.operands.dtypes import BF16, DTYPES, F16, F32, DType
from ptxgen.arrays import streams
from ptxgen.arrays.dlpack import CPU, CUDA, Contents, dense_strides, make_capsule, read_capsule
from ptxgen.arrays.views import HOST, ArrayView, host_array, view
from ptxgen.errors import LaunchError

EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))


class Dlpack:
    """An array that has only DLPack, as a library unknown to us would."""

    def __init__(self, array: Any, device: tuple[int, int] = (CPU, 0)) -> None:
        self.array = array
        self.device = device
        self.asked: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        self.asked.append(stream)
        return self.array.__dlpack__()


class LikeCupy(CudaArray):
    """An array that names its device."""

    device = SimpleNamespace(id=3)


def refused(array: object) -> str:
    with pytest.raises(LaunchError) as caught:
        view(array, "q")
    return str(caught.value)


def test_a_numpy_array_is_seen_where_it_is() -> None:
    array = np.zeros((2, 3, 4, 5), np.float32)[:, ::-1, ::2]
    result = view(array, "q")
    assert result == ArrayView(
        array.ctypes.data, (2, 3, 2, 5), (60, -20, 10, 1), "float32", HOST, False, "numpy", array
    )
    assert result.size == array.size
    assert result.device_name == "cpu"


def test_a_read_only_array_is_known_to_be_so() -> None:
    array = np.broadcast_to(np.float32(1), (2, 3))
    assert view(array, "k").read_only
    assert view(array, "k").strides == (0, 0)


def test_a_foreign_byte_order_is_not_taken_for_ours() -> None:
    assert view(np.zeros(3, ">f4"), "q").dtype == ">f4"
    assert view(np.zeros(3, np.dtype(ml_dtypes.bfloat16).newbyteorder(">")), "q").dtype == ">V2"


@EVERY_DTYPE
def test_every_type_is_seen_by_its_name(dtype: DType, torch: ModuleType) -> None:
    assert view(np.zeros(3, dtype.numpy), "q").dtype == dtype.array_name
    tensor = torch.zeros(2, 3, dtype=getattr(torch, dtype.array_name))
    assert view(tensor, "q")[1:4] == ((2, 3), (3, 1), dtype.array_name)
    on_gpu = CudaArray(0x1000, np.zeros((2, 3), dtype.numpy)[:, :2])
    assert view(on_gpu, "q")[1:4] == ((2, 2), (3, 1), dtype.array_name)


def cuda_array(**interface: object) -> CudaArray:
    array = CudaArray(0x1000, np.zeros(3, np.float32))
    array.__cuda_array_interface__.update(interface)
    return array


BETWEEN = "q must have strides that are whole elements of 4 bytes, got (5,) bytes; copy it"
NO_ARRAYS = ([1.0], 3, None, "text", object())
REFUSED: dict[str, tuple[object, str]] = {
    "strides": (
        np.zeros(3, np.dtype([("tag", "i1"), ("value", "f4")]))["value"],
        f"{BETWEEN} with numpy.ascontiguousarray(q)",
    ),
    "strides of an interface": (cuda_array(strides=(5,)), f"{BETWEEN} to a contiguous array"),
    "mask": (
        np.ma.masked_array(np.zeros(3, np.float32), [True, False, False]),
        "q must not be a masked array, whose mask would be ignored; fill it with q.filled(...)",
    ),
    "mask of an interface": (
        cuda_array(mask=np.zeros(3)),
        "q must not have a mask, which would be ignored; fill it first",
    ),
    "DLPack device": (
        Dlpack(np.zeros(3), device=(8, 0)),
        "q must be on the CPU or a CUDA device, got DLPack device type 8",
    ),
    **{
        f"no array {n}": (
            thing,
            "q must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), got "
            f"{type(thing).__name__}; convert with numpy.asarray(q, numpy.float32)",
        )
        for n, thing in enumerate(NO_ARRAYS)
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_cure(name: str) -> None:
    array, message = REFUSED[name]
    assert refused(array) == message


def test_torch_tensors_are_seen_with_their_strides(torch: ModuleType) -> None:
    tensor = torch.zeros(2, 3, 4, 5).transpose(1, 2)
    result = view(tensor, "q")
    assert (result.pointer, result.shape, result.strides) == (tensor.data_ptr(), (2, 4, 3, 5), (60, 5, 20, 1))
    assert (result.dtype, result.device, result.kind) == ("float32", HOST, "torch")
    assert not result.read_only


def test_a_tensor_that_requires_gradients_can_be_read_but_not_written(torch: ModuleType) -> None:
    tensor = torch.nn.Parameter(torch.ones(3))
    assert view(tensor, "q").read_only
    assert host_array(view(tensor, "q")).tolist() == [1, 1, 1]


def test_tensors_that_are_not_plain_memory_are_refused(torch: ModuleType) -> None:
    assert refused(torch.zeros(2, 2, device="meta")) == (
        "q must be on the CPU or a CUDA device, got a torch tensor on meta; move it with q.to('cuda')"
    )
    assert refused(torch.zeros(2, 2).to_sparse()) == (
        "q must be a plain strided tensor, got one with layout torch.sparse_coo; use q.to_dense()"
    )
    assert refused(torch.zeros(2, dtype=torch.complex64).conj().imag) == (
        "q must be a plain strided tensor, got one with a pending negation; use q.resolve_neg()"
    )


def test_a_tensor_inside_a_transform_is_refused(torch: ModuleType) -> None:
    message = (
        "q must be a tensor with memory of its own, got a Tensor whose memory torch does not give; "
        "call outside torch.func transforms, on plain tensors"
    )
    with pytest.raises(LaunchError, match=f"^{re.escape(message)}$"):
        torch.vmap(lambda tensor: view(tensor, "q"))(torch.zeros(2, 3))


def test_host_memory_of_any_library_becomes_a_numpy_array_on_it(torch: ModuleType) -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).T
    array = host_array(view(tensor, "q"))
    assert np.array_equal(array, tensor.numpy())
    array[0, 0] = 7
    assert tensor[0, 0] == 7
    assert host_array(view(torch.empty(0, 4), "q")).shape == (0, 4)


@EVERY_DTYPE
def test_host_memory_has_its_own_type_in_numpy(dtype: DType, torch: ModuleType) -> None:
    tensor = torch.arange(12).to(getattr(torch, dtype.array_name)).reshape(3, 4).T[1:]
    array = host_array(view(tensor, "q"))
    assert array.dtype == dtype.numpy
    assert array.strides == (dtype.nbytes, 4 * dtype.nbytes)
    assert np.array_equal(array.astype(np.float32), tensor.float().numpy())
    array[0, 0] = 7
    assert tensor[0, 0] == 7


@pytest.mark.usefixtures("only_young_garbage")
def test_a_numpy_array_on_foreign_memory_keeps_its_owner_alive(torch: ModuleType) -> None:
    tensor = torch.ones(1000)
    owner = weakref.ref(tensor)
    array = host_array(view(tensor, "q"))
    del tensor
    gc.collect()
    assert owner() is not None
    assert array.sum() == 1000


def test_the_cuda_array_interface_says_everything() -> None:
    like = np.zeros((2, 3, 8), np.float32)[:, :, :4]
    result = view(CudaArray(0x1000, like, stream=7, read_only=True), "k")
    assert result[:7] == (
        0x1000,
        (2, 3, 4),
        (24, 8, 1),
        "float32",
        ("cuda", -1),
        True,
        "cuda_array_interface",
    )
    assert result.stream == 7
    assert result.device_name == "cuda:?"


def test_an_interface_without_strides_is_dense_and_its_library_may_name_the_device() -> None:
    result = view(LikeCupy(0x1000, np.zeros((2, 3), np.float32)), "k")
    assert result.strides == (3, 1)
    assert result.device == ("cuda", 3)


def test_only_an_array_that_does_not_name_its_device_asks_for_it() -> None:
    asked: list[int] = []

    def find(address: int) -> int | None:
        asked.append(address)
        return None if address == 0x2000 else 1

    like, empty = np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32)
    assert view(CudaArray(0x1000, like), "k", None, find).device == ("cuda", 1)
    assert view(CudaArray(0x2000, like), "k", None, find).device == ("cuda", -1)
    assert asked == [0x1000, 0x2000]
    assert view(LikeCupy(0x1000, like), "k", None, find).device == ("cuda", 3)
    assert view(CudaArray(0, empty), "k", None, find).device == ("cuda", -1)
    assert len(asked) == 2


def test_dlpack_on_the_host_is_read_in_place() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = view(Dlpack(array), "q")
    assert (result.pointer, result.strides, result.kind) == (array.ctypes.data, (3, 1), "dlpack")
    assert host_array(result)[1, 2] == 5


@pytest.mark.usefixtures("only_young_garbage")
def test_bfloat16_on_the_host_is_read_through_dlpack_though_numpy_cannot(torch: ModuleType) -> None:
    tensor = torch.arange(6).bfloat16().reshape(2, 3).T
    producer = Dlpack(tensor)
    result = view(producer, "q")
    assert result[:7] == (tensor.data_ptr(), (3, 2), (1, 3), "bfloat16", HOST, True, "dlpack")
    owner = weakref.ref(producer)
    array = host_array(result)
    del tensor, producer, result
    gc.collect()
    assert owner() is not None
    assert array.dtype == BF16.numpy
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert not array.flags.writeable


def test_what_numpy_cannot_read_through_dlpack_is_refused(torch: ModuleType) -> None:
    message = (
        "q must be an array that numpy can read through DLPack, got Dlpack: {}; convert it to float32, "
        "float16 or bfloat16"
    )
    for array in (np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, "M8[s]")):
        with pytest.raises(BufferError) as of_numpy:
            np.from_dlpack(array)
        assert refused(Dlpack(array)) == message.format(of_numpy.value)
    tensor = torch.zeros(3, dtype=torch.float8_e4m3fn)
    assert refused(Dlpack(tensor)) == message.format("Unsupported dtype in DLTensor.")


def test_an_array_whose_cuda_interface_raises_is_read_through_dlpack() -> None:
    class Jax(Dlpack):
        @property
        def __cuda_array_interface__(self) -> object:
            raise RuntimeError("INVALID_ARGUMENT: not supported for bfloat16 buffers.")

    array = np.zeros((2, 3), np.float32)
    assert view(Jax(array, device=(CUDA, 1)), "q")[:5] == (
        array.ctypes.data,
        (2, 3),
        (3, 1),
        "float32",
        ("cuda", 1),
    )


def test_dlpack_on_a_gpu_is_told_which_stream_will_use_it() -> None:
    # The capsule is a host array's: only its address is read, as a GPU's would be.
    array = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
    producer = Dlpack(array, device=(2, 1))
    result = view(producer, "q", stream=9)
    assert (result.pointer, result.shape, result.strides) == (array.ctypes.data, (2, 3), (3, -1))
    assert (result.dtype, result.device) == ("float32", ("cuda", 1))
    view(producer, "q")
    assert producer.asked == [9, 1]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("f4", "float32"), ("i8", "int64"), ("u1", "uint8"), ("?", "bool"), ("c8", "complex64")],
)
def test_a_capsule_says_the_type(dtype: str, name: str) -> None:
    capsule = np.zeros((2, 2), dtype).__dlpack__()
    assert read_capsule(capsule).dtype == name
    assert read_capsule(capsule).device == (CPU, 0)


@EVERY_DTYPE
def test_a_capsule_is_read_as_it_was_made(dtype: DType) -> None:
    contents = Contents(0x5000, (2, 3, 4), (12, 4, 1), dtype.array_name, (CUDA, 2))
    assert read_capsule(make_capsule(contents, None)) == contents


def of_array(array: np.ndarray[Any, Any]) -> Contents:
    name = array.dtype.name
    return Contents(array.ctypes.data, array.shape, dense_strides(array.shape), name, (CPU, 0))


class Owner:
    """What can be seen to die."""


@EVERY_DTYPE
@pytest.mark.usefixtures("only_young_garbage")
def test_who_takes_a_capsule_uses_the_memory_and_gives_it_back(dtype: DType, torch: ModuleType) -> None:
    memory = np.arange(6).astype(dtype.numpy).reshape(2, 3)
    owner = Owner()
    alive = weakref.ref(owner)
    tensor = torch.from_dlpack(make_capsule(of_array(memory), owner))
    del owner
    gc.collect()
    assert alive() is not None
    assert str(tensor.dtype) == f"torch.{dtype.array_name}"
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    tensor[1, 1] = 9
    assert memory[1, 1] == 9
    del tensor
    gc.collect()
    assert alive() is None


@pytest.mark.usefixtures("only_young_garbage")
def test_a_capsule_that_nobody_takes_gives_its_memory_back() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    capsule = make_capsule(of_array(np.zeros(3, np.float32)), owner)
    del owner
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_capsules_may_outlive_everything_else_when_python_ends() -> None:
    code = (
        "import sys; from ptxgen.arrays.dlpack import Contents, make_capsule; "
        "sys.kept = make_capsule(Contents(0, (0,), (1,), 'bfloat16', (1, 0)), object())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_what_is_no_capsule_is_refused() -> None:
    with pytest.raises(ValueError, match="PyCapsule_GetPointer called with invalid PyCapsule object"):
        read_capsule(object())


def test_dense_strides_of_empty_and_scalar_shapes() -> None:
    assert dense_strides(()) == ()
    assert dense_strides((2, 0, 3)) == (3, 3, 1)


@EVERY_DTYPE
def test_results_are_of_the_callers_library_and_of_the_type_asked_for(
    dtype: DType, torch: ModuleType
) -> None:
    for like in (np.zeros(3, np.float32), torch.zeros(3)):
        built = results.empty(view(like, "q"), (2, 5), dtype)
        assert type(built) is type(like)
        assert built.shape == (2, 5)  # type: ignore[attr-defined]  # an array
        assert str(built.dtype).removeprefix("torch.") == dtype.array_name  # type: ignore[attr-defined]


@EVERY_DTYPE
@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_results_come_from_the_pool_of_the_stream_that_writes_them(
    kind: str, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[object] = []

    @contextmanager
    def logged(entered: object) -> Iterator[None]:
        log.append(entered)
        yield
        log.append("left")

    of_torch = SimpleNamespace(ExternalStream=lambda handle, ordinal: (handle, ordinal), stream=logged)
    of_cupy = SimpleNamespace(Device=logged, ExternalStream=lambda handle, ordinal: logged((handle, ordinal)))
    types = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    library, wanted = {
        "torch": (
            SimpleNamespace(cuda=of_torch, empty=lambda shape, **how: log.append((shape, how)), **types),
            [(9, 1), ((2,), {"dtype": dtype.name, "device": "cuda:1"}), "left"],
        ),
        "cupy": (
            SimpleNamespace(cuda=of_cupy, empty=lambda shape, of: log.append((shape, of))),
            [1, (9, 1), ((2,), dtype.numpy), "left", "left"],
        ),
    }[kind]
    monkeypatch.setitem(sys.modules, kind, library)  # type: ignore[arg-type]  # stands in for it
    like = view(CudaArray(0x1000, np.zeros(3, dtype.numpy)), "q")
    like = like._replace(kind=kind, device=("cuda", 1), owner=SimpleNamespace(device="cuda:1"))
    results.empty(like, (2,), dtype, stream=9)
    assert log == wanted


def test_a_result_for_a_dlpack_array_goes_through_its_namespace() -> None:
    theirs = SimpleNamespace(asarray=lambda x: ("theirs", x), from_dlpack=lambda x: ("theirs from DLPack", x))
    owner = Dlpack(np.zeros(3, np.float32))
    owner.__array_namespace__ = lambda: theirs  # type: ignore[attr-defined]
    like = view(owner, "q")
    built = results.empty(like, (2,), F32)
    assert results.deliver(built, like) == ("theirs", built)
    there = like._replace(device=("cuda", 0))
    assert results.deliver(built, there) == ("theirs from DLPack", built)
    assert results.deliver(built, view(np.zeros(3), "q")) is built


class Memory:
    """An allocator that remembers."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []

    def allocate(self, nbytes: int, *, ordinal: int) -> int:
        self.log.append(("allocate", nbytes, ordinal))
        return 0x5000

    def free(self, address: int, *, ordinal: int) -> None:
        self.log.append(("free", address, ordinal))

    def synchronize(self, stream: int = 0, *, ordinal: int) -> None:
        self.log.append(("synchronize", stream, ordinal))


@EVERY_DTYPE
@pytest.mark.usefixtures("only_young_garbage")
def test_a_device_array_frees_its_memory_once_nobody_has_it(dtype: DType) -> None:
    memory = Memory()
    like = view(CudaArray(0x1000, np.zeros(3, np.float32)), "q")._replace(device=("cuda", 2))
    built = results.empty(like, (2, 3), dtype, memory=memory, stream=4)
    assert built.dtype == dtype.numpy  # type: ignore[attr-defined]  # a DeviceArray
    again = view(built, "out")
    assert again[:6] == (0x5000, (2, 3), (3, 1), dtype.array_name, ("cuda", -1), False)
    assert again.stream == 4
    capsule = built.__dlpack__(stream=4)  # type: ignore[attr-defined]  # a DeviceArray
    assert read_capsule(capsule) == (0x5000, (2, 3), (3, 1), dtype.array_name, (CUDA, 2))
    del built, again
    gc.collect()
    assert memory.log == [("allocate", 6 * dtype.nbytes, 2)]
    del capsule
    gc.collect()
    assert memory.log == [("allocate", 6 * dtype.nbytes, 2), ("free", 0x5000, 2)]


@pytest.mark.parametrize(
    ("own", "theirs", "waits"),
    [(4, 4, []), (4, -1, []), (0, None, []), (0, 1, []), (4, None, [4]), (4, 2, [4]), (0, 4, [0])],
)
def test_a_consumer_on_another_stream_gets_a_finished_device_array(
    own: int, theirs: int | None, waits: list[int]
) -> None:
    memory = Memory()
    built = results.DeviceArray((2,), F16, 3, memory, stream=own)
    built.__dlpack__(stream=theirs, max_version=(1, 0))
    assert memory.log[1:] == [("synchronize", stream, 3) for stream in waits]


@pytest.mark.parametrize(
    ("how", "got"),
    [({"copy": True}, "copy=True, dl_device=None"), ({"dl_device": (1, 0)}, "copy=None, dl_device=(1, 0)")],
)
def test_a_device_array_exports_itself_and_no_copy(how: dict[str, Any], got: str) -> None:
    built = results.DeviceArray((2,), F16, 3, Memory(), stream=0)
    message = (
        "DeviceArray: __dlpack__ must be asked for the array itself, on (2, 3), "
        f"got {got}; copy what the consumer makes of it"
    )
    with pytest.raises(BufferError, match=f"^{re.escape(message)}$"):
        built.__dlpack__(**how)
    assert built.__dlpack__(copy=False, dl_device=built.__dlpack_device__())


def test_a_device_array_without_elements_has_no_memory() -> None:
    memory = Memory()
    interface = results.DeviceArray((0, 3), F32, 0, memory, stream=0).__cuda_array_interface__
    assert interface["data"] == (0, False)
    assert interface["stream"] == 1  # the interface's number for the default stream
    assert memory.log == []


class Named:
    """A stream as each library spells it."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 44


@pytest.mark.parametrize(
    ("stream", "handle"), [(0, 0), (7, 7), (Named(cuda_stream=5), 5), (Named(ptr=6), 6), (Protocol(), 44)]
)
def test_streams_of_every_library_are_understood(stream: object, handle: int) -> None:
    assert streams.stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [True, -1, "0", 1.0, Named(ptr="x")])
def test_what_is_no_stream_is_refused(stream: object) -> None:
    with pytest.raises(LaunchError) as caught:
        streams.stream_handle(stream)
    assert str(caught.value) == (
        "launch: stream must be None, the integer of a CUstream, or an object with "
        f"__cuda_stream__, cuda_stream or ptr, got {stream!r}"
    )


def test_the_current_stream_is_the_librarys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {1: SimpleNamespace(ptr=77, cuda_stream=88)}
    library = SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=result.__getitem__, current_stream=result.__getitem__)
    )
    like = view(CudaArray(0x1000, np.zeros(3, np.float32)), "q")._replace(device=("cuda", 1))
    assert streams.current_stream(like) == 0
    for kind, handle in (("cupy", 77), ("torch", 88)):
        monkeypatch.setitem(sys.modules, kind, library)  # type: ignore[arg-type]  # stands in
        assert streams.current_stream(like._replace(kind=kind)) == handle
