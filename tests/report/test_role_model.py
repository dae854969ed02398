"""The model of roles of warps, on instructions whose clocks can be counted by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ptxgen.isa.mma_descriptor import Product
from ptxgen.report.issue_units import Unit, clocks_of, copied_to_tensor_memory, rows_read, unit_of
from ptxgen.report.role_model import (
    ISSUE,
    WEIGHTS_ALONE,
    Role,
    RoleClocks,
    announced,
    role_clocks,
    role_loops,
)
from ptxgen.runtime.sass import Control, SassInstr
from ptxgen.target import target

FREE = Control(1, (), None, None)
F16 = Product("f16", 1, 128, 128, 16, "f16", "f16", "f32")
PAIR = replace(F16, group=2, m=256, n=256)
TF32 = Product("tf32", 1, 128, 128, 8, "tf32", "tf32", "f32")
FP8 = Product("f8f6f4", 1, 128, 128, 32, "e4m3", "e5m2", "f32")
MXF8 = Product("mxf8f6f4", 1, 128, 128, 32, "e4m3", "e4m3", "f32", scale="ue8m0")
NVF4 = Product("mxf4nvf4", 1, 128, 128, 64, "e2m1", "e2m1", "f32", scale="ue4m3")
NAMES = {
    "f16": "UTCHMMA",
    "tf32": "UTCHMMA",
    "f8f6f4": "UTCQMMA",
    "mxf8f6f4": "UTCQMMA",
    "mxf4nvf4": "UTCOMMA.4X",
}


def product(of: Product = F16, a: str = "gdesc[UR8]", use: str = "UPT", more: str = "") -> SassInstr:
    """The instruction of a product, as the disassembler prints it."""
    scales = "tmem[UR16], " if of.scale else ""
    opcode = NAMES[of.kind] + more + (".2CTA" if of.group == 2 else "")
    operands = f"{a}, gdesc[UR6], tmem[UR12], tmem[UR4], idesc[UR5], {scales}{use}"
    return SassInstr(opcode, operands=operands, control=FREE, literal=of.bits)


def instr(text: str) -> SassInstr:
    opcode, _, operands = text.partition(" ")
    return SassInstr(opcode, operands=operands, control=FREE)


@pytest.mark.parametrize(
    ("of", "clocks", "reads"),
    [
        (product(), 64, (4096, 4096)),
        (product(a="tmem[UR8]"), 64, (0, 4096)),
        (product(replace(F16, n=64)), 32, (4096, 2048)),
        (product(replace(F16, m=64)), 64, (2048, 4096)),  # half of the lanes
        (product(replace(F16, m=32, n=256), more=".WS"), 32, (1024, 8192)),
        (product(PAIR), 128, (4096, 4096)),
        (product(replace(PAIR, m=128)), 64, (2048, 4096)),
        (product(replace(F16, k=32, sparse=True)), 64, (4096, 8192)),
        (product(TF32), 64, (4096, 4096)),
        (product(FP8), 64, (4096, 4096)),
        (product(MXF8), 64, (4096, 4096)),
        (product(NVF4), 64, (4096, 4096)),
        (product(replace(NVF4, k=96)), 64, (6144, 6144)),
    ],
)
def test_a_product_takes_clocks_and_reads_shared_memory_by_its_shape(
    of: SassInstr, clocks: float, reads: tuple[int, int]
) -> None:
    assert (unit_of(of), clocks_of(of, target("sm_100a")), rows_read(of)) == (Unit.TENSOR, clocks, reads)


@pytest.mark.parametrize(
    ("text", "unit", "b200", "b300"),
    [
        ("MUFU.EX2 R2, R3", Unit.SPECIAL, 8, 4),
        ("MUFU.RCP R2, R3", Unit.SPECIAL, 8, 8),
        ("FFMA2 R2, R4.F32x2.HI_LO, R6.F32, R8.F32", Unit.F32, 2, 2),
        ("FADD2 R2, R4, R6", Unit.F32, 2, 2),
        ("FMUL2 R2, R4, R6", Unit.F32, 2, 2),
        ("FFMA R2, R4, R6, R8", Unit.F32, 1, 1),
        ("FMNMX3 R2, R4, R6, R8, !PT", Unit.INTEGER, 2, 2),
        ("LDTM.x32 R4, tmem[UR4]", Unit.TENSOR_MEMORY, 32, 32),
        ("LDTM R4, tmem[UR4]", Unit.TENSOR_MEMORY, 1, 1),
        ("LDTM.16dp32bit_t0_t15.x32 R4, tmem[UR4]", Unit.TENSOR_MEMORY, 32, 32),
        ("LDTM.16dp256bit.x4 R4, tmem[UR4]", Unit.TENSOR_MEMORY, 16, 16),
        ("STTM.x16 tmem[UR4], R4", Unit.TENSOR_MEMORY, 16, 16),
        ("UTCBAR [UR4], URZ", Unit.NONE, 0, 0),
        ("UTMALDG.2D [UR4], [UR10]", Unit.NONE, 0, 0),
    ],
)
def test_units_on_blackwell(text: str, unit: Unit, b200: float, b300: float) -> None:
    of = instr(text)
    assert unit_of(of) is unit
    assert [clocks_of(of, target(on)) for on in ("sm_100a", "sm_103a")] == [b200, b300]


def test_a_copy_to_tensor_memory_reads_rows() -> None:
    assert copied_to_tensor_memory(instr("UTCCP.T.S.4x32dp128bit tmem[UR5+0x80], gdesc[UR8]")) == 512
    assert copied_to_tensor_memory(instr("UTCCP.T.S.128dp256bit tmem[UR5+0x80], gdesc[UR8]")) == 4096
    assert copied_to_tensor_memory(product()) == 0


def test_a_shape_that_is_computed_and_a_target_without_rates_are_refused() -> None:
    unknown = replace(product(), literal=None)
    why = (
        "UTCHMMA gdesc[UR8], gdesc[UR6], tmem[UR12], tmem[UR4], idesc[UR5], UPT: expected a literal "
        "instruction descriptor, which has the shape of the product, got a register that is computed; call "
        "with_literals first, or emit a literal"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        clocks_of(unknown, target("sm_100a"))
    why = "the rates of tcgen05 are known for sm_100 and sm_103, not for sm_110a"
    with pytest.raises(ValueError, match=f"^{why}$"):
        clocks_of(product(), target("sm_110a"))


# -------------------------------------------------------------------------------- roles

DESCRIPTOR = instr("UMOV UR5, 0x8200490")
COMMIT = instr("UTCBAR [UR6], URZ")
ANNOUNCE = [instr("MOV R3, 0x4000"), instr("SYNCS.ARRIVE.TRANS64 RZ, [UR4], R3")]
WEIGH = [
    instr("LDTM.x64 R4, tmem[UR4]"),
    *[instr("FFMA2 R4, R4, R6, R8")] * 32,
    *[instr("MUFU.EX2 R4, R4")] * 64,
    *[instr("BAR.SYNC.DEFER_BLOCKING R40, 0x40")] * 2,
    instr("BAR.ARV R41, 0x40"),
    instr("STTM.x32 tmem[UR4], R4"),
]
RARE = [instr("LDTM.x16 R4, tmem[UR4]"), *[instr("FMUL2 R4, R4, R6")] * 8, instr("STTM.x16 tmem[UR4], R4")]


def kernel(*roles: list[SassInstr]) -> list[SassInstr]:
    """A kernel with a loop for each role; a `BRA` without a target in a loop leaves out the rest of it, but
    for the last instruction.
    """
    result: list[SassInstr] = []
    for role in roles:
        begin = len(result)
        for one in role:
            skips = one.name == "BRA"
            result.append(replace(one, jumps_to=begin + len(role) - 1) if skips else one)
        result += [replace(instr("BRA"), jumps_to=begin), replace(instr("EXIT"), falls_through=False)]
    return result


def attention(products: int = 2, copies: str = "UTMALDG.4D [UR24], [UR22]") -> list[SassInstr]:
    """Scores of two row tiles with A in shared memory, and as many products with A in tensor memory."""
    scores, sums = product(use="!UPT"), product(a="tmem[UR8]", use="UP0")
    return kernel(
        [DESCRIPTOR, *[scores, sums] * products, COMMIT],
        [*ANNOUNCE, instr(copies)],
        WEIGH,
        [instr("LDS R53, [R49]"), instr("BRA"), *RARE, instr("NOP")],
    )


def test_roles_are_found_with_their_warps() -> None:
    roles = role_loops(attention())
    assert {role: (of.instructions, of.warps) for role, of in roles.items()} == {
        Role.PRODUCTS: (7, 1),
        Role.COPIES: (4, 1),
        Role.WEIGHTS: (102, 8),  # two row tiles of 128 rows, a thread for each
        Role.CORRECTION: (4, 4),  # without the rare step
    }
    assert role_loops(attention(4))[Role.WEIGHTS].warps == 16
    assert announced(roles[Role.COPIES].loop.path) == 0x4000
    assert announced([product(), replace(ANNOUNCE[1], literal=8)]) == 8


def test_a_warpgroup_copies_where_tiles_are_split_and_adds_sums_where_none_are_rescaled() -> None:
    products = [DESCRIPTOR, product(use="!UPT"), product(a="tmem[UR8]", use="!UPT"), COMMIT]
    adds = [instr("LDTM.x32 R4, tmem[UR4]"), *[instr("FFMA R4, R4, R6, R8")] * 32]
    splits = [*ANNOUNCE, instr("UTMALDG.4D [UR24], [UR22]"), instr("F2FP.F16.F32.PACK_AB R4, R5, R6")]
    roles = role_loops(kernel(products, splits, WEIGH, adds))
    assert {role: (of.instructions, of.warps) for role, of in roles.items()} == {
        Role.PRODUCTS: (5, 1),
        Role.COPIES: (5, 4),
        Role.WEIGHTS: (102, 4),  # sums of both products begin anew, but one has rows of scores
        Role.CORRECTION: (34, 4),
    }


def test_units_are_busy_for_the_sum_over_roles() -> None:
    said = role_clocks(role_loops(attention()), target("sm_100a"))
    operands = 2 * (4096 + 4096) + 2 * 4096
    assert {k: v for k, v in said.clocks.items() if k != WEIGHTS_ALONE} == {
        "tensor cores": 4 * 64,
        "shared memory": (operands + 0x4000) / 128 + 4,
        "special functions": 2 * 64 * 8,
        "f32": 2 * 32 * 2,
        "integers": 2,  # the warp that copies moves a literal
        "tensor memory": 2 * (64 + 32),
        ISSUE: 2 * 102 + 4 + 7,
    }
    # Exponentials of 64 columns take each of two warps 512 clocks, which hide the rest of the other warp.
    assert said.clocks[WEIGHTS_ALONE] == pytest.approx(2 * 64 * 8, rel=0.1)
    assert said.bound == WEIGHTS_ALONE
    assert said.tensor == pytest.approx(256 / said.clocks[WEIGHTS_ALONE])


def test_a_b300_computes_exponentials_in_half_of_the_clocks() -> None:
    said = role_clocks(role_loops(attention()), target("sm_103a"))
    assert said.clocks["special functions"] == 2 * 64 * 4


def test_the_bytes_of_copies_may_be_told_and_a_pair_shares_what_it_announces() -> None:
    shared = [
        role_clocks(role_loops(attention(copies=copies)), target("sm_100a"), copied).clocks["shared memory"]
        for copies, copied in (("UTMALDG.4D", None), ("UTMALDG.4D.2CTA", None), ("UTMALDG.4D", 0))
    ]
    assert [shared[0] - of for of in shared] == [0, 0x2000 / 128, 0x4000 / 128]


def test_copies_whose_bytes_are_computed_are_refused() -> None:
    instrs = [replace(i, operands="R3, R4") if i.operands == "R3, 0x4000" else i for i in attention()]
    roles = role_loops(instrs)
    assert role_clocks(roles, target("sm_100a"), 0).clocks["shared memory"] == 24576 / 128 + 4
    why = (
        "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R3: expected a literal number of bytes that copies bring, got a "
        "register that is computed; pass the bytes of an iteration as `copied`"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        role_clocks(roles, target("sm_100a"))


def test_the_shortest_loop_of_a_role_counts_and_waterfalls_do_not() -> None:
    masked = [*WEIGH, *[instr("SEL R4, R4, R5, P0")] * 32]
    waterfall = [DESCRIPTOR, product()]  # one product for the lanes with one descriptor
    scores = [DESCRIPTOR, *[product(use="!UPT")] * 2, COMMIT]
    results = [instr("LDTM.x32 R4, tmem[UR4]"), instr("STG.E.128 desc[UR8][R2.64], R4")]
    roles = role_loops(kernel(waterfall, results, [*scores, instr("NOP")], scores, masked, WEIGH))
    assert [roles[of].instructions for of in (Role.PRODUCTS, Role.WEIGHTS)] == [5, 102]
    assert Role.COPIES not in roles
    assert Role.CORRECTION not in roles


def test_the_bound_is_the_busiest_unit() -> None:
    of = RoleClocks({"tensor cores": 100.0, "shared memory": 80.0, ISSUE: 125.0})
    assert (of.bound, of.of_iteration, of.tensor) == (ISSUE, 125.0, 0.8)
    assert RoleClocks({"tensor cores": 100.0, "shared memory": 100.0}).bound == "tensor cores"


def test_a_kernel_without_a_loop_of_products_is_refused() -> None:
    why = (
        "the model of roles expected a loop that starts and commits products of tcgen05 (UTCHMMA or the "
        "like, and UTCBAR), got 1 other loops, and UTCHMMA in the kernel; give it a kernel with such a loop"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        role_loops([*kernel(WEIGH), product(), COMMIT])
