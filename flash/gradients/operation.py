"""The gradients of attention as a config describes it, as an operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from flash.calls.gpu import Launcher
from flash.calls.memory import ALIGNED, Memory
from flash.calls.operation import Operation, Result, ordinal_of
from flash.calls.step import Step
from flash.cpu.engine_choice import engine_of
from flash.gradients.checks import WRITTEN, Checks, alignment
from flash.gradients.steps import GradientCall, memory_of, run_on_cpu, steps_of, sum_name
from flash.host.caller import Caller
from flash.launch.operands import require_operands
from flash.operands.dtypes import OF_ARRAYS
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.gradient_choice import Sweeps, against_order, gradient_config, sweeps_of
from flash.problem.gradients import owners_of
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView, host_array
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.settings import WITHOUT_KERNELS
from ptxgen.target import Target
from ptxgen.target import target as find_target

_OPTIONAL: Final = ("dlse", *WRITTEN)


class Gradient(Operation[GradientCall]):
    """The gradients of attention as `config` says; `sweeps` and `deterministic` are as in
    `AttentionGradient`.
    """

    results: ClassVar = tuple(WRITTEN)
    of_gradients: ClassVar = True

    def __init__(
        self, config: AttentionConfig, gpu: Launcher, caller: Caller, sweeps: int | None, deterministic: bool
    ) -> None:
        super().__init__(gpu, caller, config.target)
        self.config = config
        self.checks = Checks(config, caller)
        self._operands = tuple([operand.name for operand in config.gradient_features.operands])
        self._has_kernels: set[tuple[int | None, Target]] = set()
        self._sweeps: dict[Target, Sweeps] = {}
        self._asked_sweeps = sweeps, deterministic

    # ---- arguments

    def views(
        self, named: Mapping[str, object], scores: Mapping[str, object], stream: int | None
    ) -> tuple[dict[str, ArrayView], dict[str, ArrayView]]:
        """Views of the arrays of a call, and of its operands, by name. Raises `LaunchError` that names all
        arguments that are no arrays, and operands that are missing or not allowed.
        """
        operands = {**dict.fromkeys(self._operands), **scores}
        require_operands(self.config.gradient_features, operands, self.caller)
        arrays = {name: array for name, array in named.items() if array is not None or name not in _OPTIONAL}
        read = self.read({**arrays, **{name: operands[name] for name in self._operands}}, stream)
        self.require_located(read.values())
        return {name: read[name] for name in arrays}, {name: read[name] for name in self._operands}

    def declared(
        self,
        views: Mapping[str, ArrayView],
        operands: Mapping[str, ArrayView],
        written: Iterable[str],
        wanted: Iterable[str],
    ) -> Iterator[Result]:
        """The new arrays for the results of a call, which writes those `written` of dq, dk and dv."""
        for name in written:
            of = WRITTEN[name]
            if name not in views:
                yield Result(name, views[of], views[of].shape, self.config.output)
        for name in wanted:
            array = operands[name]
            yield Result(sum_name(name), array, array.shape, OF_ARRAYS[array.dtype])

    def clear(self, arrays: Iterable[ArrayView], stream: int) -> None:
        """Set all elements of dense arrays to 0, on a GPU in stream order."""
        for array in arrays:
            if array.device == HOST:
                host_array(array)[...] = 0
            elif array.size:
                nbytes = array.size * numpy_type(array.dtype).itemsize
                ordinal = self.gpu.located(array, self.caller.name).device[1]
                self.gpu.backend.clear(array.pointer, nbytes, stream, ordinal=ordinal)

    # ---- kernels

    def ordinal(self, backend: str, arrays: Mapping[str, ArrayView]) -> int | None:
        """The ordinal of the GPU that runs a call; None for a call that runs on no GPU."""
        if backend != "cuda":
            return None
        if arrays["q"].device == HOST:
            return self.gpu.backend.current_device()
        ordinal = ordinal_of(arrays.values())
        return None if ordinal == UNKNOWN_DEVICE else ordinal

    def target_of(self, ordinal: int | None) -> Target:
        """The target of the kernels on a device; `ordinal` None is the interpreter."""
        return find_target(self.config.target or DEFAULT_TARGET) if ordinal is None else self.target(ordinal)

    def sweeps(self, target: Target) -> Sweeps:
        """The number of sweeps that kernels for a target make, and the reason."""
        if target not in self._sweeps:
            asked, deterministic = self._asked_sweeps
            self._sweeps[target] = sweeps_of(self.config, asked, target, deterministic=deterministic)
        return self._sweeps[target]

    def require_kernels(self, backend: str, ordinal: int | None) -> Sweeps:
        """The sweeps that kernels make; two without kernels. Raises `ConfigError` if the backend needs
        kernels and the target has none, and `LaunchError` if they need more shared memory than the device
        has.
        """
        if backend in WITHOUT_KERNELS:
            return Sweeps(2, "without kernels")
        target, caller = self.target_of(ordinal), self.caller.name
        sweeps = self.sweeps(target)
        if (ordinal, target) in self._has_kernels:
            return sweeps
        against = against_order(self.config, target.name) if sweeps.in_order else ""
        if against:
            raise ConfigError(
                f"{caller}: sweeps=1 with deterministic=True has no kernels for {target}, because {against}; "
                "give deterministic=False, or leave sweeps out"
            )
        how: dict[str, Any] = {"one_sweep": sweeps.number == 1, "in_order": sweeps.in_order, "caller": caller}
        for owner in owners_of(one_sweep=sweeps.number == 1):
            kernel = gradient_config(self.config, owner, target, ALIGNED, **how)
            if ordinal is None:
                continue
            needed, device = kernel.tiling.shared_bytes, self.gpu.backend.device_properties(ordinal)
            if needed > device.shared_per_block_optin:
                raise LaunchError(
                    f"{caller}: a kernel for {target} needs {needed} bytes of shared memory per block, but "
                    f"{device} allows {device.shared_per_block_optin}; leave target=None"
                )
        self._has_kernels.add((ordinal, target))
        return sweeps

    # ---- the operation

    def arrays(self, call: GradientCall) -> dict[str, ArrayView]:
        """See `Operation.arrays`."""
        return {**call.arrays, **call.operands, **{sum_name(n): array for n, array in call.sums.items()}}

    def over(self, call: GradientCall, arrays: Mapping[str, ArrayView]) -> GradientCall:
        """See `Operation.over`."""
        others, operands = ({name: arrays[name] for name in of} for of in (call.arrays, call.operands))
        sums = {name: arrays[sum_name(name)] for name in call.sums}
        return call._replace(arrays=others, operands=operands, sums=sums)

    def dense(self, call: GradientCall, arrays: Mapping[str, ArrayView]) -> GradientCall:
        """See `Operation.dense`."""
        there, checked = self.over(call, arrays), call.checked
        longest = (checked.longest_q, checked.longest_k) if self.config.varlen else (None, None)
        return there._replace(checked=self.checks.check(there.arrays, there.operands, call.layout, longest))

    def written(self, call: GradientCall) -> dict[str, bool]:
        """See `Operation.written`: rows of no packed sequence keep their contents, and gradients of arrays of
        scores their zeros where no query meets a key.
        """
        rows = dict.fromkeys(call.written, not self.config.varlen)
        return {**rows, **{sum_name(name): False for name in call.sums}}

    def key(self, call: GradientCall, ordinal: int) -> tuple[object, ...]:
        """See `Operation.key`."""
        aligned = alignment(self.config, call.arrays)
        of_features = tuple(call.numbers.items()), tuple(call.sums)
        return call.checked, aligned, call.scale, *of_features, call.layout, call.written, ordinal

    def steps(self, call: GradientCall, ordinal: int | None, memory: Memory) -> Iterator[Step]:
        """See `Operation.steps`."""
        space = {
            name: memory.array(needed.shape, needed.dtype, is_cleared=needed.is_cleared)
            for name, needed in memory_of(call, self.target_of(ordinal), self.caller.name).items()
        }
        return steps_of(call, self.target_of(ordinal), space, self.caller.name)

    def on_cpu(self, call: GradientCall, backend: str) -> None:
        """See `Operation.on_cpu`."""
        run_on_cpu(call, engine_of(backend))
