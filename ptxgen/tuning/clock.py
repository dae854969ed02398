"""How long launches take on a GPU. Each round measures every candidate, so that a clock that changes favours
none.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import HOST, ArrayView, view
from ptxgen.errors import PtxGenError
from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.launch import Call, Extents, Runner
from ptxgen.tuning.expected import Expected
from ptxgen.tuning.ranking import Candidate


def by_clock(
    runner: Runner,
    built: Mapping[str, tuple[BuiltFunction, Extents]],
    call: Call,
    ordinal: int,
    stream: int,
    expected: Expected,
    repeats: int,
    say: Callable[[str], None],
) -> dict[str, Candidate]:
    """The candidates of built kernels and their grids, by configuration. The kernels run on `stream`
    of device `ordinal`, on copies of the arrays that one of them writes; a kernel that fails has the reason
    as its problem.
    """
    problems, times = dict[str, str](), {name: list[float]() for name in built}
    names = next(iter(built.values()))[0].signature.parameters
    written = {name for one, _ in built.values() for name in one.uses.written}
    with Staging(runner.backend, stream, ordinal) as staging:
        for name, (kernel, grid) in built.items():
            say(name)
            try:
                there = _copied(runner, staging, call, names, written, stream, ordinal)
                runner.on_gpu(kernel, grid, there, stream, ordinal)
                problems[name] = expected.problem(_fetched(staging, there, expected.arrays))
            except PtxGenError as error:
                problems[name] = str(error)
        there = _copied(runner, staging, call, names, written, stream, ordinal)
        works = [name for name in built if not problems[name]]
        for _ in range(repeats):
            for name in works:
                kernel, grid = built[name]
                launch = functools.partial(runner.on_gpu, kernel, grid, there, stream, ordinal)
                times[name].append(runner.backend.elapsed_ms(launch, stream, ordinal=ordinal))
    return {
        name: _candidate(runner, name, kernel, times[name], problems[name], ordinal)
        for name, (kernel, _) in built.items()
    }


def _candidate(
    runner: Runner, name: str, built: BuiltFunction, times: Sequence[float], problem: str, ordinal: int
) -> Candidate:
    loaded = runner.loaded(built, ordinal)
    shared = built.resources.static_shared + built.kernel.dynamic_shared_bytes
    registers, spilled = (0, 0) if loaded is None else (loaded.registers, loaded.local_bytes)
    warps = built.target.blocks_per_sm_for(built.threads, registers, shared) * -(-built.threads // 32)
    cost = statistics.median(times) if times else math.inf
    return Candidate(
        name, built.sha256, built.threads, registers, spilled, shared, warps, cost, problem=problem
    )


def _copied(
    runner: Runner,
    staging: Staging,
    call: Call,
    names: Iterable[str],
    written: set[str],
    stream: int,
    ordinal: int,
) -> Call:
    """The arguments of a call, of parameters of these `names`, on a device: arrays of the host as copies, and
    of those on the device the ones that are written.
    """
    views = {}
    for name, array in call.views.items():
        if array.device == HOST:
            views[name] = staging.copy_of(array)
        elif name in written and array.size:
            views[name] = _copied_there(runner, staging, array, stream, ordinal)
        else:
            views[name] = array._replace(kind="numpy")  # whose streams nobody has to wait for here
    values = [
        views[name].pointer if name in views else value
        for name, value in zip(names, call.values, strict=True)
    ]
    return Call(values, views, next(iter(views.values()), None))


def _copied_there(runner: Runner, staging: Staging, array: ArrayView, stream: int, ordinal: int) -> ArrayView:
    """A copy of a device array with the same strides, which are not negative."""
    steps = zip(array.shape, array.strides, strict=True)
    spanned = 1 + sum((n - 1) * step for n, step in steps)
    copy = staging.room_for(array._replace(shape=(spanned,), strides=(1,)))
    nbytes = spanned * numpy_type(array.dtype).itemsize
    runner.backend.copy_on_device(copy.pointer, array.pointer, nbytes, stream, ordinal=ordinal)
    return copy._replace(shape=array.shape, strides=array.strides)


def _fetched(staging: Staging, there: Call, names: Mapping[str, object]) -> Call:
    """The named arrays of a call, fetched to the host."""
    fetched = {name: staging.fetch(there.views[name]) for name in names}
    staging.wait()
    return Call([], {name: view(array, name) for name, array in fetched.items()}, None)
