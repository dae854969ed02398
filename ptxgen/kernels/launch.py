"""The launch of a built kernel function: its arguments checked by name, then a GPU or the
interpreter.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen import interpreter
from ptxgen.arguments import integer
from ptxgen.arrays.devices import ordinal_of, wait_for_producers
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.overlap import copied_together, may_share_elements
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.streams import current_stream
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView, host_array, reader_of, view
from ptxgen.dsl import PointerType
from ptxgen.errors import ConfigError, LaunchError, did_you_mean, shown
from ptxgen.kernels.access_modes import Uses
from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.signature import Type
from ptxgen.kernels.tensor_maps import MAP_ALIGN, MapEncoder, map_problems
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cache import CacheKey, ModuleCache, default_cache
from ptxgen.runtime.cuda import CudaBackend, LoadedKernel
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.runtime.repeated_launch import RepeatedLaunch
from ptxgen.runtime.settings import AUTO, backend_setting
from ptxgen.target import MAX_GRID
from ptxgen.tensormap import TensorMapType
from ptxgen.types import TYPES, ScalarType, f32

BACKENDS: Final = (AUTO, "cuda", "interpreter")
Extents = tuple[int, int, int]
_MAX_F32: Final = float.fromhex("0x1.ffffffp127")  # numbers below round to a finite f32
_HALF_BYTES: Final = 2
# The least and the greatest number of each integer type.
_WHOLE: Final = {
    type.name: (-(1 << (type.bits - 1)), (1 << (type.bits - 1)) - 1)
    if type.is_signed
    else (0, (1 << type.bits) - 1)
    for type in TYPES.values()
    if type.is_integer
}
# The names by which arrays have an element type in memory; types of bits take any of their size.
_SIZES: Final = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "f16x2": 4, "bf16x2": 4}


class Call(NamedTuple):
    """Checked arguments of a call, in the order of the kernel's parameters, and the views of the
    arrays among them, by name. `first` is the first array that has elements, else the first; None
    if the kernel has no pointer.
    """

    values: list[Any]
    views: dict[str, ArrayView]
    first: ArrayView | None

    @property
    def is_on_gpu(self) -> bool:
        """Whether the arrays are on a GPU."""
        return self.first is not None and self.first.device != HOST


def extents(caller: str, what: str, value: object) -> Extents:
    """One to three positive integers as (x, y, z). Raises `LaunchError` for anything else."""
    if type(value) is int and 0 < value <= MAX_GRID[0]:
        return value, 1, 1
    sizes = value if isinstance(value, tuple | list) else (value,)
    whole = [integer(n, 1, most) for n, most in zip(sizes, MAX_GRID, strict=False)]
    if not 1 <= len(sizes) <= len(MAX_GRID) or None in whole:
        raise LaunchError(
            f"{caller}: {what} must be 1 to 3 positive integers, at most {MAX_GRID[0]}, {MAX_GRID[1]} and "
            f"{MAX_GRID[2]}, got {shown(value)}"
        )
    x, y, z = (*whole, 1, 1)[: len(MAX_GRID)]
    return x or 1, y or 1, z or 1


class Read(NamedTuple):
    """Arguments of a call that are not checked: the values and views of a `Call`, and the problems of
    arguments that are no arrays or no numbers of their types, by name.
    """

    values: list[Any]
    views: dict[str, ArrayView]
    misfits: dict[str, str]

    def call(self, caller: str, parameters: Mapping[str, Type]) -> Call:
        """The call with checked arguments. Raises `LaunchError` with every problem of the arguments."""
        problems = list(_problems(parameters, self))
        if len(problems) == 1:
            raise LaunchError(f"{caller}: {problems[0]}")
        if problems:
            raise LaunchError(f"{caller}: {len(problems)} problems" + "".join(f"\n  {p}" for p in problems))
        views = self.views.values()
        first = next((array for array in views if 0 not in array.shape), None)
        return Call(self.values, self.views, first or next(iter(views), None))


def read(parameters: Mapping[str, Type], arguments: Sequence[object], stream: int | None) -> Read:
    """Read the arguments of a call, in the order of the kernel's parameters, without a check."""
    values: list[Any] = []
    views: dict[str, ArrayView] = {}
    misfits: dict[str, str] = {}
    for (name, wanted), value in zip(parameters.items(), arguments, strict=True):
        if isinstance(wanted, ScalarType):
            number = _number(wanted, value)
            if number is None:
                misfits[name] = _number_problem(name, wanted, value)
            values.append(number)
            continue
        try:
            array = reader_of(type(value))(value, name, stream, None)
        except LaunchError as error:
            misfits[name] = str(error)
            continue
        views[name] = array
        values.append(array[0])
    return Read(values, views, misfits)


def checked(
    caller: str, parameters: Mapping[str, Type], arguments: Sequence[object], stream: int | None
) -> Call:
    """Read and check the arguments of a call. Raises `LaunchError` with every problem of them."""
    return read(parameters, arguments, stream).call(caller, parameters)


def _problems(parameters: Mapping[str, Type], of: Read) -> Iterator[str]:
    """Every problem of arguments: in the order of the parameters, and then of all arrays together."""
    for name, wanted in parameters.items():
        if name in of.misfits:
            yield of.misfits[name]
        elif isinstance(wanted, TensorMapType):
            yield from map_problems(name, wanted, of.views[name])
        elif isinstance(wanted, PointerType):
            array = of.views[name]
            yield from _layout_problems(name, wanted.dtype, array.dtype, array.shape, array.strides)
            if not array.pointer or array.pointer % wanted.dtype.nbytes:
                yield from _address_problems(name, wanted.dtype, array)
    yield from _device_problems(of.views)


def _address_problems(name: str, wanted: ScalarType, array: ArrayView) -> Iterator[str]:
    if array.size and not array.pointer:
        yield f"{name} must have memory, got a null pointer for shape {list(array.shape)}"
    if array.pointer % wanted.nbytes:
        yield f"{name} must begin at a multiple of {wanted.nbytes} bytes, got {array.pointer:#x}; copy it"


def _device_problems(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """A message if arrays are on several devices; the interface of an array may not name its GPU."""
    devices = {array.device for array in views.values() if array.size}
    known = {device for device in devices if device[1] != UNKNOWN_DEVICE}
    if len(known) > 1 or len({kind for kind, _ in devices}) > 1:
        where = ", ".join(f"{name} on {array.device_name}" for name, array in views.items())
        yield f"all arrays must be on one device, got {where}; move them to one"


@functools.lru_cache(maxsize=1024)
def _layout_problems(
    name: str, wanted: ScalarType, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[str, ...]:
    """Messages on the element type and the strides of an array that do not fit the parameter."""
    problems = []
    size = _SIZES.get(wanted.name)
    if numpy_type(dtype).hasobject:
        return (f"{name} must be an array of numbers, got {dtype}; convert it",)
    if size is None and dtype != wanted.dtype_name:
        bytes_of_it = dtype.startswith("float8") and wanted.dtype_name == "uint8"
        cure = f"pass its bytes, {name}.view(uint8)" if bytes_of_it else "convert it"
        problems.append(f"{name} must be {wanted.dtype_name} (Pointer[{wanted}]), got {dtype}; {cure}")
    elif size is not None and numpy_type(dtype).itemsize != size:
        problems.append(
            f"{name} must have elements of {size} bytes (Pointer[{wanted}]), got {dtype}; convert it"
        )
    steps = zip(shape, strides, dense_strides(shape), strict=True)
    if 0 not in shape and any(n > 1 and step != dense for n, step, dense in steps):
        problems.append(
            f"{name} must be dense, the last dimension innermost, got strides {list(strides)} "
            f"for shape {list(shape)}; copy it"
        )
    return tuple(problems)


def _number(type: ScalarType, value: object) -> int | float | None:
    """A number as the kernel's argument, for f16 and bf16 its bits; None if the type does not hold it."""
    whole = _WHOLE.get(type.name)
    if whole is not None:
        return integer(value, *whole)
    if value.__class__ is float and type is f32 and -_MAX_F32 <= value <= _MAX_F32:
        return value
    if not isinstance(value, int | float | np.floating | np.integer) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # of a Python int
        return None
    if type.nbytes == _HALF_BYTES:
        with np.errstate(over="ignore"):
            rounded = np.asarray(number, type.dtype)
        return int(rounded.view(np.uint16)) if np.isfinite(rounded) or not math.isfinite(number) else None
    return None if type is f32 and math.isfinite(number) and abs(number) > _MAX_F32 else number


def _number_problem(name: str, type: ScalarType, value: object) -> str:
    if type.name not in _WHOLE:
        return f"{name} must be a number that {type} holds, got {shown(value)}"
    least, most = _WHOLE[type.name]
    return f"{name} must be an integer from {least} to {most} ({type}), got {shown(value)}"


def require_fit(caller: str, uses: Uses, call: Call) -> None:
    """Raise `LaunchError` for read-only arrays that the kernel writes, and for arrays whose address is not
    aligned to the kernel's vectors and copies.
    """
    for name, array in call.views.items():
        if array.read_only and name in uses.written and array.size:
            what = "is a tensor that requires gradients" if array.kind == "torch" else "is read-only"
            cure = f"{name}.detach()" if array.kind == "torch" else "a writable one"
            raise LaunchError(f"{caller}: the kernel writes {name}, which {what}; pass {cure}")
    for name, nbytes in uses.alignment.items():
        if call.views[name].pointer % nbytes:
            raise LaunchError(
                f"{caller}: {name} must begin at a multiple of {nbytes} bytes, because the kernel accesses "
                f"that many at once, got {call.views[name].pointer:#x}; copy it"
            )


def require_apart(caller: str, uses: Uses, call: Call) -> None:
    """Raise `LaunchError` for arrays of the host that share memory which the kernel writes: their copies on a
    GPU would not share it.
    """
    arrays = [(name, array) for name, array in call.views.items() if array.size]
    for n, (name, array) in enumerate(arrays):
        for other, there in arrays[:n]:
            written = name in uses.written or other in uses.written
            if written and may_share_elements(array, there):
                raise LaunchError(
                    f"{caller}: {other} and {name} share memory, of which copies are made; pass arrays of "
                    "their own"
                )


class Runner:
    """Runs built kernels on the GPUs of the machine, or interprets them."""

    def __init__(self, backend: CudaBackend, cache: ModuleCache | None) -> None:
        self.backend = backend
        self._cache = cache
        self._lock = threading.Lock()
        self._loaded = BoundedCache[tuple[BuiltFunction, int], LoadedKernel]()
        self._launches = BoundedCache[tuple[BuiltFunction, Extents, int], RepeatedLaunch]()
        self._maps = MapEncoder(backend)

    def choose(self, caller: str, name: object, call: Call) -> str:
        """The backend of a call, "cuda" or "interpreter". Raises `ConfigError` for an unknown name,
        `LaunchError` if the arrays are on a GPU and the interpreter is asked for.
        """
        if not isinstance(name, str) or name not in BACKENDS:
            raise ConfigError(
                f"{caller}: backend must be one of {', '.join(BACKENDS)}, got {shown(name)}"
                f"{did_you_mean(name, BACKENDS)}"
            )
        chosen = name
        if name == AUTO:
            asked = AUTO if call.is_on_gpu else backend_setting()
            if call.is_on_gpu or asked == "cuda" or (asked == AUTO and not self.backend.why_unavailable()):
                chosen = "cuda"
            else:
                chosen = "interpreter"
        if chosen == "interpreter" and call.first is not None and call.is_on_gpu:
            raise LaunchError(
                f"{caller}: the interpreter runs on the host, but the arrays are on "
                f"{call.first.device_name}; copy them to the host, or use backend='cuda'"
            )
        return chosen

    def interpret(self, built: BuiltFunction, grid: Extents, call: Call, **how: Any) -> interpreter.Result:
        """Interpret the kernel on arrays of the host, in place; `how` are further arguments of
        `ptxgen.interpreter.run`.
        """
        return interpreter.run(
            built.module,
            grid=grid,
            block=built.block,
            args=interpreted(built, call),
            dynamic_smem=built.kernel.dynamic_shared_bytes,
            **how,
        )

    def on_gpu(
        self, built: BuiltFunction, grid: Extents, call: Call, stream: int | None, ordinal: int
    ) -> None:
        """Launch on a GPU: arrays there are used in place, those of the host are copied there and
        back, and complete on return.
        """
        first = call.first
        if first is None or first.device == HOST:
            self._from_host(built, grid, call, stream or 0, ordinal)
            return
        self._require_device(built.signature.name, call, ordinal)
        if stream is None:
            stream = current_stream(first)
        wait_for_producers(self.backend, call.views.values(), stream, ordinal)
        self._launch(built, grid, call.values, call.views, stream, ordinal)

    def _require_device(self, caller: str, call: Call, ordinal: int) -> None:
        """Raise `LaunchError` for arrays that are not on the device of the launch."""
        for name, array in call.views.items():
            if array.device[1] == ordinal or array is call.first:
                continue
            there = ordinal_of(self.backend, array, caller)
            if there != ordinal and array.size:
                raise LaunchError(
                    f"{caller}: {name} must be on cuda:{ordinal}, as others are, but is on cuda:{there}"
                )

    def ordinal(self, caller: str, call: Call) -> int:
        """The GPU of a call: that of its first array with elements, or the current one."""
        first = call.first
        if first is None or first.device == HOST:
            return self.backend.current_device()
        return ordinal_of(self.backend, first, caller)

    def _from_host(self, built: BuiltFunction, grid: Extents, call: Call, stream: int, ordinal: int) -> None:
        self._require_dense_maps(built, call)
        require_apart(built.signature.name, built.uses, call)
        with Staging(self.backend, stream, ordinal) as staging:
            there = {name: staging.copy_of(array) for name, array in call.views.items()}
            names = built.signature.parameters
            values = [
                there[name].pointer if name in there else value
                for name, value in zip(names, call.values, strict=True)
            ]
            self._launch(built, grid, values, there, stream, ordinal)
            fetched = {
                name: staging.fetch(there[name])
                for name, array in call.views.items()
                if name in built.uses.written and array.size
            }
            staging.wait()
        for name, values_of in fetched.items():
            host_array(call.views[name])[...] = values_of

    def _require_dense_maps(self, built: BuiltFunction, call: Call) -> None:
        """Raise `LaunchError` for arrays whose dense copies cannot have a tensor map."""
        for name in built.maps:
            type, array = built.signature.parameters[name], call.views[name]
            assert isinstance(type, TensorMapType)  # which has boxes
            dense = array._replace(strides=dense_strides(tuple(array.shape)))
            for problem in map_problems(name, type, dense):
                raise LaunchError(f"{built.signature.name}: the dense copy on the GPU: {problem}")

    def _launch(
        self,
        built: BuiltFunction,
        grid: Extents,
        values: Sequence[Any],
        views: Mapping[str, ArrayView],
        stream: int,
        ordinal: int,
    ) -> None:
        if built.maps:
            named = dict(zip(built.signature.parameters, values, strict=True))
            values = self._maps.values(built.maps, named, views, ordinal)
        launch = self._launches.get((built, grid, ordinal))
        if launch is None:
            plan = self.plan(built, grid, values)
            launch = self.backend.repeated(self._load(built, plan, ordinal), plan)
            self._launches.keep((built, grid, ordinal), launch)
        launch.put(values, stream)

    def launch_of(self, built: BuiltFunction, grid: Extents, ordinal: int) -> RepeatedLaunch | None:
        """The prepared launches of a kernel with a grid on a GPU; None before the first launch."""
        return self._launches.get((built, grid, ordinal))

    def loaded(self, built: BuiltFunction, ordinal: int) -> LoadedKernel | None:
        """The loaded kernel on a GPU; None before its first launch there."""
        return self._loaded.get((built, ordinal))

    def plan(self, built: BuiltFunction, grid: Extents, values: Sequence[Any]) -> LaunchPlan:
        """The launch of a kernel with these values of its parameters, which are checked."""
        return LaunchPlan(
            entry=built.kernel.name,
            grid=grid,
            block=built.block,
            dynamic_shared=built.kernel.dynamic_shared_bytes,
            slots=built.slots,
            values=tuple(values),
            attributes=built.attributes,
        )

    def _load(self, built: BuiltFunction, plan: LaunchPlan, ordinal: int) -> LoadedKernel:
        loaded = self.loaded(built, ordinal)
        if loaded is not None:
            return loaded
        with self._lock:
            name, _, version = self.backend.version(built.target).partition(" ")
            cache = self._cache or default_cache()
            key = CacheKey(built.text, built.target.name, name, version)
            program = cache.get_or_build(key, lambda: self.backend.compile(built.text, built.target))
            loaded = self.backend.load(program, plan.entry, plan.dynamic_shared, ordinal)
            return self._loaded.keep((built, ordinal), loaded)


def interpreted(built: BuiltFunction, call: Call) -> list[Any]:
    """The arguments of `ptxgen.interpreter.run`: numpy arrays on the memory of the arrays, which are on
    the host, tensor maps of them, and numbers.
    """
    memory: dict[str, Any] = {name: host_array(array) for name, array in call.views.items()}
    for name, boxes in built.maps.items():
        memory[name] = boxes.of(memory[name])
    names = built.signature.parameters
    return [memory.get(name, value) for name, value in zip(names, call.values, strict=True)]


def limited(max_instructions: int | None) -> dict[str, Any]:
    """The keyword argument of the interpreter that limits instructions; empty for the default."""
    return {} if max_instructions is None else {"max_instructions": max_instructions}


def copies(call: Call) -> Call:
    """The arguments of a call on the host, with copies of its arrays; those of arrays that share memory
    share memory in the same way.
    """
    arrays = {name: host_array(array) for name, array in call.views.items()}
    copied = {name: _copied(array) for name, array in arrays.items()} | copied_together(arrays)
    views = {name: view(array, name) for name, array in copied.items()}
    return Call(call.values, views, next(iter(views.values()), None))


def _copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array; of one that is not dense, which only tensor maps take, with rows padded to a
    multiple of 16 bytes, as tensor maps need them.
    """
    if array.flags.c_contiguous or not array.ndim:
        return np.array(array, order="C")
    *outer, columns = array.shape
    per = MAP_ALIGN // math.gcd(array.itemsize, MAP_ALIGN)
    room = np.zeros((*outer, -(-columns // per) * per), array.dtype)
    room[..., :columns] = array
    return room[..., :columns]
