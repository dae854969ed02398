"""`autotune`: a decorator that gives a kernel several configurations, of which launches take the best."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

from ptxgen import __version__
from ptxgen.arguments import integer
from ptxgen.arrays.streams import current_stream, stream_handle
from ptxgen.errors import BackendError, ConfigError, LaunchError, PtxGenError, did_you_mean, shown
from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.function import KernelFunction
from ptxgen.kernels.launch import Call, Extents, checked, extents, require_fit
from ptxgen.records import dataclass
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.cache import default_cache
from ptxgen.runtime.settings import AUTO
from ptxgen.target import Target
from ptxgen.tuning.clock import by_clock
from ptxgen.tuning.configurations import THREADS, Configuration, configurations, words
from ptxgen.tuning.expected import Expected
from ptxgen.tuning.model import by_model, device_of, rank_of
from ptxgen.tuning.ranking import CLOCK, Candidate, Ranking
from ptxgen.tuning.store import InCache, InFile, Store
from ptxgen.types import ScalarType

Grid = Any  # 1 to 3 extents, or a function of the static parameters that returns them
Progress = Callable[[str], None]  # called with the configuration that is judged next
_MOST_REPEATS: Final = 1 << 20


@dataclass(frozen=True)
class _Task:
    """A launch that configurations are chosen for: its checked arguments, the GPU's ordinal (None: the
    interpreter) and stream, the target, and what rankings are stored under.
    """

    grid: Grid
    call: Call
    fixed: Mapping[str, Any]
    ordinal: int | None
    stream: int
    target: Target
    judge: str
    device: str
    problem: Mapping[str, Any]


class TunedKernel:
    """A kernel with several configurations: `f[grid](...)` launches the best one. Made by `autotune`.

    `kernel` is the kernel itself, whose `check`, `prove` and `build` take the parameters of a configuration
    by name. Any thread may use it.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        listed: Sequence[Mapping[str, Any]] | None,
        ranges: Mapping[str, Sequence[Any]],
        key: Sequence[str] | None,
        file: str | PathLike[str] | None,
    ) -> None:
        if not isinstance(kernel, KernelFunction):
            raise ConfigError(
                f"autotune: it needs a kernel, got {shown(kernel)}; write @ptxgen.autotune(...) above "
                "@ptxgen.kernel(...)"
            )
        functools.update_wrapper(self, kernel, updated=())
        self.kernel = kernel
        self.name: str = kernel.name
        self.configurations = configurations(kernel.signature, listed, ranges)
        self._caller = f"autotune of kernel {self.name}"
        self._key = _key(self._caller, kernel, key)
        self._file = None if file is None else Path(file)
        self._chosen: dict[object, Configuration] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<kernel {self.name} with {len(self.configurations)} configurations>"

    def __call__(self, *_: object, **__: object) -> None:
        """Raise TypeError: a launch needs a grid."""
        raise TypeError(f"{self.name}: a launch needs a grid; write {self.name}[grid](...)")

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        """The launch of a grid: up to three extents, or a function of the static parameters, given by name,
        that returns them.
        """
        return functools.partial(self.launch, grid)

    def launch(
        self, grid: Grid, /, *arguments: object, backend: str = AUTO, stream: object = None, **named: Any
    ) -> None:
        """Launch the kernel with the best configuration for these arguments; otherwise as
        `KernelFunction.launch`.

        On a GPU a problem without a ranking is tuned first, as `tune` does. The interpreter takes a stored
        ranking, else the first configuration, and ranks nothing. A launch that names a parameter of the
        configurations itself gets the configuration that it names.

        Raises what `KernelFunction.launch` and `tune` raise.
        """
        chosen: Configuration = {}
        if not any(name in one for one in self.configurations for name in named):
            task = self._task(grid, arguments, named, backend, stream)
            chosen = self._best(task)
        _, fixed = self.kernel.signature.bind(arguments, named)
        extent = self._extents(grid, {**fixed, **chosen})
        self.kernel.launch(extent, *arguments, backend=backend, stream=stream, **named, **chosen)

    def tune(
        self,
        grid: Grid,
        /,
        *arguments: object,
        backend: str = AUTO,
        stream: object = None,
        expected: Mapping[str, Any] | None = None,
        rtol: float = 1e-3,
        atol: float = 1e-5,
        repeats: int = 20,
        progress: Progress | None = None,
        **named: object,
    ) -> Ranking:
        """Rank all configurations for a launch, which takes arguments as `launch` does. The arrays do not
        change: candidates run on copies of those that they write.

        On a GPU the median of `repeats` times ranks; every round measures each candidate once. Without one,
        or with backend="interpreter", a model does (`ptxgen.tuning.model`): the kernel runs on the
        interpreter, so that small arrays are better, under the sanitizers, whose findings rule a
        candidate out. `expected` has results by the name of their array; a candidate with an element x
        that is not |x - y| <= atol + rtol |y| for the expected y is ruled out, too. So is one that cannot be
        built, loaded or run. `progress` is called with each configuration before it is judged.

        The result is stored, for the extents of the arrays, the integers of the launch, the device and the
        texts of the kernels; a candidate is not judged again until its text changes, unless `expected` is
        given.

        Raises `LaunchError` for arguments that do not fit, and `ConfigError` if the file of results cannot be
        read or written. If no configuration works, `Ranking.best` raises.
        """
        if integer(repeats, 1, _MOST_REPEATS) is None:
            raise LaunchError(
                f"{self._caller}: repeats must be an integer from 1 to 2**20, got {shown(repeats)}"
            )
        task = self._task(grid, arguments, named, backend, stream)
        wanted = Expected.of(self._caller, expected, rtol, atol, task.call)
        with self._lock:
            return self._ranked(task, wanted, repeats, progress or (lambda _: None))

    # ------------------------------------------------------------------------------------- choosing

    def _best(self, task: _Task) -> Configuration:
        """The configuration of a launch, by a ranking that is stored or, on a GPU, made now."""
        key = (task.ordinal, task.device, repr(task.problem))
        chosen = self._chosen.get(key)
        if chosen is None:
            with self._lock:
                stored = self._stored(task)
                if stored is None and task.ordinal is not None:
                    stored = self._ranked(task, Expected({}, 0.0, 0.0), 20, lambda _: None)
                chosen = self.configurations[0] if stored is None else self._named(stored.best.configuration)
                self._chosen[key] = chosen
        return chosen

    def _stored(self, task: _Task) -> Ranking | None:
        """The stored ranking of a problem if it has all configurations, and the text of its best one is what
        would be built now.
        """
        ranking = self._store().get(self.name, task.judge, task.device, task.problem)
        if ranking is None or not ranking.candidates[0].works:
            return None
        if {c.configuration for c in ranking.candidates} != set(map(words, self.configurations)):
            return None
        best = ranking.candidates[0]
        built = self._build(task, self._named(best.configuration))
        return ranking if built.sha256 == best.sha256 else None

    def _named(self, text: str) -> Configuration:
        return next(one for one in self.configurations if words(one) == text)

    def _ranked(self, task: _Task, wanted: Expected, repeats: int, say: Progress) -> Ranking:
        built, failed = dict[str, tuple[BuiltFunction, Extents]](), dict[str, Candidate]()
        for one in self.configurations:
            name = words(one)
            try:
                kernel = self._build(task, one)
                require_fit(self.name, kernel.uses, task.call)
                built[name] = kernel, self._extents(task.grid, {**task.fixed, **one})
            except PtxGenError as error:
                failed[name] = Candidate(name, problem=str(error))
        store = self._store()
        before = store.get(self.name, task.judge, task.device, task.problem)
        known = {} if before is None or wanted.arrays else {c.configuration: c for c in before.candidates}
        same = {n: known[n] for n, (k, _) in built.items() if n in known and known[n].sha256 == k.sha256}
        if task.ordinal is not None:
            if len(same) < len(built):
                same = by_clock(
                    self.kernel.runner, built, task.call, task.ordinal, task.stream, wanted, repeats, say
                )
            order: Callable[[Candidate], Any] = lambda c: (not c.works, c.cost)  # noqa: E731
        else:
            same |= {n: self._modelled(n, *of, task, wanted, say) for n, of in built.items() if n not in same}
            order = rank_of
        rows = {**failed, **same}
        every = sorted((rows[words(one)] for one in self.configurations), key=order)
        ranking = Ranking(self.name, task.judge, task.device, task.problem, tuple(every))
        store.put(ranking)
        self._chosen.clear()
        return ranking

    def _modelled(
        self, name: str, built: BuiltFunction, grid: Extents, task: _Task, wanted: Expected, say: Progress
    ) -> Candidate:
        say(name)
        try:
            return by_model(name, built, grid, task.call, wanted)
        except PtxGenError as error:
            return Candidate(name, built.sha256, problem=str(error))

    # --------------------------------------------------------------------------------------- the task

    def _task(
        self,
        grid: Grid,
        arguments: tuple[object, ...],
        named: Mapping[str, object],
        backend: str,
        stream: object,
    ) -> _Task:
        kernel = self.kernel
        values, fixed = kernel.signature.bind(arguments, named)
        explicit = None if stream is None else stream_handle(stream, self.name)
        call = checked(self.name, kernel.signature.parameters, values, explicit)
        on_gpu = kernel.runner.choose(self.name, backend, call) == "cuda"
        ordinal = kernel.runner.ordinal(self.name, call) if on_gpu else None
        target = kernel.target_of(ordinal)
        if explicit is None:
            explicit = current_stream(call.first) if call.is_on_gpu and call.first is not None else 0
        problem: dict[str, Any] = {}
        for (name, type), value in zip(kernel.signature.parameters.items(), call.values, strict=True):
            if name not in self._key:
                continue
            if name in call.views:
                problem[name] = list(call.views[name].shape)
            elif isinstance(type, ScalarType) and type.is_integer:
                problem[name] = value
        problem |= {name: repr(value) for name, value in fixed.items()}
        if not callable(grid):
            problem["grid"] = list(extents(self.name, "grid", grid))
        if ordinal is None:
            of = device_of(target)
            judge, device = f"model, ptxgen {__version__}", target.name + (f" ({of.name})" if of else "")
        else:
            judge, device = CLOCK, kernel.runner.backend.device_properties(ordinal).name
        return _Task(
            grid, call, fixed, ordinal, explicit, target, f"{judge}{_assembler(target)}", device, problem
        )

    def _build(self, task: _Task, one: Configuration) -> BuiltFunction:
        return self.kernel.build(target=task.target, **{**task.fixed, **one})

    def _extents(self, grid: Grid, chosen: Configuration) -> Extents:
        """The number of CTAs of a launch along x, y and z, with these static parameters."""
        if callable(grid):
            statics = {name: value for name, value in chosen.items() if name != THREADS}
            signature = self.kernel.signature
            grid = signature.chosen("grid", grid, signature.static_values(statics))
        return extents(self.name, "grid", grid)

    def _store(self) -> Store:
        return InCache(default_cache().disk) if self._file is None else InFile(self._file)


def _key(caller: str, kernel: KernelFunction, key: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the arguments that rankings depend on."""
    names = kernel.signature.parameters
    if key is None:
        return tuple(names)
    if isinstance(key, str) or not isinstance(key, Sequence):
        raise ConfigError(f"{caller}: key must be a tuple of names of arguments, got {shown(key)}")
    for name in key:
        if name not in names:
            raise ConfigError(
                f"{caller}: key has {name!r}, which is no argument of the kernel ({', '.join(names)})"
                f"{did_you_mean(str(name), names)}"
            )
    return tuple(key)


def _assembler(target: Target) -> str:
    """The assembler, as the end of a judge's name; empty if there is none."""
    try:
        assembler = find_assembler(target=target.name)
    except BackendError:
        return ""
    return f", {assembler.name} {assembler.version}"


def autotune(
    listed: Sequence[Mapping[str, Any]] | None = None,
    /,
    *,
    key: Sequence[str] | None = None,
    file: str | PathLike[str] | None = None,
    **ranges: Sequence[Any],
) -> Callable[[KernelFunction], TunedKernel]:
    """Give a kernel configurations: a list of dicts, or ranges, of which every combination is one. They name
    keyword-only parameters of the kernel, and "threads", the threads of a CTA.

    Launches take the best configuration for their arguments: for the extents of their arrays and their
    integers, or only those that `key` names. Rankings are stored in the cache of compiled modules, or in
    `file`, JSON that other machines and people can use.

    >>> import ptxgen as px
    >>> from ptxgen import Pointer, f32, u32
    >>> @px.autotune(block=(64, 256), each=(1, 4))
    ... @px.kernel(threads=lambda *, block, each: block)
    ... def scale(k, X: Pointer[f32], n: u32, *, block, each):
    ...     for part in range(each):
    ...         i = (k.block_id() * each + part) * block + k.thread_id()
    ...         with k.when(i < n):
    ...             X[i] = X[i] * 2

    Raises `ConfigError` for configurations that the kernel cannot have.
    """
    return lambda kernel: TunedKernel(kernel, listed, ranges, key, file)
