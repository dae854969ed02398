"""`KernelFunction`: a Python function as a kernel."""

from __future__ import annotations

import functools
import statistics
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ptxgen import ir
from ptxgen.arguments import integer
from ptxgen.arrays.streams import current_stream, stream_handle
from ptxgen.arrays.views import HOST
from ptxgen.check.prove.contract import Size
from ptxgen.check.resources import Resources
from ptxgen.dsl import KernelBuilder, PointerType
from ptxgen.dsl.hopper import cluster_of
from ptxgen.errors import ConfigError, LaunchError, PtxGenError, TrapError, shown
from ptxgen.fragments import fragment
from ptxgen.interpreter import PCT, Result
from ptxgen.interpreter.schedule.policies import LOCKSTEP, Schedule
from ptxgen.kernels.built import GRID, BuiltFunction
from ptxgen.kernels.captured import Captured
from ptxgen.kernels.findings import Findings, findings_of
from ptxgen.kernels.judging import require_not_refuted, require_verified
from ptxgen.kernels.last_launch import LastLaunch
from ptxgen.kernels.launch import Call, Extents, Read, Runner, copies, extents, limited, read, require_fit
from ptxgen.kernels.signature import Signature, block_of, key_of
from ptxgen.runtime.attributes import NO_ATTRIBUTES, LaunchAttributes
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.caller_arguments import cache_of, gpu_of
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.plan import require_whole_clusters
from ptxgen.runtime.settings import AUTO
from ptxgen.target import Target, target_for_device
from ptxgen.target import target as find_target
from ptxgen.tensormap import Boxes, TensorMapType
from ptxgen.types import ScalarType

if TYPE_CHECKING:
    from ptxgen.check.prove import Proofs

Threads = int | tuple[int, ...]

DEFAULT_TARGET: Final = "sm_80"  # of emitted text and of the interpreter; a launch takes the device's
_RESERVED: Final = (
    "align", "backend", "bounds", "grid", "max_instructions", "repeats", "stream", "target", "threads",
)  # fmt: skip
_SCHEDULES: Final = (LOCKSTEP, PCT(0), PCT(1))


class KernelFunction:
    """A Python function as a kernel: `scale[grid](x, n, 0.5)` launches it on arrays.

    `ptxgen.kernel` makes it. The function runs when the kernel is built, once for each target, block size and
    choice of its keyword-only parameters; the built kernel is verified and cached. Any thread may use it.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *,
        threads: Threads | Callable[..., Threads],
        min_ctas: int = 0,
        cluster: int | tuple[int, ...] | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
        target: str | None = None,
        asserts: bool = False,
        proved: bool = True,
        cuda: CudaBackend | None = None,
        cache: ModuleCache | None = None,
    ) -> None:
        if isinstance(function, KernelFunction):
            raise ConfigError(f"kernel {function.name}: it is a kernel already; pass the function")
        self.name: str = getattr(function, "__name__", "")
        self.signature = Signature.of(function)
        functools.update_wrapper(self, function, updated=())
        taken = [name for name in _RESERVED if name in (*self.signature.parameters, *self.signature.statics)]
        if taken:
            raise ConfigError(
                f"kernel {self.name}: {' and '.join(taken)} cannot be a parameter, because launches have "
                "arguments of that name; rename it"
            )
        self._function = function
        self._captured = Captured(function)
        self._threads = threads
        self._min_ctas = min_ctas
        self._asserts = asserts
        self._proved = proved
        extents = cluster_of(f"kernel {self.name}", cluster)
        self._attributes = LaunchAttributes(extents, bool(cooperative), bool(programmatic)).canonical()
        self._target = None if target is None else find_target(target)
        caller = f"kernel {self.name}"
        self.runner = Runner(gpu_of(caller, cuda), cache_of(caller, cache))
        self._built: dict[tuple[object, ...], BuiltFunction] = {}
        # By target, built with default choices in a state of what the function captures.
        self._plain: dict[str, tuple[object, BuiltFunction]] = {}
        self._last: LastLaunch | None = None  # with default choices
        self._lock = threading.RLock()  # the function runs once for each choice
        self._targets: dict[int, Target] = {}  # of devices

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self.signature.parameters)})>"

    def _repr_html_(self) -> str:
        """The kernel that is built by default, in a notebook; of one that cannot be, the reason."""
        try:
            return self.build()._repr_html_()
        except (PtxGenError, TypeError) as error:
            return fragment(repr(self), str(error))

    def __call__(self, *_: object, **__: object) -> None:
        """Raise TypeError: a launch needs a grid."""
        raise TypeError(f"{self.name}: a launch needs a grid; write {self.name}[grid](...)")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """The launch of a grid: `f[blocks](...)`, `f[x, y](...)`, or `f[blocks, ...]` with up to
        three extents.
        """
        return functools.partial(self.launch, grid)

    # ------------------------------------------------------------------------------------- building

    def build(
        self, /, *, target: Target | str | None = None, threads: Threads | None = None, **statics: Any
    ) -> BuiltFunction:
        """The kernel for a target (by default that of the decorator, else sm_80), a block of
        `threads` threads, a number or those along x, y and z (by default that of the decorator), and the
        static parameters.

        Raises what the function raises, `ConfigError` for invalid choices, `VerifyError` if the
        kernel is no valid PTX.
        """
        return self._build(find_target(target or self._target or DEFAULT_TARGET), threads, statics)

    def emit(
        self, /, *, target: Target | str | None = None, threads: Threads | None = None, **statics: Any
    ) -> ir.Module:
        """The module that `build` verifies and caches, emitted anew: to look at one that is not valid with
        `ptxgen.text.render`.

        Takes what `build` takes. Raises what the function raises, and `ConfigError` for invalid choices.
        """
        built_for = find_target(target or self._target or DEFAULT_TARGET)
        block, values = self._choice(built_for, threads, statics)
        return self._emit(built_for, block, values, self._asserts)[0]

    def _build(self, target: Target, threads: Threads | None, statics: Mapping[str, Any]) -> BuiltFunction:
        if statics or threads is not None:
            return self._specialised(target, threads, statics, self._asserts)
        last = self._plain.get(target.name)
        if last is None or last[0] is None or last[0] is not self._captured.state():
            built = self._specialised(target, None, {}, self._asserts)
            last = self._plain[target.name] = self._captured.state(), built
        return last[1]

    def _specialised(
        self, target: Target, threads: Threads | None, statics: Mapping[str, Any], asserts: bool
    ) -> BuiltFunction:
        block, values = self._choice(target, threads, statics)
        key = self._key(target, block, asserts, values)
        built = self._built.get(key)
        if built is None:
            with self._lock:
                key = self._key(target, block, asserts, values)  # another thread may have built it
                built = self._built.get(key)
                if built is None:
                    built = self._verified(target, block, values, asserts)
                    self._captured.built()
                    self._built[self._key(target, block, asserts, values)] = built
        return built

    def _key(
        self, target: Target, block: Extents, asserts: bool, statics: Mapping[str, Any]
    ) -> tuple[object, ...]:
        """The key of a built kernel: all that its PTX text depends on, such as the target."""
        try:
            chosen = tuple(map(key_of, statics.values()))
        except TypeError as error:
            raise ConfigError(
                f"kernel {self.name}: static parameters must be hashable, got {shown(statics)}"
            ) from error
        return target.name, block, asserts, self._captured.key(), chosen

    def _choice(
        self, target: Target, threads: Threads | None, statics: Mapping[str, Any]
    ) -> tuple[Extents, dict[str, Any]]:
        """The choices of a build: the threads of a CTA along x, y and z, and all static parameters."""
        values = self.signature.static_values(statics)
        if threads is None:
            of_kernel = self._threads
            threads = (
                self.signature.chosen("threads", of_kernel, values) if callable(of_kernel) else of_kernel
            )
        return block_of(self.name, threads, target), values

    def _emit(
        self, target: Target, block: Extents, statics: Mapping[str, Any], asserts: bool
    ) -> tuple[ir.Module, Mapping[str, Boxes]]:
        """The module, not verified, and the boxes that it fixes for its tensor maps."""
        k = KernelBuilder(
            self.name,
            target=target,
            threads=block,
            min_ctas=self._min_ctas,
            cluster=self._attributes.cluster,
            asserts=asserts,
        )
        parameters = [self._declared(k, name, type) for name, type in self.signature.parameters.items()]
        result: object = self._function(k, *parameters, **statics)
        if result is not None:
            raise ConfigError(
                f"kernel {self.name}: the function must return nothing, got {shown(result)}; store results"
            )
        return k.build(), k.tma.boxes()

    def _verified(
        self, target: Target, block: Extents, statics: Mapping[str, Any], asserts: bool
    ) -> BuiltFunction:
        module, maps = self._emit(target, block, statics, asserts)
        require_verified(self.name, module, programmatic=self._attributes.programmatic)
        return BuiltFunction(self.signature, module, target, block, maps, self._attributes)

    @staticmethod
    def _declared(k: KernelBuilder, name: str, type: PointerType | TensorMapType | ScalarType) -> Any:
        """A parameter of the kernel, declared, as the object that is passed to the function."""
        if isinstance(type, TensorMapType):
            return k.tma.tensor_map(name, type.dtype, type.rank)
        return k.pointer(name, type.dtype) if isinstance(type, PointerType) else k.param(name, type)

    @property
    def ptx(self) -> str:
        """The PTX text of the kernel with the default target, block and static parameters."""
        return self.build().text

    @property
    def resources(self) -> Resources:
        """The resources of the kernel with the default target, block and static parameters."""
        return self.build().resources

    # ------------------------------------------------------------------------------------ launching

    def launch(
        self,
        grid: object,
        /,
        *arguments: object,
        threads: Threads | None = None,
        stream: object = None,
        backend: str = AUTO,
        max_instructions: int | None = None,
        **named: object,
    ) -> None:
        """Launch `grid` CTAs: 1 to 3 extents, x first.

        The arguments are those of the function after the builder, by position or name, and its static ones by
        name. A pointer takes a dense array of its element type: numpy, torch, CuPy, JAX, or anything with
        `__cuda_array_interface__` or `__dlpack__`. A tensor map takes an array with strides of a multiple of
        16 bytes, whose descriptor is encoded and cached. `threads` is another block size than the
        decorator's.

        `backend`: "cuda", which copies arrays of the host there and back; "interpreter"; or "auto":
        PTXGEN_BACKEND, else "cuda" for arrays on a GPU or if a GPU opens, else "interpreter". On a
        GPU the work is put on `stream` (an integer, or a stream object; default: the current one of
        the first array's library) and may not have run on return, unless arrays are on the host.
        `max_instructions` is for the interpreter: it stops a kernel that executes more in sequence, in one
        batch of CTAs (default: 20 million, which are minutes).

        Raises TypeError for missing and unknown arguments, `LaunchError` with every problem of the
        arguments before anything is asked of a device, what `build` raises, `VerifyError` on a GPU if
        the proof of shared memory and barriers says that the launch goes wrong, and `BackendError` if the
        backend fails.
        """
        extent, of, statics, explicit = self._read(grid, arguments, named, stream)
        has_defaults = not statics and threads is None and max_instructions is None
        last = self._last if has_defaults and type(backend) is str and backend in (AUTO, "cuda") else None
        if last is not None and last.put(extent, of, self._captured.state(), explicit):
            return
        call = of.call(self.name, self.signature.parameters)
        name = self.runner.choose(self.name, backend, call)
        if name == "interpreter":
            if explicit is not None:
                raise LaunchError(
                    f"{self.name}: stream is for a GPU, but the backend is {name!r}; leave out the stream"
                )
            built = self._build(self.target_of(None), threads, statics)
            require_fit(self.name, built.uses, call)
            self._interpret(built, extent, call, max_instructions)
            return
        if max_instructions is not None:
            raise LaunchError(
                f"{self.name}: max_instructions is for the interpreter, but the backend is {name!r}; leave "
                "it out, or use backend='interpreter'"
            )
        ordinal = self.runner.ordinal(self.name, call)
        built = self._build(self.target_of(ordinal), threads, statics)
        self._require_right(built, call)
        self.runner.on_gpu(built, extent, call, explicit, ordinal)
        if has_defaults and not (self._proved and built.refutations()):
            launch = self.runner.launch_of(built, extent, ordinal)
            self._last = LastLaunch.of(extent, built, call, launch, self._captured.state())

    def _interpret(self, built: BuiltFunction, extent: Extents, call: Call, limit: int | None) -> None:
        """Interpret the kernel, and print the text that it prints, also if it stops with an error."""
        printed = ""
        try:
            printed = self.runner.interpret(built, extent, call, **limited(limit)).printed
        except TrapError as error:
            printed = error.printed
            raise
        finally:
            sys.stdout.write(printed)

    def _require_right(self, built: BuiltFunction, call: Call) -> None:
        """Raise the errors of a launch on a GPU: for arguments that do not fit, and for violations of the
        proof.
        """
        require_fit(self.name, built.uses, call)
        if self._proved:
            require_not_refuted(built, call)

    def _read(
        self, grid: object, arguments: tuple[object, ...], named: Mapping[str, object], stream: object
    ) -> tuple[Extents, Read, dict[str, Any], int | None]:
        extent = extents(self.name, "grid", grid)
        if self._attributes is not NO_ATTRIBUTES:
            require_whole_clusters(self.name, extent, self._attributes.cluster)
        values, statics = self.signature.bind(arguments, named)
        explicit = None if stream is None else stream_handle(stream, self.name)
        return extent, read(self.signature.parameters, values, explicit), statics, explicit

    def target_of(self, ordinal: int | None, default: Target | str = DEFAULT_TARGET) -> Target:
        """The target of a launch: that of the decorator, else the device's own, or `default` without a
        device. Raises `LaunchError` if the device does not run it.
        """
        if ordinal is None:
            return self._target or find_target(default)
        target = self._targets.get(ordinal)
        if target is None:
            target = self._targets[ordinal] = self._target_on(ordinal)
        return target

    def _target_on(self, ordinal: int) -> Target:
        device = self.runner.backend.device_properties(ordinal)
        if self._target is None:
            return target_for_device(device.major, device.minor)
        if not self._target.runs_on(device.major, device.minor):
            raise LaunchError(
                f"{self.name}: the kernel is for {self._target}, which {device} does not run; leave "
                "target=None, or use a device of that architecture"
            )
        return self._target

    # ------------------------------------------------------------------------------------- checking

    def check(
        self,
        grid: object,
        /,
        *arguments: object,
        threads: Threads | None = None,
        max_instructions: int | None = None,
        **named: object,
    ) -> Findings:
        """Run the kernel with all sanitizers of the interpreter under three schedules, on copies of the
        arrays, which are on the host. Findings that are `clean` mean: no race, no access outside an array, no
        read of memory that was never written, no misuse of a barrier, and no assertion that does not hold in
        these runs. Each run ends after `max_instructions`, as those of `launch` do.

        Raises what `launch` raises.
        """
        extent, of, statics, _ = self._read(grid, arguments, named, None)
        call = of.call(self.name, self.signature.parameters)
        self.runner.choose(self.name, "interpreter", call)
        built = self._specialised(self.target_of(None), threads, statics, asserts=True)
        require_fit(self.name, built.uses, call)

        def run(schedule: Schedule) -> Result:
            how = {"sanitize": True, "raise_on_report": False, "schedule": schedule}
            return self.runner.interpret(built, extent, copies(call), **how, **limited(max_instructions))

        return findings_of(run, _SCHEDULES)[0]

    def bench(
        self,
        grid: object,
        /,
        *arguments: object,
        repeats: int = 20,
        threads: Threads | None = None,
        stream: object = None,
        **named: object,
    ) -> float:
        """The median device time of a launch in milliseconds, of `repeats` launches one after
        another, for arrays on a GPU. The kernel is built, loaded and launched once before.

        Raises what `launch` raises, and `LaunchError` for arrays on the host.
        """
        if integer(repeats, 1, 1 << 20) is None:
            raise LaunchError(
                f"{self.name}: repeats must be an integer from 1 to 2**20, got {shown(repeats)}"
            )
        extent, of, statics, explicit = self._read(grid, arguments, named, stream)
        call = of.call(self.name, self.signature.parameters)
        if call.first is None or call.first.device == HOST:
            raise LaunchError(
                f"{self.name}: bench measures with arrays on a GPU, and there are none; copy the arrays there"
            )
        ordinal, gpu = self.runner.ordinal(self.name, call), self.runner
        built = self._build(self.target_of(ordinal), threads, statics)
        self._require_right(built, call)
        on = current_stream(call.first) if explicit is None else explicit
        work = functools.partial(gpu.on_gpu, built, extent, call, on, ordinal)
        work()
        times = [gpu.backend.elapsed_ms(work, on, ordinal=ordinal) for _ in range(repeats)]
        return float(statistics.median(times))

    def prove(
        self,
        /,
        *,
        grid: Size | tuple[Size, ...] = GRID,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        align: int | None = None,
        target: Target | str | None = None,
        threads: Threads | None = None,
        **dimensions: Any,
    ) -> Proofs:
        """Prove all accesses to memory and the barriers, for every launch of `grid` CTAs (along
        x, or a tuple) in which the arrays are dense and have the given dimensions.

        Each pointer is given by name, as a tuple of dimensions, outermost first: integers, or
        expressions of sizes, such as `X=("rows", "columns")`. Sizes are integer parameters of the
        kernel, `"grid"`, and names in `bounds`, which has their lowest and highest values; by
        default sizes are from 1 to 2**31 - 1. `align` promises that each array and each of its rows
        begins at a multiple of that many bytes (default: of its elements), which accesses to several
        elements need. Static parameters are given by name, too.

        >>> softmax.prove(X=("grid", "columns"), Y=("grid", "columns")).complete  # doctest: +SKIP
        True

        Raises `LaunchError` for dimensions that are missing or cannot be read.
        """
        statics = {name: value for name, value in dimensions.items() if name in self.signature.statics}
        arrays = {name: dims for name, dims in dimensions.items() if name not in statics}
        built = self.build(target=target, threads=threads, **statics)
        return built.prove(arrays, bounds or {}, grid, align)

    def contract(self, **choices: Any) -> dict[str, Any]:
        """The launch contract for host programs in any language, as plain data for JSON;
        `choices` are those of `build`.
        """
        return self.build(**choices).contract()
