"""Attention as a config describes it, as an operation: its kernels on a device, and their launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from flash.calls.gpu import Launcher, Prepared
from flash.calls.known import Known, Repeats
from flash.calls.memory import Memory
from flash.calls.operation import CopyingOperation, Result
from flash.calls.step import Step
from flash.contract.catalogue import proved_build
from flash.host.caller import Caller, raise_problems
from flash.launch import varlen
from flash.launch.calls import MATRICES, Call, on_cpu_of, run_on_cpu, step_of
from flash.launch.checks import Geometry, alignment, check, check_addresses, check_limits
from flash.launch.divided import divided, units
from flash.launch.kernel_choice import kernel_of
from flash.launch.key_splits import Division, division_of, fixed_splits, units_of
from flash.launch.operands import require_operands, scale_problems
from flash.launch.scheduler_choice import USUAL_DEVICE, Device
from flash.launch.shared_kv import columns_of, require_shared
from flash.operands.dtypes import F32
from flash.problem.config import ALIGNMENTS, AttentionConfig
from flash.problem.features import ANGLES, SCALES
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import Output
from flash.scores.features import NO_ARRAYS
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView
from ptxgen.errors import LaunchError
from ptxgen.runtime.bounded_cache import BoundedCache

_WRITTEN: Final = ("out",)
NO_OPERANDS: Final = {**NO_ARRAYS, **dict.fromkeys((*varlen.LENGTHS, varlen.TABLE, *SCALES, *ANGLES))}
_NONE: Final[dict[str, ArrayView]] = {}


class Checked(NamedTuple):
    """The results of the checks of a call: its geometry, whether its output has no rows, and the launches of
    calls like it on a GPU, by what else these depend on.
    """

    geometry: Geometry
    is_empty: bool
    launches: dict[tuple[object, ...], Prepared]


class Forward(CopyingOperation[Call]):
    """Forward attention as `config` says, as an operation: checks, launches, and the host's result."""

    def __init__(self, config: AttentionConfig, gpu: Launcher, caller: Caller) -> None:
        super().__init__(gpu, caller, config.target)
        self.config = config
        self.geometries = BoundedCache[tuple[object, ...], Geometry]()
        self._known = Known[Checked]()
        self.repeats = Repeats(self)
        self._output = config.output
        self._operands = tuple([operand.name for operand in config.features.operands])
        self._no_operands = {**NO_OPERANDS, **dict.fromkeys(self._operands)}
        self._reads_contents = config.varlen or SCALES[0] in self._operands

    # ---- arguments

    def views(
        self,
        q: object,
        k: object,
        v: object,
        out: object,
        operands: Mapping[str, object],
        stream: int | None = None,
    ) -> dict[str, ArrayView]:
        """Views of q, k, v and, if it is given, out, and of the operands. Raises `LaunchError` that names all
        arguments that are no arrays, and operands that are missing or not to be given.
        """
        names, caller = self._operands, self.caller.name
        if names or (operands and any(array is not None for array in operands.values())):
            require_operands(self.config.features, {**self._no_operands, **operands}, self.caller)
        arrays = {"q": q, "k": k, "v": v}
        if self.config.shared_kv:
            require_shared(self.config, caller, v=v)
            arrays["v"] = k
        if out is not None:
            arrays["out"] = out
        for name in names:
            arrays[name] = operands[name]
        views = self.read(arrays, stream)
        if self.config.shared_kv:
            views["v"] = columns_of(self.config, views["k"])
        return views

    def checked(self, views: Mapping[str, ArrayView], layout: str, max_seqlen_q: object) -> Checked:
        """The checked geometry of a call, its addresses and the contents of arrays that checks read. Raises
        `LaunchError` with the problems. What only depends on what `Known` compares is checked once.
        """
        is_compared = not self._reads_contents and max_seqlen_q is None
        if is_compared:
            try:
                known = self._known.get((layout,), views)
            except TypeError:  # not hashable, so no valid layout: `check` refuses it
                known = None
            if known is not None:
                return known
        geometry = self.geometry(views, layout, max_seqlen_q)
        self.check_contents(views, geometry)
        checked = Checked(geometry, geometry.is_empty, BoundedCache())
        return self._known.keep((layout,), views, _WRITTEN, checked) if is_compared else checked

    def operands(self, views: Mapping[str, ArrayView]) -> dict[str, ArrayView]:
        """The arrays of the config's features, such as a bias, among the arrays of a call."""
        return {name: views[name] for name in self._operands} if self._operands else _NONE

    def geometry(self, views: Mapping[str, ArrayView], layout: str, max_seqlen_q: object) -> Geometry:
        """The checked geometry of a call; for packed sequences the lengths are checked, too. Raises
        `LaunchError` with every problem that does not depend on addresses.
        """
        config, caller = self.config, self.caller.name
        if not config.varlen:
            if max_seqlen_q is not None:
                raise LaunchError(
                    "launch: max_seqlen_q is given, but the config does not say varlen; use "
                    "AttentionConfig(varlen=True, ...)"
                )
            return self._cached_geometry(views, layout, None)
        operands = self.operands(views)
        geometry = self._cached_geometry(views, layout, varlen.most_queries(operands, max_seqlen_q, caller))
        problems = list(varlen.length_problems(operands, geometry.seq_q, geometry.seq_k, geometry.longest_q))
        if config.page_size is not None:
            problems += varlen.page_problems(operands, geometry.batch, geometry.pages, config.page_size)
        if config.rotary_dim:
            problems += varlen.rotary_problems(operands)
        raise_problems(problems, caller)
        return geometry

    def _cached_geometry(
        self, views: Mapping[str, ArrayView], layout: str, max_seqlen_q: int | None
    ) -> Geometry:
        """The checked geometry of a call, cached for later calls with arrays of the same layout."""
        # [1:6] is all that the checks read: shape, strides, dtype, device, read_only.
        key = (layout, max_seqlen_q, *[array[1:6] for array in views.values()])
        try:
            geometry = self.geometries.get(key)
        except TypeError:  # not hashable, so no valid layout: `check` refuses it
            geometry = None
        if geometry is None:
            self.require_located(views.values())
            geometry = check(
                self.config,
                views["q"],
                views["k"],
                views["v"],
                views.get("out"),
                layout=layout,
                operands=self.operands(views),
                max_seqlen_q=max_seqlen_q,
                caller=self.caller,
            )
            device, ordinal = views["q"].device
            if (device, ordinal) != HOST and ordinal != UNKNOWN_DEVICE:
                self._check_limits(geometry, ordinal)
            self.geometries.keep(key, geometry)
        return geometry

    def check_contents(self, views: Mapping[str, ArrayView], geometry: Geometry) -> None:
        """Raise `LaunchError` with the problems of the addresses of a call's arrays, and of scales."""
        operands, arrays = self.operands(views), tuple(views.values())
        arrays = arrays[: len(arrays) - len(operands)]
        check_addresses(geometry, arrays, operands, self.caller.name)
        if operands:
            raise_problems(list(scale_problems(operands)), self.caller.name)

    def declared(
        self, like: ArrayView, geometry: Geometry, outputs: Iterable[Output], *, out: object
    ) -> list[Result]:
        """The declarations of the new arrays for the results of a call."""
        declared = [] if out is not None else [Result("out", like, geometry.out_shape, self._output)]
        declared += [Result(o.name, like, geometry.shape_of(o), F32, o.initial) for o in outputs]
        return declared

    # ---- kernels

    def _check_limits(self, geometry: Geometry, ordinal: int) -> None:
        """Raise `LaunchError` if the call exceeds a limit of the kernel or the device,
        `ConfigError` if no tile fits the target.
        """
        kernel = kernel_of(self.config, geometry, self.target(ordinal))
        check_limits(geometry, kernel, self.gpu.backend.device_properties(ordinal), self.caller.name)

    def device(self, ordinal: int | None) -> Device:
        """Device properties on which the choice of a kernel depends; usual ones for the interpreter."""
        if ordinal is None:
            return USUAL_DEVICE
        has = self.gpu.backend.device_properties(ordinal)
        return Device(has.multiprocessors, has.l2_cache)

    def kernel(
        self,
        geometry: Geometry,
        ordinal: int | None,
        aligned: int,
        outputs: tuple[Output, ...],
        splits: int = 1,
    ) -> KernelConfig:
        """Choose the kernel for a launch on a device, for arrays aligned to `aligned` bytes."""
        target = None if ordinal is None else self.target(ordinal)
        return kernel_of(self.config, geometry, target, aligned, outputs, splits, self.device(ordinal))

    def division(self, geometry: Geometry, ordinal: int | None, aligned: int) -> Division:
        """How many units of a launch on a device are divided, and into how many splits of the keys."""
        if ordinal is None:
            return Division(0, fixed_splits(self.config))
        kernel = kernel_of(self.config, geometry, self.target(ordinal), aligned)
        return division_of(self.config, kernel, geometry, self.device(ordinal).multiprocessors)

    # ---- the operation

    def arrays(self, call: Call) -> Mapping[str, ArrayView]:
        """See `arrays_of`."""
        return self.arrays_of(call.arrays)

    def arrays_of(self, arrays: Mapping[str, ArrayView]) -> Mapping[str, ArrayView]:
        """The arrays of a call, by name. V that is columns of K is not among them."""
        if not self.config.shared_kv:
            return arrays
        return {name: array for name, array in arrays.items() if name != "v"}

    def over(self, call: Call, arrays: Mapping[str, ArrayView]) -> Call:
        """The same call on other `arrays`, which have the layout of the arrays of this call."""
        if self.config.shared_kv:
            arrays = {**arrays, "v": columns_of(self.config, arrays["k"])}
        return call._replace(arrays=arrays)

    def dense(self, call: Call, arrays: Mapping[str, ArrayView]) -> Call:
        """The same call on `arrays`, which are dense copies of the arrays of this call."""
        there = self.over(call, arrays)
        views = {name: there.arrays[name] for name in (*MATRICES, *self._operands)}
        geometry = self._cached_geometry(views, call.layout, call.geometry.max_seqlen_q)
        return there._replace(geometry=geometry, launches=None)

    def require(self, call: Call, ordinal: int) -> None:
        """Raise `LaunchError` if the device does not hold the call."""
        self._check_limits(call.geometry, ordinal)

    def written(self, call: Call) -> dict[str, bool]:
        """Whether a call writes all elements, by array: rows of no packed sequence are not written."""
        whole = not self.config.varlen
        return {"out": whole} | {o.name: whole or not o.has_rows for o in call.outputs}

    def key(self, call: Call, ordinal: int) -> tuple[object, ...]:
        """A hashable key of all that the launches of a call on a device depend on except addresses."""
        seed = call.numbers.get("dropout_seed", 0)  # the only one that is not the config's
        return call.geometry, self._alignment(call), call.outputs, call.scale, ordinal, seed

    def prepared(self, call: Call, arrays: Mapping[str, ArrayView], ordinal: int) -> Prepared:
        """See `Operation.prepared`. The launches of a known call need no key of its geometry."""
        launches = call.launches
        if launches is None:
            return super().prepared(call, arrays, ordinal)
        of_out = call.arrays["out"].pointer % ALIGNMENTS[0]  # which may be a new array
        key = call.scale, call.numbers.get("dropout_seed", 0), ordinal, of_out, *call.arrays
        known = launches.get(key)
        if known is None:
            known = launches[key] = super().prepared(call, arrays, ordinal)
        return known

    def keep(self, of: tuple[object, ...], call: Call) -> None:
        """Let `repeats` launch later calls like `call`, whose arrays are all the caller's."""
        ordinal = call.arrays["q"].device[1]
        if call.launches and not (self._reads_contents or self.config.shared_kv):
            self.repeats.keep(of, call.arrays, _WRITTEN, self.prepared(call, call.arrays, ordinal))

    def _alignment(self, call: Call) -> int:
        return alignment(self.config, call.geometry, *[call.arrays[name].pointer for name in MATRICES])

    def steps(self, call: Call, ordinal: int | None, memory: Memory) -> Iterator[Step]:
        """The launches of a call on device `ordinal`, None for the interpreter, in their order."""
        geometry, device, outputs = call.geometry, self.device(ordinal), call.outputs
        if ordinal is not None:
            self._check_limits(geometry, ordinal)
        aligned = self._alignment(call)
        whole, splits = self.division(geometry, ordinal, aligned)
        first, rest = call, call
        if whole:
            first, rest = units(call, 0, whole), units(call, whole, units_of(self.config, geometry))
        if whole or splits == 1:
            kernel = self.kernel(first.geometry, ordinal, aligned, outputs)
            yield step_of(first, proved_build(kernel), memory, device)
        if splits > 1:
            kernel = self.kernel(geometry, ordinal, aligned, outputs, splits)
            yield from divided(rest, proved_build(kernel), splits, memory, device)

    def on_cpu(self, call: Call, backend: str) -> None:
        """Compute a call on the host, with numpy or with compiled loops."""
        run_on_cpu(call, on_cpu_of(self.config, backend))
