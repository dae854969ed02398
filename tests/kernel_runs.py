"""Runs the kernels' own PTX on the interpreter, without the launch layer between."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from refusals import refusal

from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import Build, build
from flash.launch.calls import counters
from flash.operands.dtypes import E4M3
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import maps_of
from ptxgen import interpreter, ir
from ptxgen.errors import BackendError, ConfigError
from ptxgen.interpreter import Result
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.sass import Loop, find_disassembler, main_loop


@dataclass(frozen=True)
class Problem:
    """Sizes of one attention problem."""

    seq_q: int
    seq_k: int
    head_dim: int
    head_dim_v: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1

    def arrays(self, seed: int = 0, dtype: Any = np.float32) -> tuple[np.ndarray[Any, Any], ...]:
        """Q, K, V with normal entries."""
        rng = np.random.default_rng(seed)
        shapes = (
            (self.batch, self.heads, self.seq_q, self.head_dim),
            (self.batch, self.kv_heads, self.seq_k, self.head_dim),
            (self.batch, self.kv_heads, self.seq_k, self.head_dim_v),
        )
        return tuple(rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes)


def random_operands(
    config: AttentionConfig, problem: Problem, seed: int = 1
) -> dict[str, np.ndarray[Any, Any]]:
    """An array for each operand of the config's features, of its full shape. Each mask and each
    bias hides a fifth of the keys; a fifth of the scales of fp8 are negative.
    """
    rng = np.random.default_rng(seed)
    result = {}
    lengths = {**vars(problem), **config.features.counts_of_scales(vars(problem))}

    def scales(shape: list[int]) -> np.ndarray[Any, Any]:
        return np.where(rng.random(shape) < 0.2, -1, 1) * 2.0 ** rng.uniform(-1, 1, shape)

    def powers(shape: list[int]) -> np.ndarray[Any, Any]:
        return 2.0 ** rng.integers(-2, 3, shape)

    def of_four_bits(shape: list[int]) -> np.ndarray[Any, Any]:
        return 2.0 ** rng.integers(-7, -3, shape) * rng.integers(8, 16, shape)

    for operand in config.features.operands:
        shape = [lengths[axis] for axis in operand.axes] + [operand.columns] * (operand.columns > 0)
        drawn = {
            "alibi_slopes": lambda s: 0.2 * np.abs(rng.standard_normal(s)),
            "bias": lambda s: np.where(rng.random(s) < 0.2, -np.inf, rng.standard_normal(s)),
            "key_bias": lambda s: np.where(rng.random(s) < 0.2, -np.inf, rng.standard_normal(s)),
            "mask": lambda s: rng.random(s) < 0.8,
            "sink": lambda s: 2 * rng.standard_normal(s),
            **dict.fromkeys(
                ("q_scale", "k_scale", "v_scale"),
                of_four_bits if operand.dtype is E4M3 else powers if config.features.mx else scales,
            ),
        }[operand.name](shape)
        result[operand.name] = drawn.astype(operand.dtype.numpy)
    return result


def _blocks(kernel: KernelConfig, q: np.ndarray[Any, Any], k: np.ndarray[Any, Any]) -> int:
    """The CTAs of a launch, one for each block of rows of a head; with packed heads of K's."""
    batch, heads, seq_q = q.shape[:3]
    rows = seq_q
    if kernel.packed:
        heads, rows = k.shape[1], seq_q * (heads // k.shape[1])
    return -(-rows // kernel.tiling.block_q) * heads * batch * kernel.tiling.value_slices


def run_forward(
    config: AttentionConfig,
    arrays: tuple[np.ndarray[Any, Any], ...],
    module: ir.Module | None = None,
    kernel: KernelConfig | None = None,
    operands: Mapping[str, np.ndarray[Any, Any]] = MappingProxyType({}),
    dropout_seed: int = 0,
    section: int = 2,
    ctas: int | None = None,
    max_logit: np.ndarray[Any, Any] | None = None,
    **how: Any,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Result]:
    """(out, lse, what the run did); lse stays NaN without `return_lse`, and another `module` may
    take the kernel's place. `operands` are those of its features, by name; `ctas` is how many are
    run, else all; `max_logit` is the array for the largest scores of heads, if the kernel writes it.
    """
    q, k, v = arrays
    kernel = kernel or config.kernel()
    module = module or build(kernel).module
    batch, heads, seq_q = q.shape[:3]
    out = np.full((batch, heads, seq_q, v.shape[3]), np.nan, config.output.numpy)
    lse = np.full((batch, heads, seq_q), np.nan, np.float32)
    strides = [s // a.itemsize for a in (q, k, v, out) for s in a.strides[:3]]
    sizes = [seq_q, k.shape[2], heads, heads // k.shape[1]]
    tiling = kernel.tiling
    extra: list[np.ndarray[Any, Any]] = []
    extra_strides: list[int] = []
    own_sizes: dict[str, int] = {}
    for operand in kernel.features.operands:
        array = operands[operand.name]
        sizes_of = {
            "batch": batch,
            "heads": heads,
            "kv_heads": k.shape[1],
            "seq_q": seq_q,
            "seq_k": k.shape[2],
        }
        sizes_of |= kernel.features.counts_of_scales(sizes_of)
        whole = array.shape if operand.is_whole else [sizes_of[axis] for axis in operand.axes]
        wide = np.broadcast_to(array, [*whole, operand.columns] if operand.columns else whole)
        own_sizes |= zip(operand.axes, array.shape, strict=False) if operand.is_whole else []
        extra.append(array)
        extra_strides += [s // array.itemsize for s in wide.strides[: len(operand.axes)]]
    arguments = {"dropout_seed": dropout_seed, "section": section, "parts": _blocks(kernel, q, k)}
    values = {**config.numbers, **arguments, **own_sizes}
    tickets = counters(kernel)
    numbers = [np.float32(values[n.name]) if n.type.is_float else values[n.name] for n in kernel.numbers]
    result = interpreter.run(
        module,
        kernel.name,
        grid=(_blocks(kernel, q, k) if ctas is None else ctas, 1, 1),
        block=(tiling.threads, 1, 1),
        args=[
            q,
            k,
            v,
            out,
            *[{"lse": lse, "max_logit": max_logit}[output.name] for output in kernel.outputs],
            *extra,
            *tickets,
            *strides,
            *sizes,
            np.float32(config.scale),
            *numbers,
            *extra_strides,
            *[
                of.of(_of_map(dict(zip("QKVO", (q, k, v, out), strict=True))[n]))
                for n, of in maps_of(kernel).items()
            ],
        ],
        dynamic_smem=module.kernels[0].dynamic_shared_bytes,
        **how,
    )
    assert not any(counter.any() for counter in tickets)
    return out, lse, result


def _of_map(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array as a tensor map takes it: numbers of fp8 as bytes."""
    return array.view(np.uint8) if array.itemsize == 1 else array


def in_pages(
    array: np.ndarray[Any, Any], page_size: int, table: np.ndarray[Any, Any], spare: int = 0
) -> np.ndarray[Any, Any]:
    """[sequences, kv_heads, rows, dim] in pages as `table` says, and `spare` more; slots without a
    row are NaN.
    """
    shape = (table.size + spare, array.shape[1], page_size, array.shape[3])
    pages = np.full(shape, np.nan, array.dtype)
    for b, n in np.ndindex(*table.shape):
        rows = array[b, :, n * page_size : (n + 1) * page_size]
        pages[table[b, n], :, : rows.shape[1]] = rows
    return pages


def without(module: ir.Module, at: int) -> ir.Module:
    """A module of one kernel without its statement number `at`."""
    (kernel,) = module.kernels
    body = kernel.body[:at] + kernel.body[at + 1 :]
    return replace(module, kernels=(replace(kernel, body=body),))


def run_without(config: AttentionConfig, arrays: tuple[np.ndarray[Any, Any], ...], at: int) -> None:
    """Run the forward kernel under the sanitizers without its statement number `at`, with either
    sign of the scale: a negative one takes a branch that waits for more.
    """
    module = without(build(config.kernel()).module, at)
    for scale in (0.3, -0.3):
        run_forward(replace(config, softmax_scale=scale), arrays, module, sanitize=True)


def with_place(module: ir.Module, number: int, ctas: int) -> ir.Module:
    """The same kernel, always run as CTA `number` of `ctas`: grids of 2**31 CTAs cannot be run
    here.
    """
    (kernel,) = module.kernels
    places = {ir.Special("%ctaid.x"): number, ir.Special("%nctaid.x"): ctas}
    body = tuple(
        ir.Instr(s.opcode, (s.operands[0], ir.IntImm(places[s.operands[1]])), s.guard)
        if isinstance(s, ir.Instr) and s.operands[1:] and s.operands[1] in places
        else s
        for s in kernel.body
    )
    assert body != kernel.body
    return replace(module, kernels=(replace(kernel, body=body),))


def nightly(*values: object) -> Any:
    """A parameter, or one for each of several names, that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def mostly_nightly(values: Iterable[object], kept: Collection[object]) -> list[Any]:
    """Parameters of which `make test` has only those that are `kept`; tuples are for several
    names.
    """
    return [
        value if value in kept else nightly(*value) if isinstance(value, tuple) else nightly(value)
        for value in values
    ]


def _built(of: AttentionConfig | KernelConfig | Build) -> Build:
    if isinstance(of, AttentionConfig):
        of = of.kernel()
    return build(of) if isinstance(of, KernelConfig) else of


def assert_proved(of: AttentionConfig | KernelConfig | Build) -> None:
    """Every access to memory and every barrier of a forward kernel is proved."""
    proofs = _built(of).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


def assert_no_spill(of: AttentionConfig | KernelConfig | Build, assembler: Assembler) -> None:
    """The assembler keeps everything in registers, and has nothing to advise."""
    built = _built(of)
    assembly = assembler.assemble(built.text, built.config.target.name)
    usage = assembly.kernel(built.config.name)
    spilled = usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes
    assert spilled == 0, (built.config.name, built.config.target.name, usage)
    assert assembly.advisories == ()


def main_loop_of(of: AttentionConfig | KernelConfig | BuiltKernel, assembler: Assembler) -> Loop:
    """The loop over tiles of a kernel in machine instructions; the assembler serialises no product of it."""
    built = of if isinstance(of, BuiltKernel) else _built(of)
    assembly = assembler.assemble(built.text, built.config.target.name)
    assert assembly.advisories == ()
    try:
        loop = main_loop(find_disassembler().instructions(assembly.cubin))
    except BackendError as error:
        pytest.skip(str(error))
    assert loop is not None
    return loop


def refused_config(*args: Any, **settings: Any) -> str:
    """The message of the error that a config raises, without the name of the class."""
    message = refusal(AttentionConfig, *args, error=ConfigError, **settings)
    assert message.startswith("AttentionConfig: ")
    return message.removeprefix("AttentionConfig: ")


class Kernels:
    """What launches on the interpreter run: the names of kernels, and the options of the runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.options: dict[str, Any] = {"sanitize": ["all", "mbarrier_init", "determinism"]}
        self.edit: Callable[[ir.Module], Any] | None = None
        self._run = interpreter.run
        monkeypatch.setattr(interpreter, "run", self)

    def __call__(self, module: ir.Module, *args: Any, **options: Any) -> Result:
        self.names.append(module.kernels[0].name)
        program = module if self.edit is None else self.edit(module)
        return self._run(program, *args, **{**options, **self.options})
