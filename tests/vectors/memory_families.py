"""Instructions on shared memory: ldmatrix, stmatrix, wgmma by descriptors, tensor copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from vectors.cases import Array, Case, kernel, oldest_target
from vectors.register_families import FLOATS, SIGNS, movmatrix, ops_named, seeded, values

from ptxgen.isa import table
from ptxgen.isa.fragments import operand_layout
from ptxgen.tensormap import TensorMap

SPANS: Final = {"none": 16, "32B": 32, "64B": 64, "128B": 128}  # bytes of a swizzle's rows
POISON: Final = 0xABABABAB


def in_turns(words: int, threads: int, name: str, body: str) -> str:
    """`body` for each word, whose byte offset is in %r5 and %rd5."""
    return f"""\
    mov.u32 %r5, %tid.x;
    shl.b32 %r5, %r5, 2;
${name}:
    setp.ge.u32 %p3, %r5, {4 * words};
    @%p3 bra ${name}_end;
    cvt.u64.u32 %rd5, %r5;
{body}
    add.u32 %r5, %r5, {4 * threads};
    bra ${name};
${name}_end:
"""


def to_shared(words: int, threads: int, source: str, variable: str) -> str:
    """Copies an array to shared memory."""
    return f"    ld.param.b64 %rd6, [{source}];\n    mov.u32 %r6, {variable};\n" + in_turns(
        words,
        threads,
        f"in_{source}",
        "    add.u64 %rd5, %rd5, %rd6;\n    ld.global.b32 %r7, [%rd5];\n"
        "    add.u32 %r8, %r6, %r5;\n    st.shared.b32 [%r8], %r7;",
    )


def from_shared(words: int, threads: int, variable: str, name: str = "dump") -> str:
    """Copies shared memory to `out`."""
    return f"    ld.param.b64 %rd6, [out];\n    mov.u32 %r6, {variable};\n" + in_turns(
        words,
        threads,
        name,
        "    add.u64 %rd5, %rd5, %rd6;\n    add.u32 %r8, %r6, %r5;\n"
        "    ld.shared.b32 %r7, [%r8];\n    st.global.b32 [%rd5], %r7;",
    )


def poisoned(words: int, threads: int, variable: str) -> str:
    return f"    mov.u32 %r6, {variable};\n    mov.u32 %r7, {POISON};\n" + in_turns(
        words, threads, "poison", "    add.u32 %r8, %r6, %r5;\n    st.shared.b32 [%r8], %r7;"
    )


# ---- ldmatrix, stmatrix -----------------------------------------------------------------------

IMAGE_WORDS: Final = 1024
OFFSET: Final = """\
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd0, %r0, 4;
    ld.param.b64 %rd1, [offsets];
    add.u64 %rd1, %rd1, %rd0;
    ld.global.b32 %r1, [%rd1];
    mov.u32 %r2, image;
    add.u32 %r1, %r1, %r2;
"""


def row_offsets(rng: np.random.Generator) -> Array:
    """Where each lane's row of 16 bytes lies: anywhere, and no two in one place."""
    rows: Array = 16 * rng.permutation(IMAGE_WORDS // 4)[:32].astype(np.uint32)
    return rows


def matrices() -> Iterator[Case]:
    """`movmatrix`; `ldmatrix` and `stmatrix` of 1, 2 and 4 matrices, with and without `.trans`."""
    yield from movmatrix()
    image = f"    .shared .align 16 .b8 image[{4 * IMAGE_WORDS}];\n"
    for op in ops_named("ldmatrix", "stmatrix"):
        if op.modifiers["space"] != "shared":
            continue
        rng, count = seeded(op.opcode), int(str(op.modifiers["num"])[1:])
        registers = [f"%m{n}" for n in range(count)]
        vector = f"{{{', '.join(registers)}}}"
        body = f"{image}    .reg .b32 %m<4>;\n"
        loading = op.row.name == "ldmatrix"
        moves = "ld" if loading else "st"
        each = "".join(
            f"    st.global.b32 [%rd1+{128 * n}], {r};\n"
            if loading
            else f"    ld.global.b32 {r}, [%rd1+{128 * n}];\n"
            for n, r in enumerate(registers)
        )
        location = f"    ld.param.b64 %rd1, [{'out' if loading else 'a'}];\n"
        location += "    add.u64 %rd1, %rd1, %rd0;\n"
        if loading:
            body += to_shared(IMAGE_WORDS, 32, "words", "image") + "    bar.sync 0;\n" + OFFSET
            body += f"    {op.opcode} {vector}, [%r1];\n" + location + each
            inputs = rng.integers(0, 1 << 32, IMAGE_WORDS, dtype=np.uint32), row_offsets(rng)
            params, shape = ["words", "offsets", "out"], (32 * count,)
        else:
            body += poisoned(IMAGE_WORDS, 32, "image") + "    bar.sync 0;\n" + OFFSET
            body += location + each + f"    {op.opcode} [%r1], {vector};\n    bar.sync 0;\n"
            body += from_shared(IMAGE_WORDS, 32, "image")
            inputs = rng.integers(0, 1 << 32, 32 * count, dtype=np.uint32), row_offsets(rng)
            params, shape = ["a", "offsets", "out"], (IMAGE_WORDS,)
        text = kernel(params, body, target=oldest_target(op), version=op.gate.ptx)
        yield Case(f"{moves} {op.opcode}", text, inputs, shape, "uint32", "b32", "exact", op.opcode)


# ---- wgmma ------------------------------------------------------------------------------------

MATRIX_BYTES: Final = 16384  # of the shared memory that a matrix lies in, more than it needs
MODES: Final = {"none": 0, "128B": 1, "64B": 2, "32B": 3}  # of a matrix descriptor
WARPGROUP: Final = 128


@dataclass(frozen=True)
class Product:
    """A wgmma, done once or more often; `ta` and `tb` say that A and B are M- and N-major."""

    types: tuple[str, str, str]  # of D, A and B
    n: int = 64
    swizzle: str = "128B"
    ta: bool = False
    tb: bool = False
    registers: bool = False  # whether A is in registers
    start: int = 0  # bytes from the matrix's memory to the address in its descriptor
    kind: str = "small"  # of the numbers
    times: int = 1  # the first product starts at zero, each other is added to the sums before

    @property
    def k(self) -> int:
        return {"f16": 16, "bf16": 16, "tf32": 8}.get(self.types[1], 32)

    @property
    def opcode(self) -> str:
        types = ".".join(self.types)
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{types}"

    @property
    def name(self) -> str:
        a = "registers" if self.registers else "M" if self.ta else "K"
        b = "N" if self.tb else "K"
        more = f" x{self.times}" if self.times > 1 else ""
        return f"{self.opcode} {self.swizzle} a:{a} b:{b} start:{self.start} {self.kind}{more}"

    def descriptor(self, rows: int, major: bool) -> int:
        """Leading and stride offsets, which differ, and the swizzle; the address is added."""
        span = SPANS[self.swizzle]
        if self.swizzle == "none":
            # Blocks of 128 bytes: two along K (16 values or 32 bytes), rows / 8 along M or N.
            leading, stride = (128 * (rows // 8) + 128, 128) if major else (128, 384)
        elif major:
            leading, stride = 16 * span, 8 * span
        else:
            leading, stride = 16, 8 * span
        return (leading >> 4) << 16 | (stride >> 4) << 32 | MODES[self.swizzle] << 62


_F32_F16: Final = ("f32", "f16", "f16")


def products() -> Iterator[Product]:
    """Layouts, with small integers; then other numbers."""
    for type, swizzle, tb in itertools.product(("f16", "bf16"), SPANS, (False, True)):
        types = ("f32", type, type)
        yield Product(types, swizzle=swizzle, tb=tb)
        yield Product(types, swizzle=swizzle, ta=True, tb=tb)
        yield Product(types, swizzle=swizzle, tb=tb, registers=True)
    others = (
        *(("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2"), ("f16", "f16", "f16"), ("f16", "e5m2", "e4m3")),
        *(("s32", "s8", "s8"), ("s32", "u8", "s8")),
    )
    for types, swizzle, registers in itertools.product(others, SPANS, (False, True)):
        yield Product(types, swizzle=swizzle, registers=registers)
    yield from (Product(_F32_F16, start=start) for start in (32, 64, 96))
    yield Product(_F32_F16, swizzle="64B", start=32)
    yield from (Product(_F32_F16, n=n) for n in (8, 16, 128))
    floats = [("f32", t, t) for t in ("f16", "bf16", "tf32", "e4m3", "e5m2")]
    floats += [("f16", t, t) for t in ("f16", "e4m3")]
    for kind, types in itertools.product(("random", "cancelling", "wide"), floats):
        yield Product(types, kind=kind)
    yield from (Product(types, kind="random", times=3) for types in floats)


def words_of(type: str, kind: str, words: int, side: str) -> Array:
    """Elements of a type; the same in all cases, so that they share their inputs in the file."""
    rng = seeded(f"{side} {type} {kind}")
    if type in ("s8", "u8"):
        return rng.integers(0, 1 << 32, words, dtype=np.uint32)
    per = 4 // np.dtype(FLOATS[type][0]).itemsize
    return np.ascontiguousarray(values(type, kind, words * per, rng)).view(np.uint32)


def wgmma() -> Iterator[Case]:
    """Products of matrices in shared memory (A also in registers), with every swizzle and major
    order. Of small integers, whose products are exact, for the layouts; and of others.
    """
    for product in products():
        yield product_case(product)


def product_case(p: Product) -> Case:
    d, a, b = p.types
    words = MATRIX_BYTES // 4
    count = operand_layout("d", f"m16n{p.n}k{p.k}", d).registers
    letter = "f" if d == "f32" else "b"
    results = ", ".join(f"%{letter}_{n}" for n in range(count))
    register = {"f32": "f32", "f16": "b32", "s32": "s32"}[d]
    flags = ", 1, 1" if d != "s32" else ""
    if a in ("f16", "bf16"):
        flags += f", {int(p.tb)}" if p.registers else f", {int(p.ta)}, {int(p.tb)}"
    left = "{%a0, %a1, %a2, %a3}" if p.registers else "%rd2"
    body = [
        f"    .shared .align 1024 .b8 left[{MATRIX_BYTES}];\n"
        f"    .shared .align 1024 .b8 right[{MATRIX_BYTES}];\n"
        f"    .reg .{register} %{letter}_<{count}>;\n    .reg .b32 %a<4>;\n",
        "" if p.registers else to_shared(words, WARPGROUP, "a", "left"),
        to_shared(words, WARPGROUP, "b", "right"),
        "    fence.proxy.async.shared::cta;\n    bar.sync 0;\n",
        "    mov.u32 %r0, %tid.x;\n    mul.wide.u32 %rd0, %r0, 4;\n",
        *(described("left", "%rd2", p.descriptor(64, p.ta), p.start) if not p.registers else ()),
        *described("right", "%rd3", p.descriptor(p.n, p.tb), p.start),
    ]
    if p.registers:
        body.append("    ld.param.b64 %rd1, [a];\n    add.u64 %rd1, %rd1, %rd0;\n")
        body += [f"    ld.global.b32 %a{n}, [%rd1+{512 * n}];\n" for n in range(4)]
    body += [f"    mov.b32 %{letter}_{n}, 0{'f00000000' if d == 'f32' else ''};\n" for n in range(count)]
    each = [f"    {p.opcode} {{{results}}}, {left}, %rd3, %p{int(n > 0)}{flags};\n" for n in range(p.times)]
    body.append(
        "    setp.ne.u32 %p0, 0, 0;\n    setp.eq.u32 %p1, 0, 0;\n    wgmma.fence.sync.aligned;\n"
        + "".join(each)
        + "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n"
        "    ld.param.b64 %rd1, [out];\n    add.u64 %rd1, %rd1, %rd0;\n"
    )
    body += [f"    st.global.b32 [%rd1+{512 * n}], %{letter}_{n};\n" for n in range(count)]
    inputs = (
        words_of(a, p.kind, 4 * WARPGROUP if p.registers else words, "left"),
        words_of(b, p.kind, words, "right"),
    )
    # Sums of small integers are exact in f32.
    (op,) = (o for o in table.recognise(p.opcode) if ("a:b32" in o.row.syntax) == p.registers)
    exact = d == "s32" or (d == "f32" and p.kind == "small")
    text = kernel(["a", "b", "out"], "".join(body), target="sm_90a", version=op.gate.ptx)
    return Case(
        p.name,
        text,
        inputs,
        (count, WARPGROUP),
        "uint32",
        d,
        "exact" if exact else "sum",
        p.opcode,
        block=WARPGROUP,
        signs=() if exact else (SIGNS[a], SIGNS[b]),
    )


def described(variable: str, register: str, settings: int, start: int) -> tuple[str, ...]:
    """A matrix descriptor in a register."""
    return (
        f"    mov.u32 %r1, {variable};\n    add.u32 %r1, %r1, {start};\n"
        f"    shr.u32 %r1, %r1, 4;\n    cvt.u64.u32 {register}, %r1;\n"
        f"    or.b64 {register}, {register}, {settings:#018x};\n",
    )


# ---- tensor copies ----------------------------------------------------------------------------

TILE_BYTES: Final = 8192


@dataclass(frozen=True)
class Copy:
    """A box of a tensor to byte `at` of shared memory."""

    name: str
    tensor: Array
    corner: tuple[int, ...]
    settings: dict[str, Any]
    at: int = 0


def counting(*shape: int) -> Array:
    """Numbered 32-bit words, no two alike."""
    numbers: Array = 0x40000000 + np.arange(int(np.prod(shape)), dtype=np.uint32)
    return numbers.reshape(shape)


def copies() -> Iterator[Copy]:
    yield from swizzled_copies()
    yield from copies_of_ranks()
    yield from copies_of_types()


def swizzled_copies() -> Iterator[Copy]:
    """Boxes as wide as the swizzle's rows and narrower, at several places of shared memory and
    of the tensor.
    """
    plane = counting(40, 96)
    for swizzle, span in SPANS.items():
        whole = {"box": (span // 4, 16), "swizzle": swizzle}
        for width in sorted({16, max(span // 2, 16), span}):
            settings = {"box": (width // 4, 16), "swizzle": swizzle}
            yield Copy(f"{swizzle}, rows of {width} bytes", plane, (8, 3), settings)
        for at in (128, 384, 512, 1152):
            yield Copy(f"{swizzle} at {at}", plane, (0, 0), whole, at)
        for corner in ((-4, -3), (92, 30), (200, 0), (0, -100)):  # a multiple of 16 bytes comes first
            yield Copy(f"{swizzle} corner {corner}", plane, corner, whole)


def copies_of_ranks() -> Iterator[Copy]:
    """Tensors of one to five dimensions, and every so many elements."""
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {
        (4096,): (16,),
        (6, 8, 32): (16, 4, 3),
        (3, 4, 5, 16): (8, 3, 2, 2),
        (2, 3, 4, 5, 16): (8, 2, 2, 3, 2),
    }
    for (shape, box), swizzle in itertools.product(shapes.items(), ("none", "64B")):
        corner = (4, 1, 1, -1, 1)[: len(shape)]
        settings = {"box": box, "swizzle": swizzle}
        yield Copy(f"{swizzle} rank {len(shape)}", counting(*shape), corner, settings)
    settings = {"box": (16, 9, 4), "element_strides": (1, 2, 3)}
    yield Copy("every second and third", counting(9, 12, 32), (4, 1, 1), settings)


def copies_of_types() -> Iterator[Copy]:
    """What lies outside the tensor, and what happens to special numbers."""
    plane = counting(40, 96)
    halves = (0x4000 + np.arange(64 * 64, dtype=np.uint16)).reshape(64, 64)
    tensors = {"f32": plane, "tf32": plane, "f16": halves, "bf16": halves}
    for (dtype, tensor), fill in itertools.product(tensors.items(), ("zeros", "nan")):
        settings = {"box": (64 // tensor.itemsize, 8), "dtype": dtype, "oob_fill": fill}
        corner = (-16 // tensor.itemsize, -2)
        yield Copy(f"{dtype} filled with {fill}", tensor, corner, settings)
    small = np.arange(64 * 256, dtype=np.uint32).astype(np.uint8).reshape(64, 256)
    yield Copy("bytes", small, (16, 5), {"box": (128, 8), "swizzle": "128B"})
    for dtype in ("tf32", "tf32.ftz", "f32", "f32.ftz"):
        settings = {"box": (64, 16), "dtype": dtype}
        yield Copy(f"{dtype} of special numbers", awkward(), (0, 0), settings)


def awkward() -> Array:
    """Bits of floats: special ones, ties and neighbours of ties of tf32, and random ones."""
    rng = seeded("awkward")
    special = [
        *(0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F7FF000, 0x7F7FEFFF, 0x7F800000, 0x7F800001),
        *(0x7FC00000, 0x7FFFFFFF, 0x00001000, 0x00000FFF, 0x00001001),
    ]
    tops = rng.integers(0, 1 << 19, 256, dtype=np.uint32) << np.uint32(13)
    lows = rng.choice(np.array([0x0FFF, 0x1000, 0x1001, 0x1FFF, 0], np.uint32), 256)
    built = np.concatenate(
        [
            np.array(special, np.uint32),
            np.array(special, np.uint32) | np.uint32(1 << 31),
            tops | lows,
            rng.integers(0, 1 << 32, 1024 - 256 - 2 * len(special), dtype=np.uint32),
        ]
    )
    return built.reshape(16, 64)


def tensor_copies() -> Iterator[Case]:
    """`cp.async.bulk.tensor` to shared memory: the image of a box."""
    for copy in copies():
        dims = copy.tensor.ndim
        box_bytes = TensorMap(copy.tensor, **copy.settings).box_bytes
        coordinates = ", ".join(f"%c{n}" for n in range(dims))
        opcode = f"cp.async.bulk.tensor.{dims}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        body = [
            f"    .shared .align 1024 .b8 tile[{TILE_BYTES}];\n    .shared .align 8 .b64 ready;\n",
            f"    .reg .b32 %c<{dims}>;\n",
            poisoned(TILE_BYTES // 4, 32, "tile"),
            "    mov.u32 %r0, %tid.x;\n    mov.u32 %r1, ready;\n    mov.u32 %r2, tile;\n"
            f"    add.u32 %r2, %r2, {copy.at};\n    setp.ne.u32 %p0, %r0, 0;\n"
            "    @%p0 bra $set;\n    mbarrier.init.shared::cta.b64 [%r1], 1;\n"
            "    fence.mbarrier_init.release.cluster;\n$set:\n"
            "    fence.proxy.async.shared::cta;\n    bar.sync 0;\n    @%p0 bra $wait;\n",
            *(f"    mov.b32 %c{n}, {c};\n" for n, c in enumerate(copy.corner)),
            "    mov.b64 %rd1, source;\n    cvta.param.u64 %rd1, %rd1;\n",
            f"    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {box_bytes};\n",
            f"    {opcode} [%r2], [%rd1, {{{coordinates}}}], [%r1];\n$wait:\n"
            "    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n    @!%p1 bra $wait;\n",
            from_shared(TILE_BYTES // 4, 32, "tile"),
        ]
        text = kernel(["map source", "out"], "".join(body), target="sm_90", version=(8, 0))
        yield Case(
            copy.name,
            text,
            (copy.tensor,),
            (TILE_BYTES // 4,),
            "uint32",
            "b32",
            "exact",
            opcode,
            maps=(copy.settings,),
        )
