"""The kernels of the documentation compared with their equivalents in Triton and CuTe DSL: lines of code,
time to a cubin, machine code.
"""

from __future__ import annotations

import ast
import doctest
import functools
import importlib.util
import io
import sys
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flash.commands.measure.record import MS, Goal, Job, Rows, Setting, measured, timed
from flash.commands.measure.report import ROOT
from ptxgen.errors import BackendError
from ptxgen.kernels import KernelFunction
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.sass import Loop, SassInstr, find_disassembler, main_loop

# By kernel: the compute capability of the GPUs that it is for, such as 80.
KERNELS: Final = {
    **dict.fromkeys(("softmax", "layer_norm", "gemm", "attention"), 80),
    **dict.fromkeys(("moe_gemm", "int4_gemm", "norm_quantised", "paged_gather"), 80),
    **dict.fromkeys(("blackwell_gemm", "blackwell_pair_gemm", "nvf4_gemm"), 100),
}
PAGES: Final = ("docs/own-kernels.md", "docs/gallery.md", "docs/kernels/gemm.md", "docs/kernels/attention.md")
PEERS: Final = {  # the module of each, and the package that it needs
    "Triton": ("benchmarks/gallery_triton.py", "triton"),
    "CuTe DSL": ("benchmarks/gallery_cute.py", "nvidia-cutlass-dsl"),
}
MOST_RATIO: Final = 1.1  # machine instructions of the main loop for each HMMA, ours to a peer's

_FIRST_SPECIFIC: Final = 90  # compute capability from which kernels need targets with the suffix a
_NO_CODE: Final = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)

GALLERY_REMARKS: Final = (
    f"ours are the examples of {', '.join(PAGES)}, the others those of "
    f"{' and '.join(path for path, _ in PEERS.values())}, with the same tiles and types, "
    "and for sm_80 the same warps; all are for any sizes, with rows that begin at multiples of 16 bytes in "
    "products and attention; Triton's nvf4 takes whole steps of depth, and factors by rows",
    "lines are those with code, without docstrings, comments and blank lines",
    "time is from the Python function to a cubin, each time anew, in a warm process; the others' "
    "with the ptxas that they bring, and CuTe DSL's with the code that launches the kernel",
    "machine code is what one assembler makes of the PTX of all; the main loop is the way round it that "
    "does all its products and copies, and otherwise the shortest",
)


def gallery_jobs(quick: bool) -> list[Job]:
    """One job for each kernel of the gallery."""
    repeats = 2 if quick else 7
    return [Job(name, functools.partial(compared, name, repeats)) for name in KERNELS]


@dataclass(frozen=True)
class _Figures:
    """The measurements of one kernel. Without a disassembler `sass` is empty, and `why` says so."""

    lines: int
    ms: list[float]
    registers: int
    spilled_bytes: int
    sass: list[SassInstr]
    why: str

    @functools.cached_property
    def loop(self) -> Loop | None:
        """The main loop; None if none has products on tensor cores."""
        return main_loop(self.sass)

    @property
    def per_product(self) -> float:
        """Machine instructions of a warp in an iteration of the main loop, for each tensor-core product; 0
        without products.
        """
        return len(self.loop.path) / self.loop.products if self.loop else 0.0

    def rows(self, settings: Mapping[str, Setting], *, ours: bool) -> Rows:
        """The figures as measurements; only ours have a goal."""
        goal = Goal("<=", 0) if ours else None
        rows_out: Rows = [
            measured("lines", "lines", [self.lines], config=settings),
            measured("from a function to a cubin", "ms", self.ms, config=settings),
            measured("registers", "per thread", [self.registers], config=settings),
            measured("spilled", "bytes", [self.spilled_bytes], config=settings, goal=goal),
        ]
        if self.why:
            return [*rows_out, f"machine code was not counted: {self.why}"]
        rows_out.append(measured("machine instructions", "instr.", [len(self.sass)], config=settings))
        if self.loop:
            rows_out += [
                measured("main loop", "instr.", [len(self.loop.path)], config=settings),
                measured("HMMA in a turn of the main loop", "instr.", [self.loop.products], config=settings),
                measured("main loop", "instr. per HMMA", [self.per_product], config=settings),
            ]
        return rows_out


def compared(name: str, repeats: int) -> Rows:
    """The figures of one kernel, and those of the peers that are installed."""
    source, target = sources()[name], target_of(name)
    settings: dict[str, Setting] = {"kernel": name, "target": target}

    def to_cubin() -> bytes:
        text = function(name).build(target=target).text
        return find_assembler(target=target).assemble(text, target).cubin

    ours = _figures(source, to_cubin, function(name).build(target=target).text, target, repeats)
    results: Rows = [*ours.rows(settings | {"by": "ptxgen"}, ours=True)]
    for by, (_, package) in PEERS.items():
        try:
            peer = peer_module(by)
        except ImportError as error:
            results.append(f"{by}'s kernels were not measured: {error}; pip install {package}")
            continue
        if name not in peer.KERNELS:
            continue
        compile_it = functools.partial(peer.compiled, name, KERNELS[name])
        its = _figures(peer.source(name), compile_it, compile_it()["ptx"], target, repeats)
        results += its.rows(settings | {"by": by}, ours=False)
        if ours.loop and its.loop:
            ratio = measured(
                f"main loop, instructions per HMMA: ours / {by}",
                "x",
                [ours.per_product / its.per_product],
                config=settings,
                goal=Goal("<=", MOST_RATIO),
                headline=True,
            )
            results.append(ratio)
    return results


def target_of(name: str) -> str:
    """The target for which a kernel is compiled."""
    return f"sm_{KERNELS[name]}{'a' * (KERNELS[name] >= _FIRST_SPECIFIC)}"


def _figures(source: str, to_cubin: Callable[[], object], ptx: str, target: str, repeats: int) -> _Figures:
    assembly = find_assembler(target=target).assemble(ptx, target)
    (usage,) = assembly.kernels
    sass: list[SassInstr] = []
    why = ""
    try:
        sass = find_disassembler().instructions(assembly.cubin)
    except BackendError as error:
        why = str(error)
    return _Figures(
        lines_of_code(source),
        [MS * t for t in timed(to_cubin, repeats)],
        usage.registers,
        usage.spill_store_bytes + usage.spill_load_bytes,
        sass,
        why,
    )


def lines_of_code(source: str) -> int:
    """The lines of a Python source with code: no comments, docstrings and blank lines."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


@functools.cache
def sources() -> dict[str, str]:
    """The source of each kernel in the documentation, by its name."""
    return {name: source for name, (source, _) in _examples().items()}


def function(name: str) -> KernelFunction:
    """A kernel function of the documentation, made anew from its source."""
    source, imports = _examples()[name]
    scope: dict[str, Any] = {}
    for text in (*imports, source):
        exec(compile(text, f"<{name} of the documentation>", "exec"), scope)  # this repository's own text
    kernel = scope[name]
    assert isinstance(kernel, KernelFunction)
    return kernel


@functools.cache
def _examples() -> dict[str, tuple[str, tuple[str, ...]]]:
    """For each kernel of the pages, its source and the imports of its page."""
    by_name = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        examples = [example.source for example in doctest.DocTestParser().get_examples(text)]
        imports = tuple(source for source in examples if source.startswith(("import ", "from ")))
        for source in examples:
            if source.startswith("@px.kernel"):
                (node,) = ast.parse(source).body
                assert isinstance(node, ast.FunctionDef)
                by_name[node.name] = source, imports
    return by_name


@functools.cache
def peer_module(by: str) -> Any:
    """The module of a peer's kernels. Raises ImportError without its package."""
    path = ROOT / PEERS[by][0]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------- the documentation's table

_TIME: Final = ("from a function to a cubin", "ms")  # shown as a multiple of ptxgen's
_COLUMNS: Final = (  # name and unit of a measurement, and the heading and format of its column
    ("lines", "lines", "lines", "{:.0f}"),
    (*_TIME, "time to a cubin", "{:.1f}"),
    ("machine instructions", "instr.", "SASS in all", "{:.0f}"),
    ("main loop", "instr.", "main loop", "{:.0f}"),
    ("main loop", "instr. per HMMA", "per HMMA", "{:.2f}"),
    ("registers", "per thread", "registers", "{:.0f}"),
    ("spilled", "bytes", "spilled bytes", "{:.0f}"),
)


def as_markdown(document: Mapping[str, Any]) -> str:
    """The table of a result of this section, as docs/gallery.md has it."""
    measurements = document["sections"]["gallery"]["measurements"]
    lines = [
        f"| {' | '.join(['kernel', 'by', *(heading for _, _, heading, _ in _COLUMNS)])} |",
        f"|{'---|' * (2 + len(_COLUMNS))}",
    ]
    for kernel in KERNELS:
        of = {by: _values(measurements, kernel, by) for by in ("ptxgen", *PEERS)}
        for by, values in of.items():
            if not values:
                continue  # a peer without the kernel
            if _TIME in values:
                values = {**values, _TIME: values[_TIME] / of["ptxgen"][_TIME]}
            cells = [
                form.format(values[name, unit]) if (name, unit) in values else ""
                for name, unit, _, form in _COLUMNS
            ]
            lines.append(f"| {' | '.join([kernel.replace('_', ' '), by, *cells])} |")
    return "\n".join(lines)


def _values(measurements: Sequence[Mapping[str, Any]], kernel: str, by: str) -> dict[tuple[str, str], float]:
    """The medians of a kernel, by name and unit."""
    return {
        (m["name"], m["unit"]): m["median"]
        for m in measurements
        if (m["config"].get("kernel"), m["config"].get("by")) == (kernel, by)
    }
