"""Random programs that branch: bounded loops, divergent branches inside them, guards, tables of
targets, calls and recursion, shared, local and global memory, atomics, barriers, and exchanges
between lanes where the right ones are together.

A program is PTX text of a kernel `k` with three parameters: `x`, one row of `ROW` bytes for each
thread, from which it fills its registers, `out`, to which it writes them, and `cells`, which all
threads update and which gets, CTA after CTA, what they update in shared memory. With `exact`, only
integer and exactly rounded code is drawn, and what is stored does not depend on the order of
threads; without, any instruction of the table that touches only registers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import strategies as st
from random_kernels import instruction

from ptxgen.isa.spec import Effect, Inst
from ptxgen.text import render_instr

VERSION, TARGET = (8, 0), "sm_80"
EACH = 4  # registers of each class
# By class: its registers' prefix, bytes, and the type of loads and stores.
FILES = {
    "b64": ("%rd", 8),
    "f64": ("%fd", 8),
    "b32": ("%r", 4),
    "f32": ("%f", 4),
    "b16": ("%rs", 2),
    "half": ("%h", 2),
}
STARTS = dict(zip(FILES, accumulate((EACH * n for _, n in FILES.values()), initial=0), strict=False))
PREDICATES = sum(EACH * n for _, n in FILES.values())  # where out has them, a byte each
ROW = 128
CELLS = 40  # bytes of shared memory, and of `cells`, that all threads update
LOCAL = 64
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
RED = {
    0: "add.u32",
    4: "min.s32",
    8: "max.u32",
    12: "and.b32",
    16: "or.b32",
    20: "xor.b32",
    24: "add.u64",
    32: "inc.u32",
    36: "max.s32",
}


@dataclass(frozen=True)
class Program:
    """PTX text and how to launch it."""

    text: str
    grid: int
    block: int
    seed: int

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        """x, out and cells."""
        rng = np.random.default_rng(self.seed)
        threads = self.grid * self.block
        x = np.zeros((threads, ROW), np.uint8)
        for held, (_, nbytes) in FILES.items():
            bits = lanes_of(rng, held, (threads, EACH))
            start = STARTS[held]
            x[:, start : start + EACH * nbytes] = bits.view(np.uint8).reshape(threads, -1)
        out = np.full((threads, ROW), 0xEE, np.uint8)
        return [x, out, np.full((1 + self.grid) * CELLS // 4, 5, np.uint32)]


def lanes_of(rng: np.random.Generator, held: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Bits for a class of register: small numbers, corners, ordinary and arbitrary ones."""
    nbytes = FILES[held][1]
    unsigned = np.dtype(f"u{nbytes}")
    arbitrary = rng.integers(0, 1 << 64, shape, dtype=np.uint64).astype(unsigned)
    small = rng.integers(-9, 10, shape)
    if held not in ("f32", "f64", "half"):
        top = 1 << (8 * nbytes - 1)
        corners = rng.choice(np.array([0, 1, top - 1, top, 2 * top - 1], np.uint64), shape)
        ordinary = small.astype(unsigned)
        return np.choose(rng.integers(0, 3, shape), [arbitrary, corners.astype(unsigned), ordinary])
    real = np.dtype(f"f{nbytes}")
    info = np.finfo(real)
    special = np.array(
        [
            *(0.0, -0.0, np.inf, -np.inf, np.nan, info.tiny, info.smallest_subnormal, info.max, 1.0),
            *(info.tiny * 0.75, 1 + info.eps),
        ],
        real,
    )
    normal = (rng.standard_normal(shape) * 2.0 ** small.astype(np.float64)).astype(real)
    kinds = [arbitrary, rng.choice(special, shape).view(unsigned), small.astype(real).view(unsigned)]
    return np.choose(rng.integers(0, 5, shape), [*kinds, *[normal.view(unsigned)] * 2])


class Writing:
    """Draws one program."""

    def __init__(self, draw: st.DrawFn, exact: bool) -> None:
        self.draw = draw
        self.exact = exact
        self.lines: list[str] = []
        self.labels = 0
        self.budget = 0  # instructions that may still be drawn
        self.functions = False  # whether calls may be drawn
        self.mask = "-1"  # the membermask of the lanes that are here, "" if unknown
        self.whole = True  # whether all threads of the CTA are here
        self.depth = 0

    # ---- choices

    def pick(self, *options: Any) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def upto(self, high: int) -> int:
        return self.draw(st.integers(0, high))

    def reg(self, held: str) -> str:
        return f"{FILES[held][0]}{self.upto(EACH - 1)}"

    def pred(self) -> str:
        return f"%p{self.upto(EACH - 1)}"

    def of(self, type: str) -> str:
        """A register, or sometimes a literal, of a type."""
        bits = int(type[1:])
        if type == "f16":
            return self.reg("half")
        held = type if type in ("f32", "f64") else f"b{bits}"
        if self.upto(4):
            return self.reg(held)
        if held in ("f32", "f64"):
            value = self.pick(0.0, 1.0, -0.5, 3.0, 1e-40, float("inf"))
            unsigned, letter, digits = ("<u4", "f", 8) if bits == 32 else ("<u8", "d", 16)
            raw = np.array(value, f"f{bits // 8}").view(unsigned)
            return f"0{letter}{int(raw):0{digits}X}"
        small = self.pick(0, 1, 2, 3, 5, 31, 255)
        return str(-small if type[0] == "s" and self.upto(1) else small)

    def amount(self) -> str:
        """By how much to shift."""
        return self.reg("b32") if self.upto(2) else str(self.upto(15))

    def label(self) -> str:
        self.labels += 1
        return f"$L{self.labels}"

    def emit(self, *lines: str) -> None:
        self.lines += lines

    # ---- blocks

    def block(self, most: int) -> None:
        """Some statements."""
        for _ in range(1 + self.upto(most - 1)):
            if self.budget <= 0:
                return
            self.budget -= 1
            self.pick(*self.kinds())()

    def kinds(self) -> Iterator[Callable[[], None]]:
        yield from [self.pure] * 6
        yield from [self.guarded] * 2
        if self.depth < 3:
            yield from (self.branch, self.branch, self.loop, self.switch)
        if self.functions:
            yield from (self.call, self.recurse, self.call_pointer)
            yield from (self.local, self.own_slot, self.cell)
            if self.mask:
                yield from [self.exchange] * 2
                yield from [self.meet] if self.mask == "-1" and self.depth < 3 else ()
                yield from (self.ballot, self.uniform_loop) if self.depth < 3 else ()
            if self.whole:
                yield from (self.neighbour, self.barrier)

    def inside(self, most: int, *, mask: str = "", whole: bool = False) -> None:
        """Statements that only some of the threads may execute."""
        before = self.mask, self.whole
        self.mask, self.whole, self.depth = mask, whole, self.depth + 1
        self.block(most)
        self.mask, self.whole = before
        self.depth -= 1

    def branch(self) -> None:
        other, after, p = self.label(), self.label(), self.pred()
        self.emit(f"@{self.pick('', '!')}{p} bra {other};")
        self.inside(4)
        if self.upto(1):
            self.emit(f"bra {after};", f"{other}:")
            self.inside(4)
            self.emit(f"{after}:")
        else:
            self.emit(f"{other}:")

    def loop(self) -> None:
        head, after, n = self.label(), self.label(), self.depth
        self.emit(f"and.b32 %c{n}, {self.reg('b32')}, 3;", f"{head}:")
        self.emit(f"setp.eq.u32 %q{n}, %c{n}, 0;", f"@%q{n} bra {after};")
        self.emit(f"sub.u32 %c{n}, %c{n}, 1;")
        self.inside(4)
        if self.upto(1):
            self.emit(f"@{self.pred()} bra {self.pick(head, after)};")
            self.inside(2)
        self.emit(f"bra {head};", f"{after}:")

    def uniform_loop(self) -> None:
        head, n = self.label(), self.depth
        self.emit(f"mov.u32 %c{n}, {self.pick(1, 2)};", f"{head}:")
        self.inside(3, mask=self.mask, whole=self.whole)
        self.emit(f"sub.u32 %c{n}, %c{n}, 1;", f"setp.ne.u32 %q{n}, %c{n}, 0;")
        self.emit(f"@%q{n} bra {head};")

    def switch(self) -> None:
        table, after = self.label(), self.label()
        ways = [self.label() for _ in range(self.pick(2, 3, 4))]
        self.emit(f"{table}: .branchtargets {', '.join(ways)};")
        self.emit(f"rem.u32 %t0, {self.reg('b32')}, {len(ways)};")
        self.emit(f"{self.pick('', '', '@' + self.pred() + ' ')}brx.idx %t0, {table};")
        for way in ways:
            self.emit(f"{way}:")
            self.inside(2)
            if self.upto(2):
                self.emit(f"bra {after};")
        self.emit(f"{after}:")

    def guarded(self) -> None:
        start = len(self.lines)
        self.pure()
        guard = f"@{self.pick('', '!')}{self.pred()} "
        self.lines[start:] = [line if line.startswith("@") else guard + line for line in self.lines[start:]]

    # ---- registers only

    def pure(self) -> None:
        if not self.exact and self.upto(1):
            self.emit(render_instr(self.draw(ANY)))
            return
        self.pick(
            self.integer,
            self.integer,
            self.bits,
            self.float,
            self.float,
            self.compare,
            self.convert,
            self.move,
            self.carry,
        )()

    def integer(self) -> None:
        type = self.pick("u32", "s32", "u64", "s64", "u16", "s16")
        held = f"b{type[1:]}"
        form = self.pick(
            "add",
            "sub",
            "mul.lo",
            "mul.hi",
            "min",
            "max",
            "div",
            "rem",
            "mad.lo",
            "mul.wide",
            "mad.wide",
            "sad",
            "neg",
            "abs",
            "shr",
            "mad.hi",
        )
        if form in ("neg", "abs"):
            type = f"s{type[1:]}"
        if form.endswith("wide"):
            type = self.pick("u32", "s32") if type.endswith("64") else type
            wide = f"{type[0]}{2 * int(type[1:])}"
            third = f", {self.of(wide)}" if form == "mad.wide" else ""
            to = self.reg(f"b{wide[1:]}")
            self.emit(f"{form}.{type} {to}, {self.of(type)}, {self.of(type)}{third};")
            return
        count = {"neg": 1, "abs": 1, "mad.lo": 3, "mad.hi": 3, "sad": 3}.get(form, 2)
        operands = [self.of(type) for _ in range(count)]
        if form in ("div", "rem"):
            operands[1] = str(self.pick(1, 2, 3, 7, 10, 100))
        if form == "shr":
            operands[1] = self.amount()
        self.emit(f"{form}.{type} {self.reg(held)}, {', '.join(operands)};")

    def bits(self) -> None:
        size = self.pick("b32", "b64", "b16", "b32")
        form = self.pick(
            "and",
            "or",
            "xor",
            "not",
            "cnot",
            "shl",
            "popc",
            "clz",
            "brev",
            "bfe",
            "bfi",
            "lop3",
            "prmt",
            "shf.l.wrap",
            "shf.r.clamp",
            "pred",
        )
        if form == "pred":
            self.emit(f"{self.pick('and', 'or', 'xor')}.pred {', '.join(self.preds(3))};")
            return
        if form in ("popc", "clz", "brev", "bfe", "bfi") and size == "b16":
            size = "b32"
        if form in ("lop3", "prmt", "shf.l.wrap", "shf.r.clamp"):
            size = "b32"
        a, b, n, m = self.of(size), self.of(size), self.of("u32"), self.of("u32")
        arguments = {
            "shl": [a, self.amount()],
            "not": [a],
            "cnot": [a],
            "popc": [a],
            "clz": [a],
            "brev": [a],
            "bfe": [a, n, m],
            "bfi": [a, b, n, m],
            "prmt": [a, b, n],
            "lop3": [a, b, n, str(self.upto(255))],
        }.get(form, [a, b, n] if form.startswith("shf") else [a, b])
        type = self.pick("u", "s") + size[1:] if form == "bfe" else size
        to = self.reg("b32" if form in ("popc", "clz") else size)
        self.emit(f"{form}.{type} {to}, {', '.join(arguments)};")

    def preds(self, count: int) -> list[str]:
        return [self.pred() for _ in range(count)]

    def float(self) -> None:
        type = self.pick("f32", "f32", "f64")
        form = self.pick("add", "sub", "mul", "fma", "div", "sqrt", "rcp", "min", "max", "neg", "abs")
        plain = form in ("min", "max", "neg", "abs")
        rounding = "" if plain else "." + self.pick("rn", "rn", "rz", "rm", "rp")
        ftz = ".ftz" if type == "f32" and not self.upto(2) else ""
        sat = type == "f32" and form in ("add", "sub", "mul", "fma") and not self.upto(4)
        count = {"fma": 3, "sqrt": 1, "rcp": 1, "neg": 1, "abs": 1}.get(form, 2)
        operands = [self.of(type) for _ in range(count)]
        opcode = f"{form}{rounding}{ftz}{'.sat' * sat}.{type}"
        self.emit(f"{opcode} {self.reg(type)}, {', '.join(operands)};")

    def compare(self) -> None:
        type = self.pick("u32", "s32", "s64", "u64", "u16", "s16", "f32", "f64", "b32")
        words = ("eq", "ne") if type == "b32" else COMPARE
        if type[0] == "f":
            words = (*COMPARE, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
        elif type[0] == "u":
            words = (*COMPARE, "lo", "ls", "hi", "hs")
        ftz = ".ftz" if type == "f32" and not self.upto(3) else ""
        combine, third = "", ""
        if not self.upto(2):
            combine = "." + self.pick("and", "or", "xor")
            third = f", {self.pick('', '!')}{self.pred()}"
        to = self.pred()
        if not self.upto(2):
            others = [f"%p{n}" for n in range(EACH) if f"%p{n}" != to]
            to += "|" + self.pick(*others)
        sources = f"{self.of(type)}, {self.of(type)}{third}"
        self.emit(f"setp.{self.pick(*words)}{combine}{ftz}.{type} {to}, {sources};")

    def convert(self) -> None:
        integers = ("u16", "s16", "u32", "s32", "u64", "s64")
        kind = self.pick("ii", "if", "fi", "ff", "narrow", "narrow")
        if kind == "narrow":  # an 8-bit type in a wider register
            small, wide = self.pick("u8", "s8", "s8"), self.pick("b16", "b32", "b64")
            into, source = self.pick((small, f"s{wide[1:]}"), (f"s{wide[1:]}", small))
            self.emit(f"cvt.{into}.{source} {self.reg(wide)}, {self.reg(wide)};")
            return
        into = self.pick(*integers) if kind[1] == "i" else self.pick("f32", "f64", "f16")
        source = self.pick(*integers) if kind[0] == "i" else self.pick("f32", "f64", "f16")
        words = self.conversion(into, source)
        to, what = self.holder(into), self.holder(source)
        self.emit(f"cvt{words}.{into}.{source} {self.reg(to)}, {self.reg(what)};")

    def conversion(self, into: str, source: str) -> str:
        """The modifiers of a cvt."""
        sizes = {t: int(t[1:]) for t in (into, source)}
        ftz = ".ftz" if "f32" in (into, source) and not self.upto(3) else ""
        if into[0] != "f" and source[0] != "f":
            fits = {"uu": 0, "ss": 0, "us": 1, "su": 1 << 9}[source[0] + into[0]] + sizes[source]
            return ".sat" if not self.upto(2) and sizes[into] < fits else ""
        if into[0] != "f":
            return "." + self.pick("rni", "rzi", "rmi", "rpi") + ftz
        sat = ".sat" if not self.upto(4) else ""
        if source[0] != "f":
            return "." + self.pick("rn", "rz", "rm", "rp") + sat
        if into == source:
            if into == "f16":
                return ".rni"
            return "." + self.pick("rni", "rzi", "rmi", "rpi") + ftz + sat
        if sizes[into] > sizes[source]:
            return ftz + sat
        words = ("rn", "rz") if into == "f16" and source == "f32" else ("rn", "rz", "rm", "rp")
        return "." + self.pick(*words) + (ftz if into == "f32" or source == "f32" else "") + sat

    @staticmethod
    def holder(type: str) -> str:
        if type == "f16":
            return "half"
        return type if type[0] == "f" else f"b{type[1:]}"

    def move(self) -> None:
        form = self.pick("mov", "selp", "pack", "unpack", "special")
        if form in ("mov", "selp"):
            type = self.pick("b32", "b64", "b16", "f32", "f64")
            a, b, to = self.of(type), self.of(type), self.reg(type)
            rest = f"{a};" if form == "mov" else f"{a}, {b}, {self.pred()};"
            name = type.replace("b", "u") if form == "mov" else type
            self.emit(f"{form}.{name} {to}, {rest}")
        elif form == "special":
            name = self.pick("%tid.x", "%ntid.x", "%ctaid.x", "%laneid", "%lanemask_lt")
            self.emit(f"mov.u32 {self.reg('b32')}, {name};")
        else:
            whole, part = self.pick(("b64", "b32"), ("b32", "b16"))
            parts = [self.reg(part), self.reg(part)]
            if form == "pack":
                self.emit(f"mov.{whole} {self.reg(whole)}, {{{', '.join(parts)}}};")
            elif parts[0] != parts[1]:
                parts[self.upto(1)] = self.pick(parts[0], "_") if VERSION > (8, 6) else parts[0]
                if parts[0] != parts[1]:
                    self.emit(f"mov.{whole} {{{', '.join(parts)}}}, {self.reg(whole)};")

    def carry(self) -> None:
        form = self.pick("add", "sub")
        type = self.pick("u32", "s32", "u64")
        for name in (f"{form}.cc", f"@{self.pred()} {form}c.cc", f"{form}c"):
            to = self.reg(f"b{type[1:]}")
            self.emit(f"{name}.{type} {to}, {self.of(type)}, {self.of(type)};")

    # ---- memory

    def local(self) -> None:
        type = self.pick("u32", "s8", "u8", "u16", "s16", "u64", "s32", "s32", "v2.u32")
        bits = int(type.rsplit(".", maxsplit=1)[-1][1:])
        nbytes = bits // 8 * (2 if "." in type else 1)
        held = f"b{max(bits, 16)}" if bits < 64 and self.upto(1) else "b64"
        self.emit(f"and.b32 %t1, {self.reg('b32')}, {LOCAL - nbytes};", "mov.u32 %t2, loc;")
        self.emit("add.u32 %t1, %t1, %t2;")
        a, b = self.reg(held), self.reg(held)
        if "." in type:
            held = "b32"
            a, b = "%r0", f"%r{1 + self.upto(EACH - 2)}"
        value = f"{{{a}, {b}}}" if "." in type else a
        form = "ld" if self.upto(1) else "st"
        both = f"{value}, [%t1]" if form == "ld" else f"[%t1], {value}"
        self.emit(f"{form}.local.{type} {both};")

    def own_slot(self) -> None:
        guard = self.pick("", f"@{self.pred()} ")
        at = self.pick("[%slot]", "[%slot+4]")
        kind = self.pick("u32", "f32") if at == "[%slot+4]" else "u32"
        kind = "f32" if at == "[%slot+4]" else kind
        held = "f32" if kind == "f32" else "b32"
        if self.upto(1):
            self.emit(f"{guard}st.shared.{kind} {at}, {self.reg(held)};")
        else:
            self.emit(f"{guard}ld.shared.{kind} {self.reg(held)}, {at};")

    def neighbour(self) -> None:
        """All threads read what another one keeps in shared memory."""
        self.emit("bar.sync 0;", f"add.u32 %t3, %me, {self.pick(1, 7, 31, 32)};")
        self.emit("rem.u32 %t3, %t3, %n;", "mov.u32 %t4, slots;", "mad.lo.u32 %t3, %t3, 8, %t4;")
        kind = self.pick("u32", "v2")
        if kind == "u32":
            self.emit(f"ld.shared.u32 {self.reg('b32')}, [%t3];")
        else:
            self.emit(f"ld.shared.f32 {self.reg('f32')}, [%t3+4];")
        self.emit("bar.sync 0;")

    def barrier(self) -> None:
        form = self.pick("popc.u32", "and.pred", "or.pred")
        to = self.reg("b32") if form == "popc.u32" else self.pred()
        self.emit(f"bar.red.{form} {to}, 0, {self.pick('', '!')}{self.pred()};")

    def cell(self) -> None:
        """Update a word that all threads share; what was there is of no use to exact programs."""
        space, base = self.pick(("global", "%cells"), ("shared", "shares"))
        at = self.pick(*RED)
        op = RED[at]
        value = self.of("s64" if op.endswith("64") else "u32")
        if op == "inc.u32":
            value = "21"  # the same for all, or their order would matter
        guard = self.pick("", f"@{self.pred()} ")
        if self.upto(1):
            self.emit(f"{guard}red.{space}.{op} [{base}+{at}], {value};")
            return
        held = "b64" if op.endswith("64") else "b32"
        to = self.reg(held)
        if self.exact:
            to = "%junk" if held == "b32" else "%junk64"
        self.emit(f"{guard}atom.{space}.{op} {to}, [{base}+{at}], {value};")

    # ---- other lanes

    def exchange(self) -> None:
        p, r, mask = self.pred(), self.reg("b32"), self.mask
        if self.upto(1):
            self.shuffle()
            return
        self.emit(
            self.pick(
                f"vote.sync.{self.pick('all', 'any', 'uni')}.pred {p}, {self.pred()}, {mask};",
                f"vote.sync.ballot.b32 {r}, {self.pick('', '!')}{p}, {mask};",
                f"match.any.sync.b32 {r}, {self.reg('b32')}, {mask};",
                f"match.all.sync.b32 {r}|{p}, {self.reg('b32')}, {mask};",
                f"redux.sync.{self.pick('add', 'min', 'max')}.{self.pick('u32', 's32')} {r}, "
                f"{self.reg('b32')}, {mask};",
                f"redux.sync.{self.pick('and', 'or', 'xor')}.b32 {r}, {self.reg('b32')}, {mask};",
                f"bar.warp.sync {mask};",
            )
        )

    def shuffle(self) -> None:
        """A shuffle; among some of the lanes only, from the lowest of them."""
        to = self.reg("b32") + self.pick("", f"|{self.pred()}")
        if self.mask == "-1":
            form, clamp = self.pick(
                ("bfly", 31),
                ("idx", 31),
                ("down", 31),
                ("up", 0),
                ("down", 0x181F),
                ("idx", 0x181F),
                ("up", 0x1800),
                ("bfly", 0x1C1F),
            )
            lane = self.pick(str(self.upto(31)), self.reg("b32"))
            self.emit(f"shfl.sync.{form}.b32 {to}, {self.reg('b32')}, {lane}, {clamp}, -1;")
            return
        self.emit(f"brev.b32 %t5, {self.mask};", "clz.b32 %t5, %t5;")
        self.emit(f"shfl.sync.idx.b32 {to}, {self.reg('b32')}, %t5, 31, {self.mask};")

    def ballot(self) -> None:
        """Those lanes for which a predicate holds go on together."""
        after, p, mask = self.label(), self.pred(), f"%m{self.depth}"
        self.emit(f"vote.sync.ballot.b32 {mask}, {p}, {self.mask};", f"@!{p} bra {after};")
        self.inside(4, mask=mask)
        self.emit(f"{after}:")

    # ---- calls

    def meet(self) -> None:
        """The lanes of a warp come from two calls to the same instructions."""
        other, after, p = self.label(), self.label(), self.pred()
        callee = self.pick("together", "everyone") if self.whole else "together"
        self.emit(f"@{p} bra {other};")
        self.inside(2)
        self.calling(callee)
        self.emit(f"bra {after};", f"{other}:")
        self.calling(callee)
        self.emit(f"{after}:")

    def call(self) -> None:
        self.calling(f"f{self.upto(1)}")

    def call_pointer(self) -> None:
        p = self.pred()
        self.emit("mov.u64 %fn, f0;", f"@{p} mov.u64 %fn, f1;")
        self.calling("%fn")

    def recurse(self) -> None:
        self.emit(f"and.b32 %t6, {self.reg('b32')}, 3;")
        self.calling("again", "%t6")

    def calling(self, callee: str, first: str = "") -> None:
        to = self.reg("b32")
        self.emit(f"st.param.b32 [give0], {first or self.reg('b32')};")
        self.emit(f"st.param.b64 [give1], {self.reg('b64')};")
        proto = ", proto" if callee.startswith("%") else ""
        call = f"call (get), {callee}, (give0, give1){proto};"
        if callee not in ("together", "everyone") and not self.upto(
            3
        ):  # the load of a result cannot have a guard
            self.emit(f"@{self.pick('', '!')}{self.pred()} {call}")
        else:
            self.emit(call, f"ld.param.b32 {to}, [get];")

    # ---- the whole

    def function(self, name: str, *, recursive: bool = False) -> list[str]:
        """A function of a 32-bit and a 64-bit value; `together` is for whole warps, `everyone` for
        all threads of a CTA.
        """
        self.lines, self.budget, self.functions = [], 8, False
        self.depth, self.mask, self.whole = 1, "", False
        for held, (prefix, _) in FILES.items():
            for n in range(EACH):
                self.emit(zero(held, f"{prefix}{n}"))
        self.emit(*(f"setp.ne.u32 %p{n}, 0, {n & 1};" for n in range(EACH)))
        self.emit("ld.param.b32 %r0, [a];", "ld.param.b64 %rd0, [b];", "cvt.u32.u64 %r1, %rd0;")
        self.emit("st.local.u32 [own], %r0;", "setp.gt.s32 %p0, %r0, %r1;")
        if name == "together":
            self.mask = "-1"
            self.emit("setp.gt.s32 %p1, %r0, 0;", "setp.gt.s32 %p2, %r1, %r0;")
            for _ in range(3):
                self.exchange()
                self.pure()
            self.mask = ""
        if name == "everyone":
            self.emit("mov.u32 %me, %tid.x;", "mov.u32 %n, %ntid.x;", "mov.u32 %slot, slots;")
            self.emit("mad.lo.u32 %slot, %me, 8, %slot;", "st.shared.u32 [%slot], %r0;")
            self.neighbour()
        self.block(5)
        if recursive:
            self.emit("setp.eq.u32 %q0, %keep, 0;", "@%q0 bra $done;", "sub.u32 %t0, %keep, 1;")
            self.emit("st.param.b32 [give0], %t0;", "st.param.b64 [give1], %rd1;")
            self.emit(f"call (get), {name}, (give0, give1);", "ld.param.b32 %t1, [get];")
            self.budget = 3
            self.block(3)
            self.emit("xor.b32 %r0, %r0, %t1;", "$done:")
        else:
            self.emit(f"@{self.pred()} ret;" if not self.upto(3) else "")
        self.emit("ld.local.u32 %t2, [own];", "add.u32 %r0, %r0, %t2;", "add.u32 %r0, %r0, %r1;")
        body = [*registers(), "\t.local .align 4 .b8 own[16];", *transfers(), "st.param.b32 [back], 7;"]
        body += ["ld.param.b32 %keep, [a];", *self.lines, "st.param.b32 [back], %r0;", "ret;"]
        return [header(name), "{", *body, "}"]

    def kernel(self) -> list[str]:
        self.lines, self.budget, self.functions = [], 24, True
        self.depth, self.mask, self.whole = 0, "-1", True
        self.emit(*START)
        for held, (prefix, nbytes) in FILES.items():
            kind = held if held in ("f32", "f64") else f"b{8 * nbytes}"
            for n in range(EACH):
                at = STARTS[held] + n * nbytes
                self.emit(f"ld.global.{kind} {prefix}{n}, [%x+{at}];")
        for n in range(EACH):
            self.emit(f"setp.{self.pick('lt', 'gt', 'ne')}.s32 %p{n}, %r{n}, %r{(n + 1) % EACH};")
        self.block(20)
        self.emit("bar.sync 0;")
        for at in range(0, CELLS, 4):
            self.emit(f"@%first ld.shared.u32 %t0, [shares+{at}];")
            self.emit(f"@%first st.global.u32 [%mine+{at}], %t0;")
        if not self.upto(1):
            self.functions, self.mask, self.whole, self.budget = False, "", False, 6
            self.emit(f"@{self.pred()} {self.pick('exit', 'ret')};")
            self.block(5)
        for held, (prefix, nbytes) in FILES.items():
            kind = held if held in ("f32", "f64") else f"b{8 * nbytes}"
            for n in range(EACH):
                self.emit(f"st.global.{kind} [%out+{STARTS[held] + n * nbytes}], {prefix}{n};")
        for n in range(EACH):
            self.emit(f"selp.u32 %t0, 1, 0, %p{n};", f"st.global.u8 [%out+{PREDICATES + n}], %t0;")
        body = [*registers(), *SPACES, *transfers()]
        if any(", proto;" in line for line in self.lines):
            body.append("proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b64 _);")
        return [KERNEL, "{", *body, *self.lines, "ret;", "}"]

    def program(self) -> str:
        names = ("f0", "f1", "together", "everyone", "again")
        functions = [self.function(name, recursive=name == "again") for name in names]
        lines = [f".version {VERSION[0]}.{VERSION[1]}", f".target {TARGET}", ".address_size 64"]
        lines += [".shared .align 8 .b8 slots[1024];", *(f"{header(name)};" for name in names)]
        for function in functions:
            lines += function
        return "\n".join(filter(None, [*lines, *self.kernel()])) + "\n"


def header(name: str) -> str:
    return f".func (.param .b32 back) {name} (.param .b32 a, .param .b64 b)"


def zero(held: str, register: str) -> str:
    if held in ("f32", "f64"):
        return f"mov.{held} {register}, {'0f3F800000' if held == 'f32' else '0d4000000000000000'};"
    return f"mov.b{8 * FILES[held][1]} {register}, 3;"


def transfers() -> list[str]:
    return ["\t.param .b32 give0;", "\t.param .b64 give1;", "\t.param .b32 get;"]


def registers() -> list[str]:
    own = [
        f"\t.reg .{'b16' if held == 'half' else held} {prefix}<{EACH}>;"
        for held, (prefix, _) in FILES.items()
    ]
    return [
        *own,
        f"\t.reg .pred %p<{EACH}>;",
        "\t.reg .pred %q<4>, %first;",
        "\t.reg .b32 %t<8>;",
        "\t.reg .b32 %c<4>;",
        "\t.reg .b32 %m<4>;",
        "\t.reg .b32 %me, %n, %slot, %junk, %keep;",
        "\t.reg .b64 %x, %out, %cells, %mine, %wide, %fn, %junk64;",
    ]


KERNEL = ".visible .entry k(.param .u64 x, .param .u64 out, .param .u64 cells)"
SPACES = [f"\t.local .align 8 .b8 loc[{LOCAL}];", f"\t.shared .align 8 .b8 shares[{CELLS}];"]
START = [
    "mov.u32 %me, %tid.x;",
    "mov.u32 %n, %ntid.x;",
    "mov.u32 %t0, %ctaid.x;",
    "mad.lo.u32 %t1, %t0, %n, %me;",
    "ld.param.u64 %x, [x];",
    "ld.param.u64 %out, [out];",
    "ld.param.u64 %cells, [cells];",
    f"mad.wide.u32 %mine, %t0, {CELLS}, {CELLS};",
    "add.u64 %mine, %mine, %cells;",
    f"mul.wide.u32 %wide, %t1, {ROW};",
    "add.u64 %x, %x, %wide;",
    "add.u64 %out, %out, %wide;",
    "setp.eq.u32 %first, %me, 0;",
    "mov.u32 %slot, slots;",
    "mad.lo.u32 %slot, %me, 8, %slot;",
    "st.shared.u32 [%slot], %t1;",
    "st.shared.f32 [%slot+4], 0f3FC00000;",
    *(f"@%first st.shared.u32 [shares+{at}], {at};" for at in range(0, CELLS, 4)),
    *(f"st.local.u64 [loc+{at}], {at};" for at in range(0, LOCAL, 8)),
    "bar.sync 0;",
]


def only_registers(row: Inst) -> bool:
    # The programs declare no registers of bytes.
    return row.effect is Effect.NONE and not any(o.address or o.type == "byte" for o in row.operands)


ANY = instruction(VERSION, TARGET, only_registers)


@st.composite
def programs(draw: st.DrawFn, *, exact: bool) -> Program:
    """Programs of one or two CTAs of one or two warps, the last of which may be partly empty."""
    text = Writing(draw, exact).program()
    block = draw(st.sampled_from((32, 64)))
    return Program(text, draw(st.sampled_from((1, 2))), block, draw(st.integers(0, 1 << 16)))
