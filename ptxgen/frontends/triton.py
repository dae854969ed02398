"""Triton: `@triton.jit` functions, compiled for a GPU that is not there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.arguments import extents, integer
from ptxgen.errors import CompileError, LaunchError, did_you_mean, shown
from ptxgen.frontends.cpp_names import Names
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import Launch, Outcome, Program, ProgramKernel, argument
from ptxgen.frontends.sources import sources_of
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.target import target as find_target
from ptxgen.tensormap import SWIZZLES, TensorMap

DEFAULT_TARGET: Final = "sm_80"
_CALLER: Final = "ptxgen.frontends.triton"
_SWIZZLE_OF: Final = {number: name for name, number in SWIZZLES.items()}
# Parameters that Triton appends to those of the function: pointers to memory for all CTAs.
_SCRATCH: Final = ("global_scratch", "profile_scratch")
_MOST_SCRATCH: Final = 1 << 34  # bytes
_OF_RUNS: Final = tuple(
    name for name, of in inspect.signature(ProgramKernel.run).parameters.items() if of.kind is of.KEYWORD_ONLY
)


def run(
    kernel: Any,
    grid: Any,
    args: Sequence[object] | Mapping[str, object] = (),
    constexprs: Mapping[str, Any] | None = None,
    **how: Any,
) -> Outcome:
    """Compile a `@triton.jit` function as Triton does for these arguments, and run it on the CPU,
    in place and under all sanitizers. The arguments are those of `launch`.

    Raises what `launch` raises, and `TrapError` with what was found.
    """
    return launch(kernel, grid, args, constexprs, **how).run()


def launch(
    kernel: Any,
    grid: Any,
    args: Sequence[object] | Mapping[str, object] = (),
    constexprs: Mapping[str, Any] | None = None,
    *,
    target: str = DEFAULT_TARGET,
    config: Any = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    num_ctas: int | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Launch:
    """A launch of a `@triton.jit` function, compiled as Triton does for these arguments.

    `grid` has one to three extents, or is a function of the arguments by name that returns them.
    `args` are in the order of the function's parameters, or by name; `constexprs` are the rest by
    name. An array (numpy, torch, JAX) is a pointer to its elements; a number is specialised as
    Triton specialises it (1, divisible by 16); a `TensorDescriptor` describes a torch tensor.
    `config` is the `triton.Config` of an autotuned kernel; `num_warps`, `num_stages`, `num_ctas`
    and further options of Triton's compiler, such as `enable_fp_fusion`, win over it; they may be given in
    `options`, too. `how` are these options and further arguments of `ProgramKernel.run`, such as
    `schedule`.

    Raises `CompileError` with Triton's message, `LaunchError` for arguments that do not fit, and
    `BackendError` if Triton is not installed.
    """
    chosen = {"num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas}
    chosen |= {name: how.pop(name) for name in list(how) if name not in _OF_RUNS} | dict(options or {})
    call, translated = _compiled(kernel, args, constexprs, target, config, chosen)
    sizes = _grid(call, grid)
    values = translated.values(call, sizes)
    clusters = translated.num_ctas
    # A CTA of Triton's grid is a cluster of num_ctas CTAs along x.
    whole = (sizes[0] * clusters, *sizes[1:])
    entry = translated.program.only()
    how = {"shared": translated.shared, "cluster": clusters, **how}
    return Launch(entry, whole, 32 * translated.num_warps, values, how)


def compiled(
    kernel: Any,
    args: Sequence[object] | Mapping[str, object],
    constexprs: Mapping[str, Any] | None = None,
    *,
    target: str = DEFAULT_TARGET,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """A `@triton.jit` function as `launch` compiles it. Raises what `launch` raises."""
    return _compiled(kernel, args, constexprs, target, None, options or {})[1]


def _compiled(
    kernel: Any, args: Any, constexprs: Any, target: str, config: Any, options: Mapping[str, Any]
) -> tuple[_Call, Compiled]:
    triton = require(_CALLER, "triton", "triton")
    chosen = {name: value for name, value in options.items() if value is not None}
    call = _Call.of(triton, kernel, args, dict(constexprs or {}), config, chosen)
    return call, _compile(triton, call, target)


@dataclass(frozen=True)
class _Call:
    """A function, its arguments by name, and the compiler's options."""

    function: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(
        cls,
        triton: Any,
        kernel: Any,
        args: Any,
        constexprs: dict[str, Any],
        config: Any,
        options: dict[str, Any],
    ) -> _Call:
        function = _innermost(triton, kernel)
        name = function.__name__
        arguments = _by_name(function, args, constexprs)
        while kernel is not function:
            if isinstance(kernel, triton.runtime.Autotuner):
                config = _config_of(kernel, name, arguments, config)
                if config is not None:
                    extra = config.all_kwargs()
                    tuned = {n: extra.pop(n) for n in config.kwargs if n in extra}
                    arguments = {**tuned, **arguments}
                    options = {**extra, **options}
                    if config.pre_hook is not None:
                        config.pre_hook(arguments)
                    config = None
            else:  # triton.heuristics: computed in their order
                for value, compute in kernel.values.items():
                    arguments[value] = compute(arguments)
            kernel = kernel.fn
        if config is not None:
            raise LaunchError(f"{name}: config is for autotuned kernels, and this one is not; leave it out")
        _require_all(function, arguments)
        return cls(function, arguments, options)


def _innermost(triton: Any, kernel: Any) -> Any:
    """The JIT function inside its decorators. Raises `LaunchError` for anything else."""
    inner = kernel
    while isinstance(inner, triton.runtime.Autotuner | triton.runtime.Heuristics):
        inner = inner.fn
    if isinstance(inner, triton.runtime.JITFunction):
        return inner
    why = "is none"
    if type(inner).__name__ == "InterpretedFunction":
        why = "was made under TRITON_INTERPRET=1, which replaces it; unset that"
    raise LaunchError(f"{_CALLER}: the kernel must be a @triton.jit function, and {shown(kernel)} {why}")


def _by_name(function: Any, args: Any, constexprs: dict[str, Any]) -> dict[str, Any]:
    names = [param.name for param in function.params]
    if isinstance(args, Mapping):
        by_name = dict(args)
    elif isinstance(args, Sequence) and not isinstance(args, str | bytes):
        if len(args) > len(names):
            raise LaunchError(
                f"{function.__name__} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}"
            )
        by_name = dict(zip(names, args, strict=False))
    else:
        raise LaunchError(
            f"{function.__name__}: args must be a list of arguments, or a mapping by name, got {shown(args)}"
        )
    for name in (*by_name, *constexprs):
        if name not in names:
            raise LaunchError(
                f"{function.__name__} has no parameter {shown(name)}{did_you_mean(name, names)} (it has "
                f"{', '.join(names)})"
            )
    twice = [name for name in constexprs if name in by_name]
    if twice:
        raise LaunchError(f"{function.__name__}: {twice[0]} is given in args and in constexprs")
    return {**by_name, **constexprs}


def _require_all(function: Any, arguments: Mapping[str, Any]) -> None:
    missing = [p.name for p in function.params if p.name not in arguments and not p.has_default]
    if missing:
        constants = [p.name for p in function.params if p.is_constexpr and p.name in missing]
        where = f"; {', '.join(constants)} in constexprs" if constants else ""
        raise LaunchError(f"{function.__name__} needs a value for {', '.join(missing)}{where}")


def _config_of(tuner: Any, name: str, arguments: Mapping[str, Any], config: Any) -> Any:
    """The config of an autotuned kernel: `config`, else its only one; None if the arguments give all that it
    tunes. Raises `LaunchError` if the choice is open.
    """
    if config is not None:
        if not hasattr(config, "all_kwargs"):
            raise LaunchError(f"{name}: config must be a triton.Config, got {shown(config)}")
        return config
    if len(tuner.configs) == 1:
        return tuner.configs[0]
    tuned = sorted({parameter for each in tuner.configs for parameter in each.kwargs})
    if tuned and all(parameter in arguments for parameter in tuned):
        return None
    raise LaunchError(
        f"{name} is autotuned over {len(tuner.configs)} configurations, which only a GPU can time; choose "
        f"one: config={name}.configs[0], or give {', '.join(tuned) or 'a triton.Config'}"
    )


def _grid(call: _Call, grid: Any) -> tuple[int, ...]:
    value = grid(dict(call.arguments)) if callable(grid) else grid
    sizes = extents(value)
    if sizes is None:
        raise LaunchError(
            f"{call.function.__name__}: grid must be 1 to 3 positive integers, got {shown(value)}"
        )
    return sizes


# ------------------------------------------------------------------------------------- compilation


class _Elements:
    """An array as Triton's specialisation looks at it: the element type and the address."""

    def __init__(self, dtype: str, address: int) -> None:
        self.dtype = dtype
        self.address = address

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.address


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel, with the signature and the metadata that a launch needs. `asm` has the texts of
    Triton's stages by name, up to `ptx`.
    """

    program: Program
    signature: dict[str, Any]
    metadata: dict[str, Any]
    asm: dict[str, str]

    @property
    def num_warps(self) -> int:
        """The warps of a CTA."""
        return int(self.metadata["num_warps"])

    @property
    def num_ctas(self) -> int:
        """The CTAs of a cluster."""
        return int(self.metadata.get("num_ctas") or 1)

    @property
    def shared(self) -> int:
        """The bytes of dynamic shared memory of a CTA."""
        return int(self.metadata["shared"])

    def values(self, call: _Call, grid: tuple[int, ...]) -> list[object]:
        """The arguments of the entry: those of the function that are no constants, descriptors in
        their parts, and the scratch memory that Triton adds.
        """
        values: list[object] = []
        maps = iter(self.metadata.get("tensordesc_meta") or ())
        for name, type in self.signature.items():
            values += _parts(f"{call.function.__name__}: {name}", type, call.arguments.get(name), maps)
        wanted = len(self.program.only().kernel.params) - len(values)
        if not 0 <= wanted <= len(_SCRATCH):
            raise LaunchError(
                f"{call.function.__name__}: Triton made {len(values) + wanted} parameters of {len(values)} "
                "arguments, which this version of ptxgen does not know"
            )
        for kind in _SCRATCH[:wanted]:
            nbytes = int(self.metadata.get(f"{kind}_size") or 0) * math.prod(grid) * self.num_ctas
            if nbytes > _MOST_SCRATCH:
                raise LaunchError(
                    f"{call.function.__name__} needs {nbytes} bytes of scratch memory; use a smaller grid"
                )
            values.append(_aligned(nbytes, int(self.metadata.get(f"{kind}_align") or 1)) if nbytes else None)
        return values


_cache = BoundedCache[str, Compiled]()


def _compile(triton: Any, call: _Call, target: str) -> Compiled:
    """The kernel for the types and the values of a call, as far as Triton specialises for them."""
    compiler = require(_CALLER, "triton.compiler.compiler", "triton")
    jit = require(_CALLER, "triton.runtime.jit", "triton")
    number = int("".join(filter(str.isdigit, find_target(target).name)))
    gpu = require(_CALLER, "triton.backends.compiler", "triton").GPUTarget("cuda", number, 32)
    backend = compiler.make_backend(gpu)
    function = call.function
    name = function.__name__
    seen = {known: _specialised(name, known, value) for known, value in call.arguments.items()}
    # The default of a Triton that is about to change it; asking for it avoids a warning.
    asked = {"enable_fp_fusion": triton.knobs.language.default_fp_fusion}
    _require_known(name, call.options, vars(backend.parse_options(asked)))
    asked |= call.options
    asked.setdefault("debug", bool(function.debug or triton.knobs.runtime.debug))
    try:
        binder = jit.create_function_from_signature(function.signature, function.params, backend)
        bound, specialisation, options = binder(**seen, **asked)
        options, signature, constants, attributes = function._pack_args(
            backend, options, bound, specialisation, options
        )
        source = _source(function, compiler)(function, signature, constants, attributes)
    except (KeyError, TypeError, ValueError) as error:
        raise LaunchError(f"{name} cannot be specialised for these arguments: {error}") from error
    key = f"{source.hash()} {options.hash()} {gpu}"
    compiled = _cache.get(key)
    if compiled is None:
        try:
            compiled = _cache.keep(key, _translate(call, source, options, backend, gpu))
        except triton.CompilationError as error:
            raise CompileError(f"{name} cannot be compiled:\n{error}") from error
    return compiled


def _source(function: Any, compiler: Any) -> Any:
    """The class of a function's source: that of Triton's language, or of Gluon's."""
    if not function.is_gluon():
        return compiler.ASTSource
    return require(_CALLER, "triton.experimental.gluon._runtime", "triton").GluonASTSource


def _require_known(caller: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise `LaunchError` for options that the compiler does not have."""
    for option in options:
        if option not in known:
            names = (*known, *_OF_RUNS)
            raise LaunchError(
                f"{caller}: there is no option {shown(option)}{did_you_mean(option, names)} (those of "
                f"Triton's compiler are {', '.join(known)}; those of a run {', '.join(_OF_RUNS)})"
            )


def _translate(call: _Call, source: Any, options: Any, backend: Any, gpu: Any) -> Compiled:
    """Run the compiler's stages up to PTX, which need neither a driver nor an assembler."""
    ir = require(_CALLER, "triton._C.libtriton", "triton").ir
    stages: dict[str, Callable[..., Any]] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    translated = source.make_ir(gpu, options, generators, modules, context)
    metadata = {"target": gpu, **options.__dict__}
    asm: dict[str, str] = {}
    for stage, translate in stages.items():
        try:
            translated = translate(translated, metadata)
        except RuntimeError as error:  # passes print the reason on standard error
            raise CompileError(
                f"{call.function.__name__} cannot be compiled for sm_{gpu.arch}: stage {stage} failed "
                f"({error}); Triton says why on standard error"
            ) from error
        asm[stage] = str(translated)
        if stage == "ptx":
            break
    names = _names(call, source.signature, metadata["name"])
    program = Program(asm["ptx"], name=call.function.__name__, sources=sources_of(), names=names)
    return Compiled(program, dict(source.signature), metadata, asm)


def _specialised(caller: str, name: str, value: Any) -> Any:
    """An argument as Triton's specialisation takes it."""
    if isinstance(value, tuple):
        items = [_specialised(caller, f"{name}[{n}]", item) for n, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if _is_reinterpreted(value):
        return _Elements(str(value.dtype), value.data_ptr())
    if isinstance(value, np.ndarray) or (
        hasattr(value, "__dlpack__") and not hasattr(value, "block_shape") and hasattr(value, "dtype")
    ):
        array = argument(f"{caller}: {name}", value)
        return _Elements(array.dtype.name, array.__array_interface__["data"][0])
    return value


def _is_reinterpreted(value: Any) -> bool:
    """Whether an argument is `triton.reinterpret` of a tensor: the same memory, with a type of Triton."""
    return isinstance(value, require(_CALLER, "triton.runtime.jit", "triton").TensorWrapper)


def _names(call: _Call, signature: Mapping[str, Any], symbol: str) -> Names:
    """The names of an entry's parameters: those of the function, as far as each is one parameter."""
    names = {symbol: call.function.__name__}
    number = 0
    for name, type in signature.items():
        if type == "constexpr":
            continue
        if not isinstance(type, str) or type.startswith("tensordesc"):
            break
        names[f"{symbol}_param_{number}"] = name
        number += 1
    else:
        names |= {f"{symbol}_param_{number + n}": name for n, name in enumerate(_SCRATCH)}
    return Names(names, {})


# --------------------------------------------------------------------------------------- arguments


def _parts(caller: str, type: Any, value: Any, maps: Any) -> list[object]:
    """The parameters that an argument of the function becomes."""
    if type == "constexpr":
        return []
    if isinstance(type, tuple):
        return [part for t, v in zip(type, value, strict=True) for part in _parts(caller, t, v, maps)]
    if isinstance(type, str) and type.startswith("tensordesc"):
        return _described(caller, value, next(maps, None))
    if _is_reinterpreted(value):
        return [value.base]
    if isinstance(type, str) and type.startswith("fp") and integer(value, -(1 << 63)) is not None:
        return [float(value)]
    return [value]


def _described(caller: str, descriptor: Any, meta: Mapping[str, Any] | None) -> list[object]:
    """The parts of a tensor descriptor: a tensor map for the GPUs that have them, else the array,
    then its shape and strides in elements.
    """
    shape, strides = [int(n) for n in descriptor.shape], [int(n) for n in descriptor.strides]
    array = argument(caller, descriptor.base)
    nan = descriptor.padding == "nan"
    if meta is None:
        flags = [int(nan), int(descriptor.round_f32_to_tf32)]
        return [array, *shape, *strides, *flags, *shape, *strides]
    if meta.get("fp4_padded") or meta.get("is_im2col"):
        raise LaunchError(f"{caller}: descriptors of 4-bit elements and of im2col mode are not modelled")
    steps = [stride * array.itemsize for stride in strides]
    tensor = np.lib.stride_tricks.as_strided(array, shape, steps)
    tensor_map = TensorMap(
        tensor,
        box=tuple(reversed(meta["block_size"])),
        dtype="tf32" if descriptor.round_f32_to_tf32 else "",
        swizzle=_SWIZZLE_OF[meta["swizzle"]],
        oob_fill="nan" if nan else "zeros",
    )
    return [tensor_map, *shape, *strides]


def _aligned(nbytes: int, align: int) -> np.ndarray[Any, Any]:
    """Zeros in memory whose address is a multiple of `align`."""
    whole = np.zeros(nbytes + align, np.uint8)
    start = -whole.__array_interface__["data"][0] % align
    return whole[start : start + nbytes]
