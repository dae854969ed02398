"""Instructions of tensor memory as the PTX manual writes them: every form, every shape with its registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

GROUPS: Final = ("cta_group::1", "cta_group::2")
FLOATS: Final = ("f16", "tf32", "f8f6f4")
# PTX ISA, "tcgen05.ld": the registers of each shape with .x1, and the largest .num.
SHAPES: Final = {
    "32x32b": (1, 128),
    "16x64b": (1, 128),
    "16x128b": (2, 64),
    "16x256b": (4, 32),
    "16x32bx2": (1, 128),
}
BLOCKS: Final = {
    "mxf8f6f4": ("", ".block32", ".scale_vec::1X"),
    "mxf4": ("", ".block32", ".scale_vec::2X"),
    "mxf4nvf4": (".block16", ".block32", ".scale_vec::2X", ".scale_vec::4X"),
}
COPIES: Final = (
    "128x256b",
    "4x256b",
    "128x128b",
    "64x128b.warpx2::02_13",
    "64x128b.warpx2::01_23",
    "32x128b.warpx4",
)
USES: Final = ("fill", "use", "lastuse", "discard")


def vector(count: int, prefix: str = "r", first: int = 100) -> str:
    return "{" + ", ".join(f"%{prefix}{first + n}" for n in range(count)) + "}"


def allocation(group: str) -> Iterator[str]:
    yield f"tcgen05.alloc.{group}.sync.aligned.b32 [%rd1], %r2;"
    yield f"tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [%r1], 512;"
    yield f"tcgen05.dealloc.{group}.sync.aligned.b32 %r1, 32;"
    yield f"tcgen05.relinquish_alloc_permit.{group}.sync.aligned;"


def moves() -> Iterator[str]:
    for shape, (registers, most) in SHAPES.items():
        split = ", 16" if shape == "16x32bx2" else ""
        for num in (1 << n for n in range(most.bit_length())):
            held = vector(registers * num)
            for half in ("", "16b"):
                pack, unpack = (f".{word}::{half}" if half else "" for word in ("pack", "unpack"))
                yield f"tcgen05.ld.sync.aligned.{shape}.x{num}{pack}.b32 {held}, [%r1+4]{split};"
                yield f"tcgen05.st.sync.aligned.{shape}.x{num}{unpack}.b32 [%r1+4]{split}, {held};"


def reductions() -> Iterator[str]:
    for shape, split in (("32x32b", ""), ("16x32bx2", ", 8")):
        for num in (1 << n for n in range(1, 8)):
            for op in ("min", "max"):
                for flags in ("", ".abs", ".NaN", ".abs.NaN"):
                    of = f"{vector(num, 'f')}, %f1, [%r1]{split};"
                    yield f"tcgen05.ld.red.sync.aligned.{shape}.x{num}.{op}{flags}.f32 {of}"
                for type in ("u32", "s32"):
                    of = f"{vector(num)}, %r2, [%r1]{split};"
                    yield f"tcgen05.ld.red.sync.aligned.{shape}.x{num}.{op}.{type} {of}"


def products(group: str) -> Iterator[str]:
    mask = vector(4 * int(group[-1]))
    for sparse, metadata in (("", ""), (".sp", " [%r5],")):
        rest = f"%rd2,{metadata} %r2,"
        for kind in (*FLOATS, "i8"):
            opcode = f"tcgen05.mma{sparse}.{group}.kind::{kind}"
            yield f"{opcode} [%r1], %rd1, {rest} %p1;"
            yield f"{opcode} [%r1+4], [%r3+8], {rest} !%p1;"
            yield f"{opcode} [%r1], %rd1, {rest} {mask}, %p1;"
            yield f"{opcode} [%r1], [%r3], {rest} {mask}, %p1;"
            yield f"{opcode}.ashift [%r1], [%r3], {rest} {mask}, %p1;"
            for use in USES:
                yield f"{opcode}.collector::a::{use} [%r1], %rd1, {rest} %p1;"
                yield f"{opcode}.collector::a::{use} [%r1], [%r3], {rest} %p1;"
            for use in USES[2:]:
                yield f"{opcode}.ashift.collector::a::{use} [%r1], [%r3], {rest} %p1;"
        for kind in FLOATS[:2]:
            opcode = f"tcgen05.mma{sparse}.{group}.kind::{kind}"
            for a in ("%rd1", "[%r3]"):
                yield f"{opcode} [%r1], {a}, {rest} %p1, 0;"
                yield f"{opcode} [%r1], {a}, {rest} {mask}, %p1, 15;"
            yield f"{opcode}.ashift [%r1], [%r3], {rest} %p1, 1;"
            yield f"{opcode}.ashift [%r1], [%r3], {rest} {mask}, %p1, 1;"


def scaled(group: str, kinds: Sequence[str], sparse: str, metadata: str) -> Iterator[str]:
    for kind in kinds:
        for block in BLOCKS[kind]:
            opcode = f"tcgen05.mma{sparse}.{group}.kind::{kind}.block_scale{block}"
            for a in ("%rd1", "[%r3]"):
                operands = f"[%r1], {a}, %rd2,{metadata} %r2, [%r6], [%r7], %p1;"
                yield f"{opcode} {operands}"
                yield f"{opcode}.collector::a::use {operands}"


def stationary() -> Iterator[str]:
    for sparse, metadata in (("", ""), (".sp", " [%r5],")):
        for kind in (*FLOATS, "i8"):
            opcode = f"tcgen05.mma.ws{sparse}.cta_group::1.kind::{kind}"
            for a in ("%rd1", "[%r3]"):
                yield f"{opcode} [%r1], {a}, %rd2,{metadata} %r2, %p1;"
                yield f"{opcode}.collector::b3::lastuse [%r1], {a}, %rd2,{metadata} %r2, %p1, %rd3;"


def rest(group: str) -> Iterator[str]:
    for copy in COPIES:
        for format in ("", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64"):
            yield f"tcgen05.cp.{group}.{copy}{format} [%r1], %rd1;"
    yield f"tcgen05.shift.{group}.down [%r1];"
    for cast, mask in (("", ""), (".multicast::cluster", ", %rs1")):
        commit = f"tcgen05.commit.{group}.mbarrier::arrive::one"
        yield f"{commit}{cast}.b64 [%rd1]{mask};"
        yield f"{commit}.shared::cluster{cast}.b64 [%r1]{mask};"
    yield "tcgen05.fence::before_thread_sync;"
    yield "tcgen05.fence::after_thread_sync;"
    yield "tcgen05.wait::ld.sync.aligned;"
    yield "tcgen05.wait::st.sync.aligned;"


def texts(group: str, target: str) -> Iterator[str]:
    """The instructions that a target has, with one size of the group of CTAs."""
    yield from allocation(group)
    yield from moves()
    if target == "sm_103a":
        yield from reductions()
    integers = target == "sm_100a"
    yield from (text for text in products(group) if integers or "kind::i8" not in text)
    yield from scaled(group, tuple(BLOCKS), "", "")
    yield from scaled(group, tuple(BLOCKS), ".sp", " [%r5],")
    if group == GROUPS[0]:
        yield from (text for text in stationary() if integers or "kind::i8" not in text)
    yield from rest(group)


# By the prefix of a register's name: its type, the number of registers, and a value for each.
_REGISTERS: Final = {
    "rs": ("b16", 2, "0"),
    "r": ("b32", 256, "0"),
    "rd": ("b64", 4, "0"),
    "f": ("f32", 256, "0f00000000"),
}


def kernel(*lines: str, target: str = "sm_100a", version: str = "9.0") -> str:
    """A module whose kernel gives its registers values and has the instructions."""
    head = f".version {version}\n.target {target}\n.address_size 64\n\n.visible .entry k()\n{{"
    declared = [f".reg .{type} %{prefix}<{n}>;" for prefix, (type, n, _) in _REGISTERS.items()]
    values = [
        f"mov.{type} %{prefix}{number}, {value};"
        for prefix, (type, n, value) in _REGISTERS.items()
        for number in range(n)
    ]
    start = [*declared, ".reg .pred %p<2>;", *values, "setp.eq.s32 %p1, %r1, 0;"]
    return "\n".join([head, *start, *lines, "ret;", "}\n"])
