"""The model of how warps issue a loop, on loops whose clocks can be counted by hand."""

from __future__ import annotations

import pytest

from ptxgen.report import issue_model
from ptxgen.report.issue_model import Shared, Step, Wait, Warp, modelled
from ptxgen.report.issue_units import Unit, clocks_of, copied_bytes, rows_read, unit_of, writes_register
from ptxgen.runtime.sass import Control, Loop, SassInstr
from ptxgen.target import target

FREE = Control(1, (), None, None)


def approx(wanted: float) -> object:
    """A share as the model sees it, in a window of some turns that begins within one."""
    return pytest.approx(wanted, rel=0.03)


def hmma(n: int = 0, control: Control = FREE) -> SassInstr:
    """A product whose sums are registers of its own."""
    sums = f"R{100 + 4 * n}"
    return SassInstr("HMMA.16816.F32", operands=f"{sums}, R0, R4, {sums}", control=control)


def add(control: Control = FREE) -> SassInstr:
    return SassInstr("FADD", operands="R9, R10, R11", control=control)


def share(
    *path: SassInstr, on: str = "sm_80", threads: int = 128, ctas: int = 1, copied: float | None = 0
) -> float:
    return modelled(Loop(path, len(path)), target(on), threads, ctas, copied).tensor


@pytest.mark.parametrize(
    ("instr", "unit", "clocks"),
    [
        (SassInstr("HMMA.16816.F32"), Unit.TENSOR, 8),
        (SassInstr("HMMA.1688.F32.TF32"), Unit.TENSOR, 8),
        (SassInstr("FFMA.FTZ"), Unit.F32, 2),
        (SassInstr("IADD3"), Unit.INTEGER, 2),
        (SassInstr("MUFU.EX2"), Unit.SPECIAL, 8),
        (SassInstr("LDSM.16.M88.4"), Unit.MEMORY, 16),
        (SassInstr("LDSM.16.M88"), Unit.MEMORY, 4),
        (SassInstr("LDS.64"), Unit.MEMORY, 8),
        (SassInstr("LDGSTS.E.BYPASS.128"), Unit.MEMORY, 16),
        (SassInstr("SHFL.BFLY"), Unit.MEMORY, 4),
        (SassInstr("UIADD3"), Unit.NONE, 0),
        (SassInstr("BAR.SYNC"), Unit.NONE, 0),
    ],
)
def test_units_and_their_clocks_on_sm_80(instr: SassInstr, unit: Unit, clocks: float) -> None:
    assert (unit_of(instr), clocks_of(instr, target("sm_80"))) == (unit, clocks)


@pytest.mark.parametrize(
    ("instr", "unit", "clocks"),
    [
        (SassInstr("HMMA.1688.F32"), Unit.TENSOR, 8),
        (SassInstr("LDSM.16.M88.4"), Unit.MEMORY, 32),
        (SassInstr("F2F.F16.F32"), Unit.SPECIAL, 8),
    ],
)
def test_units_and_their_clocks_on_sm_75(instr: SassInstr, unit: Unit, clocks: float) -> None:
    assert (unit_of(instr), clocks_of(instr, target("sm_75"))) == (unit, clocks)


def test_products_of_tcgen05_are_refused_by_name() -> None:
    why = (
        "the issue model knows no products of tcgen05, which one thread starts for all warps: the loop has "
        "UTCHMMA.2CTA; read the kernel by ptxgen.report.role_model"
    )
    with pytest.raises(ValueError, match=f"^{why}$"):
        share(add(), SassInstr("UTCHMMA.2CTA", literal=0x10200490, control=FREE), on="sm_100a")


def test_a_load_from_tensor_memory_is_waited_for() -> None:
    load = SassInstr("LDTM.x32", operands="R4, tmem[UR4]", control=Control(1, (), 1, None))
    path = load, add(Control(1, (1,), None, None)), *[add()] * 30
    clocks = modelled(Loop(path, 32), target("sm_100a"), 128, 1, 0).clocks_of_iteration
    assert clocks == approx(32 + 30 + 31)


def test_tensor_cores_of_later_targets() -> None:
    one = SassInstr("HMMA.16816.F32")
    assert clocks_of(one, target("sm_90")) == pytest.approx(4 / 0.63)
    assert clocks_of(one, target("sm_120")) == 32
    assert clocks_of(one, target("sm_100")) == clocks_of(one, target("sm_90"))


def test_independent_products_keep_tensor_cores_busy() -> None:
    assert share(*[hmma(n) for n in range(4)]) == approx(1)


def test_a_product_waits_for_the_sum_of_the_one_before() -> None:
    assert share(hmma(), hmma()) == approx(8 / 25)


def test_warps_of_other_ctas_issue_while_one_waits() -> None:
    assert share(hmma(), hmma(), ctas=2) == approx(16 / 25)
    assert share(hmma(), hmma(), ctas=4) == approx(1)


def test_what_a_warp_waits_for_is_told_apart() -> None:
    read = SassInstr("LDSM.16.M88.4", operands="R0, [R8]", control=Control(2, (), 2, None))
    use = add(Control(14, (2,), None, None))
    waits = modelled(Loop((read, use, hmma(), hmma()), 1), target("sm_80"), 128, 1).waited
    # The read takes 16 clocks and 30 more, of which two are its stall count; then 14 and two of the others.
    clocks = 2 + 44 + 14 + 1 + 24 + 1
    assert waits[Wait.ISSUE] == approx(4 / clocks)
    assert waits[Wait.STALL] == approx(14 / clocks)
    assert waits[Wait.MEMORY] == approx(44 / clocks)
    assert waits[Wait.TENSOR] == approx(24 / clocks)
    assert waits[Wait.NOT_SELECTED] == pytest.approx(0, abs=0.02)


def test_a_warp_stalls_for_the_clocks_that_the_assembler_wrote() -> None:
    assert share(*[hmma(n) for n in range(4)], add(Control(12, (), None, None))) == approx(32 / 36)


def test_a_warp_waits_for_the_scoreboard_of_a_read() -> None:
    read = SassInstr("LDSM.16.M88.4", operands="R0, [R8]", control=Control(1, (), 2, None))
    waits = [hmma(n, Control(1, (2,) if n == 0 else (), None, None)) for n in range(16)]
    # The read takes 16 clocks and 30 until its result; products begin 8 clocks apart, and the next read
    # a clock after the last.
    alone = share(read, *waits)
    assert alone == approx(128 / (46 + 120 + 1))


def test_a_warp_waits_for_its_copies() -> None:
    copy = SassInstr("LDGSTS.E.BYPASS.128", operands="[R8], [R2.64]", control=FREE)
    group = SassInstr("LDGDEPBAR", control=FREE)

    def awaited(pending: str) -> float:
        wait = SassInstr("DEPBAR.LE", operands=f"SB0, {pending}", control=FREE)
        return share(copy, group, wait, *[hmma(n) for n in range(4)])

    assert awaited("0x0") < 32 / 260
    assert awaited("0x1") > 1.7 * awaited("0x0")


def test_at_a_barrier_warps_wait_for_each_other() -> None:
    barrier = SassInstr("BAR.SYNC.DEFER_BLOCKING", operands="0x0", control=FREE)
    use = SassInstr("FADD", operands="R9, R108, R11", control=FREE)  # of the sum of the last product
    turn = *[hmma(n) for n in range(3)], use
    assert share(*turn, threads=256) > 0.9  # one of the two warps has products while the other waits
    assert share(*turn, barrier, threads=256) < 0.85


def hgmma(operands: str = "gsb0") -> SassInstr:
    """A product of a warpgroup, 64 clocks, by default the last of its group."""
    return SassInstr("HGMMA.64x128x16.F32.BF16", operands=f"R24, gdesc[UR8], R24, {operands}", control=FREE)


def awaited(pending: int = 0) -> SassInstr:
    return SassInstr("WARPGROUP.DEPBAR.LE", operands=f"gsb0, {pending:#x}", control=FREE)


EXP2 = SassInstr("MUFU.EX2", operands="R9, R10", control=FREE)
TAKEN = SassInstr("BAR.SYNC.DEFER_BLOCKING", operands="R3, 0x100", control=FREE)
GIVEN = SassInstr("BAR.ARV", operands="R4, 0x100", control=FREE)


def test_products_of_warpgroups_have_the_dense_rate() -> None:
    assert (unit_of(hgmma()), clocks_of(hgmma(), target("sm_90a"))) == (Unit.TENSOR, 64)


def test_groups_of_products_are_waited_for() -> None:
    assert share(hgmma(), awaited(), on="sm_90a") == approx(64 / (64 + 49 + 1))
    assert share(hgmma(), hgmma(), awaited(1), on="sm_90a") > 0.97  # one group is always under way
    assert share(hgmma(""), hgmma(), awaited(1), on="sm_90a") > 0.97
    assert share(hgmma(), awaited(), on="sm_90a", threads=256) > 0.97


def test_a_write_of_a_register_delays_a_product_and_is_delayed() -> None:
    add_ten = [SassInstr("FADD", operands=f"R{n}, R10, R11", control=FREE) for n in range(10)]
    path = hgmma(), *add_ten, awaited()
    assert share(*path, on="sm_90a") == approx(64 / (64 + 10 + 49 + 1))
    compares = [SassInstr("FSETP.GT.AND", operands="P1, PT, R10, R11, PT", control=FREE)] * 10
    assert share(hgmma(), *compares, awaited(), on="sm_90a") == approx(64 / (64 + 49 + 1))
    assert share(hgmma(), awaited(), *add_ten, on="sm_90a") == approx(64 / (64 + 49 + 1 + 10))


def test_a_stream_of_writes_lengthens_products_as_measured_on_an_h800() -> None:
    every_other = Control(2, (), None, None)
    writes = [SassInstr("FADD", operands="R9, R10, R11", control=every_other)] * 40
    for columns, measured in {8: 1.875, 16: 3.891, 64: 15.687}.items():
        product = SassInstr(
            f"HGMMA.64x{columns}x16.F32", operands="R24, R0, gdesc[UR8], R24, gsb0", control=FREE
        )
        paths = (product, *writes), (product, *[SassInstr("NOP", control=every_other)] * 40)
        with_writes, without = (
            modelled(Loop(path, len(path)), target("sm_90a"), 128, 1, 0).clocks_of_iteration for path in paths
        )
        assert with_writes - without == pytest.approx(measured, rel=0.15, abs=1)


def test_a_product_reads_what_its_operands_say() -> None:
    both, only_b = hgmma(), SassInstr("HGMMA.64x128x16.F32", operands="R24, R8, gdesc[UR8].tnspB, R24")
    fp8 = SassInstr("QGMMA.64x128x32.F32.E4M3.E4M3", operands="R24, gdesc[UR8], R24")
    assert rows_read(both) == rows_read(fp8) == (2 * 64 * 16, 2 * 128 * 16)
    assert rows_read(only_b) == (0, 2 * 128 * 16)
    assert rows_read(hmma()) == (0, 0)
    assert copied_bytes((both, only_b, add())) == 2 * 2 * 128 * 16
    assert clocks_of(fp8, target("sm_90a")) == clocks_of(both, target("sm_90a")) == 64


def chain(columns: int, a: str = "gdesc[UR8]") -> list[SassInstr]:
    """Products of one warpgroup into the same sums, A in shared memory."""
    operands = f"R24, {a}, R24" if "gdesc" in a else f"R24, {a}, gdesc[UR8], R24"
    return [SassInstr(f"HGMMA.64x{columns}x16.F32", operands=operands, control=FREE)] * 64


@pytest.mark.parametrize(("columns", "clocks"), [(8, 18), (16, 20), (32, 24), (64, 32), (128, 64)])
def test_chains_of_products_take_the_clocks_that_an_h800_took(columns: int, clocks: float) -> None:
    assert share(*chain(columns), on="sm_90a") == approx(columns / 2 / clocks)


def test_a_product_with_a_in_shared_memory_is_slower_where_memory_binds() -> None:
    assert share(*chain(32), on="sm_90a") < 0.7 < 0.97 < share(*chain(32, "R8"), on="sm_90a")


def test_copies_pass_through_shared_memory_too() -> None:
    path = chain(64)
    assert share(*path, on="sm_90a") == approx(1)
    # Half as many bytes again as the products read.
    assert share(*path, on="sm_90a", copied=64 * 2048) == approx(1 / 1.5)
    assert share(*path, on="sm_90a", copied=None) == approx(1 / 1.5)  # by default all of B, once
    assert share(*path, on="sm_90a", copied=None, threads=256) == approx(1 / 1.25)  # for two warpgroups


def test_what_warps_read_of_shared_memory_goes_before_products() -> None:
    reads = [SassInstr("LDS.128", operands="R0, [R8]", control=FREE)] * 8
    free, bound = (chain(128), chain(64))
    assert share(*free, *reads, on="sm_90a") == approx(1)
    waits = share(*bound, *reads, on="sm_90a")
    assert waits == approx(2048 / (2048 + 8 * 16))
    assert waits < 0.97


def test_writes_cost_nothing_while_products_wait_for_shared_memory() -> None:
    adds = [SassInstr("FADD", operands="R9, R10, R11", control=FREE)] * 100
    assert share(*chain(16), *adds, on="sm_90a") == approx(8 / 20)
    assert share(*chain(16, "R8"), *adds, on="sm_90a") < 0.9


def test_seven_products_are_queued() -> None:
    short = [SassInstr("NOP", control=Control(15, (), None, None))] * 20
    assert share(*chain(128)[:6], *short, on="sm_90a") == approx(1)
    assert share(*chain(128)[:2], *short, on="sm_90a") < 0.5
    first = modelled(Loop((*chain(128), *short), 1), target("sm_90a"), 128, 1, 0).tensor
    assert first == approx(1)


def test_what_is_computed_beside_a_product_takes_no_time_of_its_unit() -> None:
    path = (hgmma(), *[EXP2] * 10, awaited())
    busy = modelled(Loop(path, len(path)), target("sm_90a"), 128, 1, 0)
    clocks = 64 + 10 + 49 + 1  # ten registers are written
    assert busy.tensor == approx(64 / clocks)
    assert busy.shares[Unit.SPECIAL] == approx(80 / clocks)


def test_exponentials_bind_a_loop_that_has_as_many_clocks_of_them() -> None:
    """Two warpgroups in turn: 64 clocks of products each, and exponentials for as many, or for half."""
    exponentials = [EXP2] * 8
    loop = TAKEN, hgmma(), GIVEN, awaited()
    many = share(*loop, *exponentials * 4, on="sm_90a", threads=256)
    few = share(*loop, on="sm_90a", threads=256)
    assert many < 0.3 < few


@pytest.mark.parametrize(
    ("opcode", "operands", "writes"),
    [
        ("FADD", "R9, R10, R11", True),
        ("SHFL.BFLY", "PT, R12, R17, 0x1, 0x1f", True),
        ("FSETP.GT.AND", "P3, PT, R12, 8, PT", False),
        ("STS", "[UR14+0x30c00], R10", False),
        ("BAR.SYNC.DEFER_BLOCKING", "R10, 0x100", False),
        ("UIADD3", "UR8, UR8, 0x6400, URZ", False),
        ("HGMMA.64x128x16.F32", "R24, gdesc[UR8], R24", False),
    ],
)
def test_which_instructions_write_registers(opcode: str, operands: str, writes: bool) -> None:
    assert writes_register(SassInstr(opcode, operands=operands)) is writes


def test_warpgroups_take_turns() -> None:
    alone = share(TAKEN, hgmma(), awaited(), GIVEN, on="sm_90a", threads=256)
    assert alone == approx(64 / (64 + 49 + 2))
    assert share(TAKEN, hgmma(), GIVEN, awaited(), on="sm_90a", threads=256) > 0.97


def test_a_barrier_of_one_warpgroup_is_waited_for_by_no_other() -> None:
    own = SassInstr("BAR.SYNC.DEFER_BLOCKING", operands="R3, 0x80", control=FREE)
    every = SassInstr("BAR.SYNC.DEFER_BLOCKING", operands="0x0", control=FREE)
    path = hgmma(), awaited(), *[EXP2] * 8
    assert share(*path, own, on="sm_90a", threads=256) == approx(share(*path, on="sm_90a", threads=256))
    assert share(*path, every, on="sm_90a", threads=256) < share(*path, own, on="sm_90a", threads=256) - 0.05


def test_control_words_are_needed() -> None:
    with pytest.raises(ValueError, match="control words"):
        share(SassInstr("HMMA.16816.F32", operands="R0, R4, R8, R0"))


@pytest.mark.parametrize("ctas", [1, 3])
def test_what_warps_do_adds_up_to_the_clocks_between_their_instructions(
    monkeypatch: pytest.MonkeyPatch, ctas: int
) -> None:
    real = issue_model.issue
    log: list[tuple[int, int, float, float]] = []  # warp, step, its clock, that of the step before

    def issue(warp: Warp, step: Step, clock: float, shared: Shared) -> None:
        log.append((id(warp), warp.at, clock, warp.issued))
        real(warp, step, clock, shared)

    monkeypatch.setattr(issue_model, "issue", issue)
    monkeypatch.setattr(issue_model, "_STARTS", 1)
    read = SassInstr("LDG.E", operands="R12, [R2.64]", control=Control(1, (), 0, None))
    use = SassInstr("MUFU.EX2", operands="R13, R12", control=Control(4, (0,), 1, None))
    meet = SassInstr("BAR.SYNC", operands="0x0", control=Control(5, (1,), None, None))
    path = read, hmma(), use, hmma(), meet, *[add()] * 7
    busy = modelled(Loop(path, len(path)), target("sm_80"), 256, ctas)
    warps = 2 * ctas  # of a scheduler
    # The model counts from where the last of the warps has completed an iteration.
    ends = {warp: n for n, (warp, at, _, _) in reversed([*enumerate(log)]) if at == len(path) - 1}
    assert len(ends) == warps
    for at, of_step in enumerate(busy.waits):
        clocks = [clock - before for _, n, clock, before in log[max(ends.values()) + 1 :] if n == at]
        assert sum(of_step.values()) == pytest.approx(sum(clocks) / len(clocks))
    of_warp = sum(sum(of_step.values()) for of_step in busy.waits)
    assert of_warp == pytest.approx(busy.clocks_of_iteration * warps, rel=0.05)
    assert sum(busy.waited.values()) == pytest.approx(1)
    for n, wait, least in ((2, Wait.GLOBAL, 200), (4, Wait.SPECIAL, 10)):
        assert busy.waits[n][wait] > least
