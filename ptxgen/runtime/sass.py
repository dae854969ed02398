"""Machine code (SASS) of a kernel, if a disassembler is installed: instructions and main loop.

nvdisasm is NVIDIA's and optional (`pip install nvidia-cuda-nvdisasm`). Its printed text is parsed:
labels, and lines with an address, a predicate, an opcode and operands, and the words of instructions,
whose upper one has the control information for the scheduler (Jia et al., "Dissecting the NVIDIA Volta GPU
Architecture via Microbenchmarking", 2018, section 2.1).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ptxgen.errors import BackendError

INSTALL: Final = "pip install nvidia-cuda-nvdisasm, or put a CUDA toolkit's nvdisasm on PATH"

# Products of tcgen05: f16 and tf32, f8f6f4, mxf4, i8.
IN_TENSOR_MEMORY: Final = ("UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA")
# Classes of instructions of an attention kernel; the first class that has the opcode counts.
CLASSES: Final[Mapping[str, tuple[str, ...]]] = {
    "products": (*("HMMA", "HGMMA", "QGMMA", "IMMA", "IGMMA", "DMMA", "BMMA"), *IN_TENSOR_MEMORY),
    "tensor memory": ("LDTM", "STTM", "UTCCP", "UTCSHIFT", "UTCBAR", "UTCATOMSWS"),
    "shared": ("LDSM", "LDS", "STS"),
    "copies": ("LDGSTS", "LDGDEPBAR", "DEPBAR", "LDG", "STG"),
    "f32": ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP", "FADD2", "FMUL2", "FFMA2", "FMNMX3"),
    "exp2": ("MUFU",),
    "to 16 bits": ("F2FP",),
    "lanes": ("SHFL", "VOTE", "VOTEU", "REDUX"),
    "control": ("BRA", "BAR", "BSSY", "BSYNC", "EXIT", "CALL", "RET", "WARPSYNC", "NOP", "BREAK"),
}
OTHER: Final = "integers, moves"  # and all other instructions

# A loop's path is the one with the most of these instructions, and announcements of copies. In a loop with
# products on tensor cores, and in each loop of a kernel with products of `tcgen05`, the last of these, FFMA,
# does not count.
_WORK: Final = ("HMMA", "HGMMA", "QGMMA", *IN_TENSOR_MEMORY, "LDSM", "LDGSTS", "UTMALDG", "FFMA")
# What announces bytes of copies at an mbarrier; with `T0` in its name it only arrives.
_ANNOUNCES: Final = "SYNCS.ARRIVE.TRANS64"
_NO_BYTES: Final = "T0"
_OF_WARPS: Final = "HMMA"  # a product of a warp
# Products of four warps, of 16 bits and of fp8, whose names say M, N and K: 64x128x16.
_OF_WARPGROUPS: Final = ("HGMMA", "QGMMA")
_WARPGROUP: Final = 4  # warps
_STORE: Final = "UTMASTG"  # a tensor copy to memory
_WAITS: Final = "SYNCS"  # of mbarriers
_WEIGHS: Final = ("MUFU", "FMNMX", "FSEL")  # exponentials, maxima and masks
# Multiply-adds of a warp instruction, by the shape in its name; 16816 is m16n8k16 (PTX ISA, "Matrix
# Fragments for mma").
_PRODUCTS: Final = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "1684": 16 * 8 * 4}
_SHAPE: Final = re.compile(r"\.(\d+)x(\d+)x(\d+)")
_TIMEOUT_S: Final = 60.0
_LABEL: Final = re.compile(r"^(\.L\w+):")
_LINE: Final = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+"
    r"(?P<text>(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>.*?)) *;"
)
_SOURCE: Final = re.compile(r'^\s*//## File ".*", line (\d+)')
_SECTION: Final = re.compile(r"^\s*\.section\s+(\S+?),")
_CODE: Final = ".text."  # the section of a function's code is named after the function
_TARGET: Final = re.compile(r"`\((\.L\w+)\)")
_WORD: Final = re.compile(r"/\*\s*0x([0-9a-f]{16})\s*\*/")
_NO_BARRIER: Final = 7
_FAR: Final = "CALL.REL.NOINC"


@dataclass(frozen=True, slots=True)
class Control:
    """The control information of an instruction for the scheduler: the clocks until the warp may issue
    the next one, the scoreboards that it waits for, and those that it sets when its result is written
    and when its operands have been read (None: none).
    """

    stall: int
    waits: tuple[int, ...]
    on_write: int | None
    on_read: int | None

    @classmethod
    def of(cls, word: int) -> Control:
        """The control information in the upper word of an instruction."""

        def barrier(first: int) -> int | None:
            number = word >> first & 7
            return None if number == _NO_BARRIER else number

        waits = tuple(n for n in range(6) if word >> (52 + n) & 1)
        return cls(word >> 41 & 15, waits, barrier(46), barrier(49))


@dataclass(frozen=True, slots=True)
class SassInstr:
    """One instruction: `jumps_to` is the index of the instruction to which it may branch, None
    without a branch; `falls_through` says whether the next instruction may follow. `operands` are as
    printed; `control` is None if the words of the instruction were not printed. `guard` is the predicate
    under which it is executed, "" for always; `literal` is a number that it takes from a register, where
    `ptxgen.runtime.sass_literals` has found it.
    """

    opcode: str
    jumps_to: int | None = None
    falls_through: bool = True
    operands: str = ""
    control: Control | None = None
    guard: str = ""
    literal: int | None = None

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def announces(self) -> bool:
        """Whether the instruction announces bytes of copies at an mbarrier."""
        return self.opcode.startswith(_ANNOUNCES) and _NO_BYTES not in self.opcode

    @property
    def macs(self) -> int:
        """Multiply-adds of this instruction on tensor cores for one warp: of a wgmma product, a quarter."""
        if self.name in _OF_WARPGROUPS:
            shape = _SHAPE.search(self.opcode)
            return math.prod(map(int, shape.groups())) // _WARPGROUP if shape else 0
        if self.name != _OF_WARPS:
            return 0
        return next((n for shape, n in _PRODUCTS.items() if f".{shape}." in f"{self.opcode}."), 0)


@dataclass(frozen=True, slots=True)
class SassLine:
    """One line of a listing: an instruction as printed, at `address` in bytes, or a label, with
    address -1. `source` is its line in the line table, 0 if it has none.
    """

    text: str
    address: int
    source: int
    instr: SassInstr | None


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: `path` is what a warp executes in one iteration, `size` counts all its instructions, which
    `body` has in order of address.
    """

    path: tuple[SassInstr, ...]
    size: int
    body: tuple[SassInstr, ...] = ()

    @property
    def products(self) -> int:
        """The number of tensor-core instructions in an iteration."""
        return sum(instr.name in (_OF_WARPS, *_OF_WARPGROUPS) for instr in self.path)

    @property
    def macs(self) -> int:
        """Multiply-adds of a warp on tensor cores in an iteration."""
        return sum(instr.macs for instr in self.path)


@dataclass(frozen=True, slots=True)
class Disassembler:
    """The nvdisasm at `path`."""

    path: Path

    def instructions(self, cubin: bytes) -> list[SassInstr]:
        """The code of a cubin with one kernel. Raises `BackendError` if nvdisasm fails."""
        return parse_sass(self._output(cubin, "-c", "-hex"))

    def listing(self, cubin: bytes, entry: str) -> list[SassLine]:
        """The lines of the kernel `entry` of a cubin, with the source lines in its line table (of
        `ptxas -lineinfo`). Raises `BackendError` if nvdisasm fails.
        """
        return parse_listing(self._output(cubin, "-c", "-g", "-hex"), entry)

    def _output(self, cubin: bytes, *options: str) -> str:
        with tempfile.TemporaryDirectory(prefix="ptxgen-") as folder:
            file = Path(folder, "kernel.cubin")
            file.write_bytes(cubin)
            try:
                run = subprocess.run(
                    [str(self.path), *options, str(file)],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                )
            except subprocess.CalledProcessError as error:
                reason = error.stderr.strip().split("\n", 1)[0]
                raise BackendError(
                    f"{self.path} cannot read the cubin: {reason}; use one of the assembler's "
                    f"version or later: {INSTALL}"
                ) from error
            except (OSError, subprocess.SubprocessError) as error:
                raise BackendError(f"{self.path} cannot be run: {error}; {INSTALL}") from error
        return run.stdout


@functools.cache
def find_disassembler() -> Disassembler:
    """nvdisasm on PATH, of the pip package, or of the toolkit; raises `BackendError` if missing."""
    path = shutil.which("nvdisasm") or _packaged()
    if not path:
        raise BackendError(f"there is no nvdisasm; to get one: {INSTALL}")
    return Disassembler(Path(path).absolute())


def _packaged() -> str | None:
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        path: str | None = pathfinder.find_nvidia_binary_utility("nvdisasm")
    except (ImportError, AttributeError, RuntimeError):
        return None
    return path


def parse_sass(text: str) -> list[SassInstr]:
    """The instructions that `nvdisasm -c` printed, with their controls if its option `-hex` was set."""
    labels: dict[str, int] = {}
    lines: list[re.Match[str]] = []
    words: list[list[int]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(lines)
        elif match := _LINE.match(line):
            lines.append(match)
            words.append([])
        if words:
            words[-1] += [int(word, 16) for word in _WORD.findall(line)]
    return [_instruction(n, m, labels, of) for n, (m, of) in enumerate(zip(lines, words, strict=True))]


def parse_listing(text: str, entry: str) -> list[SassLine]:
    """The lines of the kernel `entry` in what `nvdisasm -c -g` printed, which may be of several
    functions. The padding after the last instruction is left out: NOPs, and a branch to itself.
    """
    section = _of_function(text, entry)
    instrs = iter(parse_sass("\n".join(section)))
    lines: list[SassLine] = []
    source = 0
    for line in section:
        if at := _SOURCE.match(line):
            source = int(at[1])
        elif label := _LABEL.match(line):
            lines.append(SassLine(label[1], -1, source, None))
        elif match := _LINE.match(line):
            lines.append(SassLine(match["text"].rstrip(), int(match["address"], 16), source, next(instrs)))
    while lines and (lines[-1].instr is None or lines[-1].instr.name == "NOP"):
        lines.pop()
    if lines and lines[-1].instr is not None and lines[-1].instr.name == "BRA":
        target = _TARGET.search(lines[-1].text)
        if len(lines) > 1 and target is not None and lines[-2].text == target[1]:
            del lines[-2:]
    return lines


def _of_function(text: str, entry: str) -> list[str]:
    """The printed lines of the section with a function's code."""
    lines = itertools.dropwhile(lambda line: _section(line) != _CODE + entry, text.splitlines())
    inside = list(itertools.islice(lines, 1))
    inside += itertools.takewhile(lambda line: not _section(line), lines)
    return inside


def _section(line: str) -> str:
    match = _SECTION.match(line)
    return match[1] if match else ""


def _instruction(
    index: int, match: re.Match[str], labels: Mapping[str, int], words: Sequence[int]
) -> SassInstr:
    opcode, rest = match["opcode"], match["rest"]
    name = opcode.partition(".")[0]
    control = Control.of(words[1]) if len(words) > 1 else None
    if name in ("EXIT", "RET"):
        return SassInstr(opcode, None, match["guard"] is not None, rest.strip(), control)
    target = _TARGET.search(rest)
    if target is not None and opcode.startswith(_FAR) and labels.get(target[1], index + 1) <= index:
        # A branch back that is too far for BRA. A call goes forward, to code after the kernel.
        return SassInstr(opcode, labels[target[1]], match["guard"] is not None, rest.strip(), control)
    if name != "BRA" or target is None:
        return SassInstr(opcode, operands=rest.strip(), control=control, guard=match["guard"] or "")
    # `BRA P1, …` and `BRA.DIV UR4, …` have their condition in the operands.
    conditional = match["guard"] is not None or bool(rest[: target.start()].strip(" ,"))
    return SassInstr(opcode, labels.get(target[1]), conditional, rest.strip(), control)


# -------------------------------------------------------------------------------- loops


def main_loop(instrs: Sequence[SassInstr]) -> Loop | None:
    """The loop with the most tensor-core instructions in an iteration and, among equals, the fewest other
    instructions: the loop of an attention kernel over tiles that no mask cuts. A loop around another such
    loop, as persistent kernels have one, does not count. None if no loop has tensor-core instructions.
    """
    loops = [(body, loop) for body, loop in _loops(instrs) if loop.products]
    inner = [
        loop
        for body, loop in loops
        if not any(other < body and min(other) != min(body) for other, _ in loops)
    ]
    return max(inner, key=lambda loop: (loop.products, -len(loop.path)), default=None)


def loops(instrs: Sequence[SassInstr]) -> Iterator[Loop]:
    """Every loop, each with its path that has the most products, reads of matrices and copies and,
    among equals, is the shortest. So a branch that is rarely taken, for extra work, is left out.
    """
    for _, loop in _loops(instrs):
        yield loop


def _loops(instrs: Sequence[SassInstr]) -> Iterator[tuple[frozenset[int], Loop]]:
    """The loops that `loops` gives, each with the blocks of its body, by their first instruction."""
    blocks = basic_blocks(instrs)
    for last, after in blocks.items():
        for head in after.ways:
            if head <= last:
                body = _body(blocks, head, last)
                path = _best_path(instrs, {b: blocks[b] for b in body}, head, last)
                if path:
                    on_path, inside = (
                        tuple(instr for block in of for instr in instrs[block : blocks[block].end])
                        for of in (path, body)
                    )
                    yield frozenset(body), Loop(on_path, len(inside), inside)


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """A basic block: its end, and the blocks that may follow, by their first instruction."""

    end: int
    ways: tuple[int, ...]


def basic_blocks(instrs: Sequence[SassInstr]) -> dict[int, BasicBlock]:
    """The basic blocks of a kernel, by their first instruction, in order of address."""
    starts = {0} | {i.jumps_to for i in instrs if i.jumps_to is not None}
    starts |= {at + 1 for at, i in enumerate(instrs) if i.jumps_to is not None}
    starts |= {at + 1 for at, i in enumerate(instrs) if not i.falls_through}
    begins = sorted(at for at in starts if at < len(instrs))
    blocks = {}
    for begin, end in zip(begins, [*begins, len(instrs)][1:], strict=True):
        last = instrs[end - 1]
        ways = [] if last.jumps_to is None else [last.jumps_to]
        ways += [end] if last.falls_through and end < len(instrs) else []
        blocks[begin] = BasicBlock(end, tuple(way for way in ways if way in begins))
    return blocks


def _body(blocks: Mapping[int, BasicBlock], head: int, last: int) -> list[int]:
    """The blocks of the natural loop of the edge from `last` to `head`, in order of address."""
    before: dict[int, list[int]] = {}
    for block, after in blocks.items():
        for way in after.ways:
            before.setdefault(way, []).append(block)
    body, todo = {head, last}, [last]
    while todo:
        block = todo.pop()
        fresh = set(before.get(block, ())) - body if block != head else set()
        body |= fresh
        todo += fresh
    return sorted(body)


def _best_path(
    instrs: Sequence[SassInstr], body: Mapping[int, BasicBlock], head: int, last: int
) -> list[int]:
    """The best path of blocks from `head` to `last`, forward only; empty if there is none."""
    on_tensor_cores = any(i.macs for block in body for i in instrs[block : body[block].end])
    on_tensor_cores = on_tensor_cores or any(i.name in IN_TENSOR_MEMORY for i in instrs)  # for another role
    counted = _WORK[:-1] if on_tensor_cores else _WORK

    def worth(block: int) -> tuple[int, ...]:
        end = body[block].end
        return sum(i.name in counted or i.announces for i in instrs[block:end]), block - end

    return best_paths(body, head, worth).get(last, ((), []))[1]


def best_paths(
    body: Mapping[int, BasicBlock], head: int, worth: Callable[[int], tuple[int, ...]]
) -> dict[int, tuple[tuple[int, ...], list[int]]]:
    """The path from `head` to each block, forward only, whose blocks are worth the most together, and what
    they are worth.
    """
    best = {head: (worth(head), [head])}
    for block in body:
        if block not in best:
            continue
        done, path = best[block]
        for way in body[block].ways:
            if way in body and way > block:
                more = tuple(a + b for a, b in zip(done, worth(way), strict=True))
                best[way] = max(best.get(way, (more, [*path, way])), (more, [*path, way]))
    return best


@dataclass(frozen=True, slots=True)
class Block:
    """The instructions of a consumer warp for a block of queries: `before` the loops over tiles of keys, with
    the scores of the first tile; `cut` once for each further tile that a mask cuts (empty without such a
    loop); `main` for each other tile; and `after` the loops, with the last product and the stores. A
    persistent CTA repeats neither the first `once` instructions for its next block nor the last `ending`. A
    warp executes `skipped` after the first `skips_at` instructions of `before`, once for each tile of which
    its rows see no key.
    """

    before: tuple[SassInstr, ...]
    cut: tuple[SassInstr, ...]
    main: tuple[SassInstr, ...]
    after: tuple[SassInstr, ...]
    once: int
    ending: int = 0
    skipped: tuple[SassInstr, ...] = ()
    skips_at: int = 0


def block_of(instrs: Sequence[SassInstr]) -> Block | None:
    """The path through a kernel of warpgroups that has the most wgmma products and tensor copies to memory;
    among equals, outside the main loop, the most exponentials, maxima and masks, since where the maximum
    grows a warp rescales; else the shortest. None for a kernel with another structure of loops.
    """
    blocks = basic_blocks(instrs)
    loops = [(body, loop.path) for body, loop in _loops(instrs)]
    with_products = [body for body, path in loops if any(i.name in _OF_WARPGROUPS for i in path)]
    inner = [b for b in with_products if not any(o < b and min(o) != min(b) for o in with_products)]
    if len(inner) not in (1, 2) or len({min(body) for body in inner}) != len(inner):
        return None
    inner.sort(key=min)
    main, cut = inner[-1], inner[0] if len(inner) > 1 else frozenset[int]()

    def worth(block: int) -> tuple[int, ...]:
        inside = instrs[block : blocks[block].end]
        work = sum(i.name in (*_OF_WARPGROUPS, _STORE) for i in inside)
        weighed = 0 if block in main else sum(i.name in _WEIGHS for i in inside)
        return work, weighed, -len(inside)

    best = best_paths(blocks, 0, worth)
    _, path = max(best[b] for b in best if instrs[blocks[b].end - 1].name == "EXIT")

    def of(parts: Iterable[int]) -> tuple[SassInstr, ...]:
        return tuple(i for block in parts for i in instrs[block : blocks[block].end])

    inside = [n for n, block in enumerate(path) if block in cut or block in main]
    around = [body for body in with_products if any(body > one for one in inner)]
    outer = max(around, key=len, default=frozenset(blocks))
    first = min(outer)
    # The loop over hidden tiles waits for two barriers, and is the last before the first product; what is
    # before an EXIT is the producer's.
    begins = next(n for n, i in enumerate(instrs) if i.name in _OF_WARPGROUPS)
    ends = [n for n in range(begins) if instrs[n].name == "EXIT"]
    hidden = [(min(body), way) for body, way in loops if max(ends, default=-1) < min(body) < begins]
    hidden = [(at, way) for at, way in hidden if sum(i.name == _WAITS for i in way) > 1]
    at, skipped = max(hidden, key=lambda one: one[0], default=(0, ()))
    return Block(
        of(path[: inside[0]]),
        of(block for block in path if block in cut),
        of(block for block in path if block in main),
        of(path[inside[-1] + 1 :]),
        len(of(block for block in path if block < first)) if around else 0,
        len(of(block for block in path if block > first and block not in outer)),
        skipped,
        len(of(block for block in path if block < at)),
    )


def mix(instrs: Sequence[SassInstr]) -> dict[str, int]:
    """The number of instructions of each of `CLASSES`, and of all others."""
    counted = Counter(_class(instr.name) for instr in instrs)
    return {name: counted[name] for name in (*CLASSES, OTHER) if counted[name]}


def _class(name: str) -> str:
    return next((known for known, names in CLASSES.items() if name in names), OTHER)
