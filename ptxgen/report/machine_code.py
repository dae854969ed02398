"""The machine code of a kernel next to the lines of PTX that it was made of.

A copy of the text gets a `.loc` directive before each instruction, which names the line of the text
itself; the assembler carries it into the line table of the cubin, and the disassembler prints it. The
directives change no instruction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ptxgen import ir
from ptxgen.errors import AssemblerError, BackendError
from ptxgen.report.data import MachineCode, SassRow
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.sass import (
    CLASSES,
    SassInstr,
    SassLine,
    basic_blocks,
    best_paths,
    find_disassembler,
    loops,
    mix,
)

_DEBUG: Final = re.compile(r"^\s*\.(file|loc)\b|^\s*\.section\s+\.debug")
_MOST_FILES: Final = 1


class Path(NamedTuple):
    """What a warp executes again and again: the main loop, or a whole kernel without a loop. `lines` has the
    lines of PTX of the instructions, 0 for none.
    """

    is_loop: bool
    instrs: Sequence[SassInstr]
    lines: Sequence[int]


def machine_code(text: str, module: ir.Module, entry: str) -> tuple[MachineCode, Path]:
    """Assemble and disassemble a text; gives also the path whose instructions a model may issue, empty
    without a disassembler. Raises `BackendError` if no assembler is installed, and `AssemblerError` if it
    refuses the text.
    """
    lines = {
        s.origin.line
        for body in (*(f.body or () for f in module.functions), *(k.body for k in module.kernels))
        for s in body
        if isinstance(s, ir.Instr) and s.origin is not None
    }
    assembler = find_assembler(target=module.target)
    try:
        assembly = assembler.assemble(with_lines(text, lines), module.target, line_info=True)
    except AssemblerError:  # a statement over several lines may have no directive in its middle
        assembly = assembler.assemble(text, module.target)
    usage = assembly.kernel(entry)
    why_not, listing = "", list[SassLine]()
    try:
        listing = find_disassembler().listing(assembly.cubin, entry)
    except BackendError as error:
        why_not = str(error)
    instrs = [line.instr for line in listing if line.instr is not None]
    loop = _main_loop(instrs)
    inside = {id(instr) for instr in loop}
    source = {id(line.instr): line.source for line in listing}
    path = loop or _straight(instrs)
    code = MachineCode(
        f"{assembly.assembler} {assembly.version}",
        usage.registers,
        usage.stack_bytes,
        usage.spill_store_bytes,
        usage.spill_load_bytes,
        tuple(SassRow(x.address, x.text, x.source, id(x.instr) in inside) for x in listing),
        tuple(mix(instrs).items()),
        tuple(mix(loop).items()),
        why_not,
    )
    return code, Path(bool(loop), path, [source[id(instr)] for instr in path])


def with_lines(text: str, lines: Collection[int]) -> str:
    """A text with a line table: a `.loc` directive before each of these lines, from 1, which names the
    line. Directives of the text's own line table are left out; the numbers are those of `text`.
    """
    lines_out = []
    for number, line in enumerate(text.split("\n"), 1):
        if _DEBUG.match(line):
            if line.lstrip().startswith(".section"):
                break  # debug sections are at the end of a text
            continue
        if number in lines:
            lines_out.append(f"\t.loc {_MOST_FILES} {number} 0")
        lines_out.append(line)
    return "\n".join([*lines_out, f'.file {_MOST_FILES} "kernel.ptx"', ""])


def _main_loop(instrs: list[SassInstr]) -> tuple[SassInstr, ...]:
    """The path round the loop that does the most tensor-core products, or if none does any, the one
    with the longest path; empty without a loop.
    """
    products = CLASSES["products"]
    best = max(
        loops(instrs),
        key=lambda loop: (sum(instr.name in products for instr in loop.path), len(loop.path)),
        default=None,
    )
    return best.path if best is not None else ()


def _straight(instrs: Sequence[SassInstr]) -> tuple[SassInstr, ...]:
    """The longest path through a kernel without a loop; empty if there are no instructions."""
    blocks = basic_blocks(instrs) if instrs else {}
    best = best_paths(blocks, 0, lambda block: (blocks[block].end - block,)) if blocks else {}
    ends = [of for block, of in best.items() if instrs[blocks[block].end - 1].name == "EXIT"]
    _, path = max(ends, default=((), []))
    return tuple(instr for block in path for instr in instrs[block : blocks[block].end])
