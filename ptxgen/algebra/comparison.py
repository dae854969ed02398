"""Whether what a kernel computes is a formula, in exact arithmetic."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.algebra.follower import Follower
from ptxgen.algebra.memory import UNIT, Memory
from ptxgen.algebra.operands import doubled, single
from ptxgen.algebra.residues import FINITE, VALUE, Exact
from ptxgen.algebra.words import FORMATS, PARTS, UPPER, has_format, maker, packed, unknown, unpacked
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.interpreter import DeviceArena, run
from ptxgen.ir import Kernel, Module
from ptxgen.parse import parse

Lanes = np.ndarray[Any, np.dtype[Any]]

# Elements of arrays that become symbols, and the formats of their bits.
_FORMAT_OF: Final = {"float16": FORMATS["f16"], "bfloat16": FORMATS["bf16"], "float32": FORMATS["f32"]}
_SHOWN: Final = 3  # elements that a message names


@dataclass(frozen=True, slots=True)
class Compared:
    """The elements of one array after a run: how many there are, the indices of those that are not the
    formula's (`wrong`, `[n, axes]`), how many are unknown, and the instructions that made these so, with the
    number of elements of each.
    """

    count: int
    wrong: NDArray[np.int64]
    unknown: int
    lost: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of a run beside a formula, by the names of the parameters."""

    kernel: str
    results: Mapping[str, Compared]

    @property
    def holds(self) -> bool:
        """Whether every element of every result is the formula's."""
        return not any(len(result.wrong) or result.unknown for result in self.results.values())

    @property
    def refuted(self) -> bool:
        """Whether an element of a result is something else than the formula, as `compare` says."""
        return any(len(result.wrong) for result in self.results.values())

    def __str__(self) -> str:
        lines = []
        for name, result in self.results.items():
            right = result.count - len(result.wrong) - result.unknown
            lines.append(f"{self.kernel}: {name}: {right} of {result.count} elements equal the formula")
            if len(result.wrong):
                shown = ", ".join(str(tuple(index)) for index in result.wrong[:_SHOWN].tolist())
                lines.append(f"  {len(result.wrong)} do not, the first at {shown}")
            if result.unknown:
                lines.append(f"  {result.unknown} are unknown")
                lines += [f"    {count} because of {text}" for text, count in result.lost.items()]
        return "\n".join(lines)


def compare(
    ptx_or_module: str | Module,
    entry: str | None = None,
    *,
    args: Sequence[Any],
    formula: Callable[..., Exact | Mapping[str, Exact]],
    results: str | Iterable[str],
    seed: int = 0,
    **how: Any,
) -> Comparison:
    """Run a kernel on the interpreter, and compare its results with a formula in exact arithmetic.

    The elements of every array of f16, bf16 or f32 among `args` are symbols: numbers drawn with `seed`,
    modulo two primes (`ptxgen.algebra.residues`), while their floats decide branches, comparisons and which
    of two numbers is greater. `formula` has parameters with the names of parameters of the kernel; it gets an
    `Exact` of an array's shape for an array of such elements, other arguments as they are, and returns what
    the array `results` holds after the run, or a mapping by the names `results`. `how` are keywords of
    `ptxgen.interpreter.run`, such as `grid` and `block`; `dynamic_smem` is by default what the kernel says.

    A result that does not equal the formula for these floats is wrong for some real numbers, unless a law of
    a function of which only the name is known (`Exact.applied`) makes both equal. One that does is the
    formula for all real numbers for which the branches, comparisons and choices are the same, but for a
    chance of at most the degree of the formula divided by 2**29 for each element.

    Raises `LaunchError` for names that the kernel has not, results of other elements, a formula of another
    shape, an instruction that is not followed, and as `ptxgen.interpreter.run`.
    """
    module = parse(ptx_or_module) if isinstance(ptx_or_module, str) else ptx_or_module
    kernel = _kernel(module, entry)
    wanted = [results] if isinstance(results, str) else list(results)
    by_name = _arguments(kernel, args, wanted)
    asked = list(inspect.signature(formula).parameters)
    _known("formula", asked, kernel)
    arena = DeviceArena()
    for name, value in by_name.items():
        if isinstance(value, np.ndarray):
            arena.place(value, name=name)
    memory = Memory.of_arena(arena)
    choice = np.random.default_rng(seed)
    for name, value in by_name.items():
        if _is_symbolic(value) and name not in wanted:
            _store(memory, arena, value, Exact.drawn(choice, value.shape))
    numbers = {
        name: _load(memory, arena, by_name[name])[0] if _is_symbolic(by_name[name]) else by_name[name]
        for name in asked
    }
    expected = _expected(formula(**numbers), {name: by_name[name].shape for name in wanted})
    follower = Follower(memory)
    how.setdefault("dynamic_smem", kernel.dynamic_shared_bytes)
    run(module, kernel.name, args=args, arena=arena, debugger=follower, **how)
    return Comparison(
        kernel.name,
        {name: _compared(follower, *_load(memory, arena, by_name[name]), expected[name]) for name in wanted},
    )


def _arguments(kernel: Kernel, args: Sequence[Any], wanted: Sequence[str]) -> dict[str, Any]:
    """The arguments by the names of parameters, after a check of them and of the names of results."""
    names = [param.name for param in kernel.params]
    if len(args) != len(names):
        raise LaunchError(f"args: {kernel.name} has {len(names)} parameters, got {len(args)} arguments")
    if not wanted:
        raise LaunchError("results: give the name of at least one array that the kernel stores")
    _known("results", wanted, kernel)
    by_name = dict(zip(names, args, strict=True))
    for name in wanted:
        if not _is_symbolic(by_name[name]):
            got = getattr(by_name[name], "dtype", shown(by_name[name]))
            raise LaunchError(f"results: {name} must be an array of {', '.join(_FORMAT_OF)}, got {got}")
    return by_name


def _expected(
    returned: Exact | Mapping[str, Exact], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Exact]:
    """What a formula returned for each result, after a check of its shape."""
    each = returned if isinstance(returned, Mapping) else dict.fromkeys(shapes, returned)
    expected = {}
    for name, shape in shapes.items():
        if name not in each:
            raise LaunchError(f"formula: returns nothing for {name!r}, only {', '.join(each)}")
        expected[name] = Exact.of(each[name])
        if (got := expected[name].shape) != shape:
            raise LaunchError(f"formula: {name} has the shape {shape}, and the formula's is {got}")
    return expected


def _compared(follower: Follower, got: Exact, words: Lanes, expected: Exact) -> Compared:
    is_unknown = (maker(words) >= 0) | ((expected.kind & VALUE == 0) & (expected.kind <= FINITE))
    wrong = ~is_unknown & ~got.equals(expected)
    lost = Counter(follower.text(at) for at in maker(words[is_unknown]).tolist())
    return Compared(got.value.size, np.argwhere(wrong), int(is_unknown.sum()), dict(lost.most_common()))


def _is_symbolic(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in _FORMAT_OF


def _at(memory: Memory, arena: DeviceArena, array: Lanes) -> Lanes:
    """The indices of the words of an array's elements, `[*shape, words of an element]`."""
    addresses = np.full(array.shape, arena.address_of(array), np.int64)
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        along = np.arange(extent, dtype=np.int64) * stride
        addresses += along.reshape([-1 if n == axis else 1 for n in range(array.ndim)])
    units = np.arange(array.dtype.itemsize // UNIT)
    result: Lanes = memory.units(addresses)[..., None] + units
    return result


def _store(memory: Memory, arena: DeviceArena, array: Lanes, numbers: Exact) -> None:
    words = packed(numbers, _FORMAT_OF[array.dtype.name], 0)[..., None]
    memory.words[_at(memory, arena, array)] = words if array.dtype.itemsize == UNIT else doubled(words)


def _load(memory: Memory, arena: DeviceArena, array: Lanes) -> tuple[Exact, Lanes]:
    """The numbers in an array, and their words."""
    words = memory.words[_at(memory, arena, array)]
    if array.dtype.itemsize == UNIT:
        right = (words & UPPER == 0) & has_format(words, _FORMAT_OF[array.dtype.name])
        one = np.where(right, words, unknown(PARTS))[..., 0]
    else:
        one = single(words, array, PARTS)
    with np.errstate(invalid="ignore"):  # signaling NaN
        return unpacked(one, array.astype(np.float64)), one


def _kernel(module: Module, entry: str | None) -> Kernel:
    kernels = {kernel.name: kernel for kernel in module.kernels}
    if entry is None and len(kernels) == 1:
        return module.kernels[0]
    if entry not in kernels:
        raise LaunchError(f"entry: the module has the kernels {', '.join(kernels)}; got {entry!r}")
    return kernels[entry]


def _known(what: str, names: Iterable[str], kernel: Kernel) -> None:
    params = [param.name for param in kernel.params]
    for name in names:
        if name not in params:
            raise LaunchError(f"{what}: {kernel.name} has no parameter {name!r}{did_you_mean(name, params)}")
