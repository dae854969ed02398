"""A checked call on a GPU: its kernel is chosen, compiled, loaded and launched."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import Build, proved_build
from flash.host.caller import LAUNCH
from flash.launch.calls import Call, make_plan
from flash.launch.checks import Geometry, Limits, alignment, check, check_limits
from flash.launch.divided import Parts, divided, units
from flash.launch.kernel_choice import kernel_of
from flash.launch.key_splits import Division, division_of, units_of
from flash.launch.scheduler_choice import Device
from flash.launch.shared_kv import columns_of
from flash.launch.step import Step
from flash.launch.workspace import Workspace
from flash.operands.dtypes import F32_BYTES
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.problem.limits import max_seq
from ptxgen.arrays.devices import located, wait_for_producers
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.errors import LaunchError
from ptxgen.runtime.cache import CacheKey, ModuleCache, default_cache
from ptxgen.runtime.cuda import CudaBackend, LoadedKernel
from ptxgen.runtime.kept import Kept
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.target import Target, target_for_device
from ptxgen.target import target as find_target


class Ready(NamedTuple):
    """A loaded kernel, and its launch plan, in which only the addresses change between launches."""

    kernel: LoadedKernel
    plan: LaunchPlan

    def launch(self, backend: CudaBackend, pointers: Sequence[int], stream: int) -> None:
        """Put the kernel on a stream, for arrays at these addresses."""
        backend.launch(self.kernel, self.plan.with_pointers(pointers), stream)


class ReadyTickets(NamedTuple):
    """A loaded kernel on device `ordinal` whose CTAs take tickets, and its launch plan."""

    ready: Ready
    ordinal: int

    @property
    def room(self) -> int:
        """The f32 of memory that a launch needs: those of the counter."""
        return 1

    def launch(self, backend: CudaBackend, pointers: Sequence[int], stream: int, space: ArrayView) -> None:
        """Put the kernel on a stream, for arrays at these addresses, and a counter in `space`, which is
        cleared before: a launch that was stopped may have left a number there.
        """
        backend.clear(space.pointer, F32_BYTES, stream, ordinal=self.ordinal)
        self.ready.launch(backend, [*pointers, space.pointer], stream)


class Launcher:
    """Launches kernels on any GPU of the machine. `cache` keeps compiled kernels; by default it is
    the cache of the process.
    """

    def __init__(self, backend: CudaBackend, cache: ModuleCache | None = None) -> None:
        self.backend = backend
        self._cache = cache
        self._loaded = Kept[tuple[BuiltKernel, int], LoadedKernel]()

    def own_target(self, ordinal: int) -> Target:
        """The target of device `ordinal`, by its compute capability."""
        device = self.backend.device_properties(ordinal)
        return target_for_device(device.major, device.minor)

    def cache_key(self, made: BuiltKernel) -> CacheKey:
        """The key of the compiled kernel in the module cache."""
        target = made.target
        name, _, version = self.backend.version(target).partition(" ")
        return CacheKey(made.text, target.name, name, version)

    def program(self, made: BuiltKernel) -> bytes:
        """The compiled kernel, from the cache or compiled now."""
        cache = self._cache or default_cache()
        target = made.target
        return cache.get_or_build(self.cache_key(made), lambda: self.backend.compile(made.text, target))

    def load(self, made: BuiltKernel, plan: LaunchPlan, ordinal: int) -> LoadedKernel:
        """The kernel loaded on device `ordinal`; `plan` is any launch plan of this kernel."""
        found = self._loaded.get((made, ordinal))
        if found is None:
            program = self.program(made)
            found = self.backend.load(program, plan.entry, plan.dynamic_shared, ordinal)
            self._loaded.keep((made, ordinal), found)
        return found

    def ready(self, step: Step, ordinal: int) -> Ready:
        """A launch on device `ordinal`, with its kernel loaded."""
        return Ready(self.load(step.made, step.plan, ordinal), step.plan)

    def located(self, array: ArrayView, who: str) -> ArrayView:
        """See `ptxgen.arrays.devices.located`."""
        return located(self.backend, array, who)

    def wait_for_producers(self, arrays: Iterable[ArrayView], stream: int, ordinal: int) -> None:
        """See `ptxgen.arrays.devices.wait_for_producers`."""
        wait_for_producers(self.backend, arrays, stream, ordinal)


@functools.lru_cache(maxsize=16)
def launcher_of(backend: CudaBackend) -> Launcher:
    """The launcher of a backend, for kernels that are made without an `AttentionConfig`."""
    return Launcher(backend)


class ReadyDivided(NamedTuple):
    """The loaded kernels of a call whose keys are divided (`flash/launch/divided.py`): one for the first
    units of the call without splits, if there are such, and two for the others, of which Q, K, V, O and LSE
    lie `moved` bytes behind those of the call.
    """

    whole: Ready | None
    attending: Ready
    merging: Ready
    parts: Parts
    moved: tuple[int, ...]
    with_lse: bool

    @property
    def room(self) -> int:
        """The f32 of memory that a launch needs."""
        return self.parts.size

    def launch(self, backend: CudaBackend, pointers: Sequence[int], stream: int, space: ArrayView) -> None:
        """Put the kernels on a stream, for Q, K, V, O, LSE if it is wanted, and the operands at these
        addresses, and partial results in `space`.
        """
        if self.whole is not None:
            self.whole.launch(backend, pointers, stream)
        count = 4 + self.with_lse
        own = [pointer + n for pointer, n in zip(pointers[:count], self.moved, strict=False)]
        inputs, results, operands = own[:3], own[3:], pointers[count:]
        parts = [array.pointer for array in self.parts.within(space)]
        self.attending.launch(backend, [*inputs, *parts, *operands], stream)
        self.merging.launch(backend, [*parts, *results], stream)


class GpuLauncher(Launcher):
    """Launches the kernels of one config."""

    def __init__(
        self,
        config: AttentionConfig,
        backend: CudaBackend,
        cache: ModuleCache | None = None,
        who: str = LAUNCH.name,
    ) -> None:
        super().__init__(backend, cache)
        self._who = who
        self.config = config
        self.space = Workspace(backend)
        self._ready = Kept[
            tuple[Geometry, int, bool, float, int, float], Ready | ReadyTickets | ReadyDivided
        ]()

    def target(self, ordinal: int) -> Target:
        """The config's target, by default the device's own. Raises `LaunchError` if the device does
        not run the config's target.
        """
        if self.config.target is None:
            return self.own_target(ordinal)
        device = self.backend.device_properties(ordinal)
        target = find_target(self.config.target)
        if not target.runs_on(device.major, device.minor):
            raise LaunchError(
                f"launch: the config is for {target}, which {device} does not run; leave "
                "target=None, or use a device of that architecture"
            )
        return target

    def check_limits(self, geometry: Geometry, ordinal: int) -> None:
        """Raise `LaunchError` if the call exceeds a limit of the kernel or the device,
        `ConfigError` if no tile fits the target.
        """
        device = self.backend.device_properties(ordinal)
        kernel = kernel_of(self.config, geometry, self.target(ordinal))
        tiling = kernel.tiling
        limits = Limits(
            tiling.block_q,
            tiling.shared_bytes,
            device.shared_per_block_optin,
            str(device),
            max_seq(self.config.features),
            tiling.value_slices,
            kernel.packed,
        )
        check_limits(geometry, limits, self._who)

    def kernel(
        self, geometry: Geometry, ordinal: int, aligned: int, with_lse: bool, splits: int = 1
    ) -> KernelConfig:
        """The kernel for a launch on a device, for arrays aligned to `aligned` bytes."""
        target = self.target(ordinal)
        has = self.backend.device_properties(ordinal)
        device = Device(has.multiprocessors, has.l2_cache)
        return kernel_of(self.config, geometry, target, aligned, with_lse, splits, device)

    def build(self, geometry: Geometry, ordinal: int, aligned: int, with_lse: bool, splits: int = 1) -> Build:
        """The text and the proofs of `kernel`."""
        return proved_build(self.kernel(geometry, ordinal, aligned, with_lse, splits))

    def division(self, geometry: Geometry, ordinal: int, aligned: int) -> Division:
        """What of a launch on a device is divided, and into how many splits."""
        kernel = kernel_of(self.config, geometry, self.target(ordinal), aligned)
        multiprocessors = self.backend.device_properties(ordinal).multiprocessors
        return division_of(self.config, kernel, geometry, multiprocessors)

    def launch(self, call: Call, stream: int) -> None:
        """Launch the call, whose arrays are on a GPU, on a stream. Returns before it has run."""
        geometry, ordinal = call.geometry, call.q.device[1]
        arrays = (call.q, call.k, call.v, call.out)
        operands = tuple(call.operands.values())
        # An array without elements is not read, so any non-null address will do.
        spare = call.q.pointer
        addresses = tuple([array.pointer or spare for array in arrays])
        aligned = alignment(self.config, geometry, *addresses)
        if call.lse is not None:
            addresses = (*addresses, call.lse.pointer)
        if operands:
            addresses += tuple([array.pointer or spare for array in operands])
        seed = call.numbers.get("dropout_seed", 0)  # the only one that is not the config's
        key = (geometry, aligned, call.lse is not None, call.scale, ordinal, seed)
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready.keep(key, self._make_ready(call, aligned, ordinal, stream, addresses))
        self.wait_for_producers(arrays + operands, stream, ordinal)
        if isinstance(ready, Ready):
            ready.launch(self.backend, addresses, stream)
            return
        with self.space.lock:
            room = self.space.room(call.q, stream, ready.room)
            ready.launch(self.backend, addresses, stream, room)

    def launch_from_host(self, call: Call, stream: int, ordinal: int) -> None:
        """Copy the call's arrays to a GPU, launch there, copy the results back and wait."""
        self.check_limits(call.geometry, ordinal)
        with Staging(self.backend, stream, ordinal) as staging:
            q, k = (staging.copy_of(array) for array in (call.q, call.k))
            v = columns_of(self.config, k) if self.config.shared_kv else staging.copy_of(call.v)
            out = staging.room_for(call.out)
            lse = None if call.lse is None else staging.room_for(call.lse)
            # The geometry is checked again: the copies are dense, the caller's arrays may not be.
            operands = {name: staging.copy_of(array) for name, array in call.operands.items()}
            geometry = check(
                self.config,
                q,
                k,
                v,
                out,
                layout=call.layout,
                operands=operands,
                max_seqlen_q=call.geometry.max_seqlen_q,
            )
            staged = call._replace(geometry=geometry, q=q, k=k, v=v, out=out, lse=lse, operands=operands)
            self.launch(staged, stream)
            fetched = [
                (into, staging.fetch(there))
                for into, there in ((call.out, out), (call.lse, lse))
                if into is not None and there is not None
            ]
            staging.wait()
        for into, values in fetched:
            host_array(into)[...] = values

    def _make_ready(
        self, call: Call, aligned: int, ordinal: int, stream: int, addresses: tuple[int, ...]
    ) -> Ready | ReadyTickets | ReadyDivided:
        self.check_limits(call.geometry, ordinal)
        division = self.division(call.geometry, ordinal, aligned)
        if division.splits > 1:
            return self._make_divided(call, aligned, ordinal, stream, division)
        kernel = self.kernel(call.geometry, ordinal, aligned, call.lse is not None)
        if not kernel.takes_tickets:
            return self._make_whole(call, aligned, ordinal, addresses)
        spare = addresses[0]  # each launch has a counter
        return ReadyTickets(self._make_whole(call, aligned, ordinal, (*addresses, spare)), ordinal)

    def _make_whole(self, call: Call, aligned: int, ordinal: int, addresses: tuple[int, ...]) -> Ready:
        """The launch of a call without splits."""
        made = self.build(call.geometry, ordinal, aligned, call.lse is not None)
        device = self.backend.device_properties(ordinal)
        plan = make_plan(
            made,
            call.geometry,
            call.scale,
            addresses,
            call.numbers,
            device.l2_cache,
            multiprocessors=device.multiprocessors,
        )
        kernel = self.load(made, plan, ordinal)
        made.registers = kernel.registers
        return Ready(kernel, plan)

    def _make_divided(
        self, call: Call, aligned: int, ordinal: int, stream: int, division: Division
    ) -> ReadyDivided:
        """The launches of a call with splits."""
        of_all, whole, rest = call.geometry, None, call
        moved: tuple[int, ...] = (0,) * 5
        if division.whole:
            first, _ = units(call, 0, division.whole)
            rest, moved = units(call, division.whole, units_of(self.config, of_all))
            arrays = (first.q, first.k, first.v, first.out, *([] if first.lse is None else [first.lse]))
            whole = self._make_whole(first, aligned, ordinal, tuple([array.pointer for array in arrays]))
        made = self.build(of_all, ordinal, aligned, call.lse is not None, division.splits)
        parts = Parts.of(rest, division.splits)
        cache_bytes = self.backend.device_properties(ordinal).l2_cache
        with self.space.lock:
            space = self.space.room(call.q, stream, parts.size)
        attending, merging = (
            self.ready(step, ordinal) for step in divided(rest, made, division.splits, space, cache_bytes)
        )
        made.registers = attending.kernel.registers
        return ReadyDivided(whole, attending, merging, parts, moved, call.lse is not None)
