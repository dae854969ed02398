"""The table of targets against the documentation's own figures, ptxas, and the occupancy rules."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from error_texts import refused
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.errors import AssemblerError, ConfigError, UnsupportedTargetError
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import EARLY_TARGETS, TARGETS, Target, target, target_for_device, target_number

NAMES = tuple(TARGETS)
KNOWN = (
    "Known targets: sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, "
    "sm_100, sm_100a, sm_100f, sm_103, sm_103a, sm_103f, sm_110, sm_110a, sm_110f, "
    "sm_120, sm_120a, sm_120f, sm_121, sm_121a, sm_121f"
)

# Typed from CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability":
# blocks, warps, threads, KiB of shared memory per SM, KiB per block.
GUIDE = {
    75: (16, 32, 1024, 64, 64),
    80: (32, 64, 2048, 164, 163),
    86: (16, 48, 1536, 100, 99),
    87: (16, 48, 1536, 164, 163),
    89: (24, 48, 1536, 100, 99),
    90: (32, 64, 2048, 228, 227),
    100: (32, 64, 2048, 228, 227),
    103: (32, 64, 2048, 228, 227),
    110: (24, 48, 1536, 228, 227),
    120: (24, 48, 1536, 100, 99),
    121: (24, 48, 1536, 100, 99),
}


# As `GUIDE`, for GPUs before Turing: typed from the guide of CUDA 12.9, whose ptxas is the last for them.
EARLY = {
    52: (32, 64, 2048, 96, 48),
    60: (32, 64, 2048, 64, 48),
    61: (32, 64, 2048, 96, 48),
    70: (32, 64, 2048, 96, 96),
}


def module(name: str, version: tuple[int, int]) -> str:
    major, minor = version
    return (
        f".version {major}.{minor}\n.target {name}\n.address_size 64\n\n"
        ".visible .entry empty()\n{\n    ret;\n}\n"
    )


def one_version_below(version: tuple[int, int]) -> tuple[int, int]:
    # The last minor of each major: PTX ISA, "Release Notes".
    last_minor = {6: 5, 7: 8, 8: 8}
    major, minor = version
    return (major, minor - 1) if minor else (major - 1, last_minor[major - 1])


@pytest.mark.parametrize("name", [*EARLY_TARGETS, *NAMES])
def test_limits_are_those_of_the_programming_guide(name: str) -> None:
    t = target(name)
    per_sm = (t.blocks_per_sm, t.warps_per_sm, t.threads_per_sm)
    shared_kib = (t.shared_per_sm / 1024, t.shared_per_block_optin / 1024)
    assert (*per_sm, *shared_kib) == (EARLY | GUIDE)[t.sm]
    assert (t.registers_per_sm, t.registers_per_block, t.registers_per_thread) == (65536, 65536, 255)
    assert (t.threads_per_block, t.shared_per_block) == (1024, 49152)
    assert t.shared_reserved_per_block == (0 if t.sm <= 75 else 1024)


def test_f32_lanes_are_those_of_the_throughput_table() -> None:
    assert {t.sm for t in TARGETS.values() if t.fp32_lanes_per_sm == 64} == {75, 80}
    assert {t.fp32_lanes_per_sm for t in TARGETS.values() if t.sm > 80} == {128}


def test_a_name_is_its_number_and_its_suffix() -> None:
    for name, t in TARGETS.items():
        assert name == t.name == str(t) == f"sm_{t.sm}{t.suffix}"


@pytest.mark.ptxas
@pytest.mark.parametrize("name", NAMES)
def test_the_assembler_accepts_a_target_at_its_first_ptx_version(assembler: Assembler, name: str) -> None:
    assembler.assemble(module(name, TARGETS[name].ptx), name)


@pytest.mark.parametrize("name", EARLY_TARGETS)
def test_an_assembler_of_cuda_12_accepts_an_early_target_from_its_first_ptx_version_on(
    early_assembler: Assembler, name: str
) -> None:
    first = EARLY_TARGETS[name].ptx
    early_assembler.assemble(module(name, first), name)
    below = {(4, 1): (4, 0), (5, 0): (4, 3), (6, 0): (5, 0)}[first]
    with pytest.raises(AssemblerError, match=rf"does not support \.target {name}\b"):
        early_assembler.assemble(module(name, below), name)


def test_a_multiprocessor_of_sm_60_has_two_schedulers() -> None:
    # A warp takes 2,816 registers: a half of 65,536 holds 11 warps, a quarter 5.
    assert [target(name).blocks_per_sm_for(32, 88, 0) for name in ("sm_60", "sm_61")] == [22, 20]


@pytest.mark.ptxas
@pytest.mark.parametrize("name", NAMES)
def test_the_assembler_refuses_a_target_one_ptx_version_below(assembler: Assembler, name: str) -> None:
    text = module(name, one_version_below(TARGETS[name].ptx))
    with pytest.raises(AssemblerError, match=rf"does not support \.target {name}\b"):
        assembler.assemble(text, name)


def test_a_target_is_found_by_name_and_passes_through() -> None:
    t = target("sm_90a")
    assert (t.name, t.sm, t.suffix, t.ptx) == ("sm_90a", 90, "a", (8, 0))
    assert target(t) is t


def test_a_misspelt_target_is_refused_with_the_nearest_one_and_the_list() -> None:
    with refused(UnsupportedTargetError, f"unknown target 'sm90a'; did you mean 'sm_90a'? {KNOWN}"):
        target("sm90a")


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        *(("sm_91", "sm_90"), ("sm_88", "sm_87"), ("sm_72", "sm_75"), ("sm_109", "sm_103")),  # what it runs
        *(("sm_90f", "sm_90"), ("sm_104f", "sm_103f"), ("sm_89a", "sm_89"), ("sm_122a", "sm_121")),
        *(("compute_80", "sm_80"), ("9.0", "sm_90"), ("SM-86", "sm_86"), ("hopper", None)),
        *(("sm_9", "sm_90"), (90, "sm_90")),
    ],
)
def test_an_unknown_architecture_is_refused_with_the_nearest_target(wrong: Any, nearest: str | None) -> None:
    with pytest.raises(UnsupportedTargetError) as caught:
        target(wrong)
    said = f"; did you mean {nearest!r}?" if nearest else "."
    assert str(caught.value) == f"unknown target {wrong!r}{said} {KNOWN}"


@pytest.mark.parametrize("wrong", ["", "gpu", None, []])
def test_what_names_no_target_is_refused_with_the_list(wrong: Any) -> None:
    with refused(UnsupportedTargetError, f"unknown target {wrong!r}. {KNOWN}"):
        target(wrong)


def test_a_target_that_is_not_in_the_table_has_a_number_too() -> None:
    numbers = [target_number(name) for name in ("sm_70", "sm_90a", "sm_103f")]
    assert numbers == [70, 90, 103]
    with refused(
        UnsupportedTargetError,
        "target must be sm_ and a number, got 'compute_80'; write one such as sm_90 or sm_90a",
    ):
        target_number("compute_80")


def test_the_table_and_its_rows_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TARGETS["sm_80"] = TARGETS["sm_90"]  # type: ignore[index]  # that is the point
    with pytest.raises(dataclasses.FrozenInstanceError):
        TARGETS["sm_80"].sm = 90  # type: ignore[misc]  # that is the point


@pytest.mark.parametrize(
    ("major", "minor", "name"),
    [
        *((5, 2, "sm_52"), (5, 3, "sm_52"), (6, 0, "sm_60"), (6, 1, "sm_61"), (7, 2, "sm_70")),
        (7, 5, "sm_75"),
        (8, 0, "sm_80"),
        (8, 6, "sm_86"),
        (8, 7, "sm_87"),
        (8, 8, "sm_86"),  # not sm_87: it has more shared memory than an 8.8 GPU
        (8, 9, "sm_89"),
        (9, 0, "sm_90a"),
        (10, 0, "sm_100a"),
        (10, 1, "sm_100"),  # what became 11.0, no member of the family of 10.0
        (10, 2, "sm_100f"),
        (10, 3, "sm_103a"),
        (11, 0, "sm_110a"),
        (12, 0, "sm_120a"),
        (12, 1, "sm_121a"),
        (12, 9, "sm_121f"),
        (13, 0, "sm_121"),
    ],
)
def test_a_device_gets_the_newest_target_that_it_runs(major: int, minor: int, name: str) -> None:
    assert target_for_device(major, minor).name == name


@pytest.mark.parametrize(("major", "minor"), [(5, 0), (3, 7)])
def test_a_device_older_than_all_targets_is_refused(major: int, minor: int) -> None:
    with refused(
        UnsupportedTargetError,
        f"a GPU of compute capability {major}.{minor} is too old: "
        "5.2 (sm_52) or later is needed; use backend='cpu'",
    ):
        target_for_device(major, minor)


def test_a_plain_target_runs_on_later_devices_and_an_a_target_only_on_its_own() -> None:
    devices = [(8, 9), (9, 0), (10, 0)]
    assert [target("sm_90").runs_on(*d) for d in devices] == [False, True, True]
    assert [target("sm_90a").runs_on(*d) for d in devices] == [False, True, False]


def test_a_target_of_a_family_runs_on_later_devices_of_the_family() -> None:
    devices = [(9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0)]
    assert [target("sm_100f").runs_on(*d) for d in devices] == [False, True, False, True, False, False]
    assert [target("sm_103f").runs_on(*d) for d in devices] == [False, False, False, True, False, False]
    assert [target("sm_110f").runs_on(*d) for d in devices] == [False, False, False, False, True, False]


# An instruction of these architectures and families, as the manual names them.
WITNESSES = {
    "sm_90a": "wgmma.fence.sync.aligned;",
    "sm_100a sm_103a": "cvt.rs.f16x2.f32 %r1, %f1, %f2, %r2;",
    "sm_100f": "redux.sync.max.f32 %f1, %f2, 0xffffffff;",
    "sm_120f": "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32 {%f1,%f2,%f3,%f4}, "
    "{%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};",
}


@pytest.mark.ptxas
@pytest.mark.parametrize("owner", WITNESSES)
def test_the_assembler_gives_targets_the_features_of_architectures_and_families(
    assembler: Assembler, owner: str
) -> None:
    registers = "    .reg .f32 %f<8>;\n    .reg .b32 %r<8>;\n"

    def has_instruction(t: Target) -> bool:
        text = module(t.name, max(t.ptx, (8, 7))).replace("{\n", f"{{\n{registers}    {WITNESSES[owner]}\n")
        try:
            assembler.assemble(text, t.name)
        except AssemblerError as error:
            assert "not supported" in str(error)  # noqa: PT017
            return False
        return True

    wanted = [t for t in TARGETS.values() if any(map(t.has_features_of, owner.split()))]
    assert [t for t in TARGETS.values() if has_instruction(t)] == wanted


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks", "limit"),
    [
        # Computed with cuda_occupancy.h (CUDA Toolkit 13.5) compiled as C++.
        ("sm_80", 128, 32, 0, 16, "warps: 64 / 4"),
        ("sm_80", 32, 16, 0, 32, "blocks"),
        ("sm_86", 32, 16, 0, 16, "blocks"),
        ("sm_90a", 384, 168, 0, 1, "registers: 12 warps x 5376 = 64512"),
        ("sm_90", 128, 128, 0, 4, "registers: 16 warps of 4096"),
        ("sm_90", 128, 255, 0, 2, "registers: 8 warps of 8192"),
        ("sm_90", 32, 152, 0, 12, "registers: 3 warps of 4864 in each quarter, not 13 in all"),
        ("sm_90", 32, 255, 0, 8, "registers: 2 warps of 8192 in each quarter"),
        ("sm_90", 288, 200, 0, 0, "registers: 2 warps of 6400 in each quarter, and 9 are needed"),
        ("sm_90", 256, 255, 0, 1, "registers: exactly all"),
        ("sm_80", 128, 32, 163 * 1024, 1, "shared: all that can be asked for"),
        ("sm_80", 128, 32, 163 * 1024 + 1, 0, "shared: one byte more"),
        ("sm_80", 128, 32, 81 * 1024, 2, "shared: 2 x (81 + 1) KiB = 164 KiB"),
        ("sm_80", 128, 32, 81 * 1024 + 1, 1, "shared: units of 128 bytes"),
        ("sm_75", 128, 32, 32 * 1024, 2, "shared: nothing is reserved on 7.5"),
        ("sm_75", 32, 32, 4864, 13, "shared: 19 units of 256 bytes"),
        ("sm_75", 32, 32, 4928, 12, "shared: 20 units of 256 bytes, though 13 x 4928 < 64 KiB"),
        ("sm_80", 32, 32, 4544, 29, "shared: 44 units of 128 bytes, though 30 x 5568 < 164 KiB"),
        ("sm_80", 32, 32, 4224, 32, "shared: 41 units of 128 bytes; in units of 256 only 31 fit"),
        ("sm_80", 64, 100, 0, 8, "registers: 13 units of 256; in units of 128 10 blocks fit"),
        ("sm_75", 1024, 64, 0, 1, "threads of a Turing SM"),
        ("sm_120", 1024, 32, 0, 1, "warps: 48 / 32"),
        ("sm_90", 1024, 0, 0, 2, "warps; no registers at all"),
        ("sm_90", 1025, 16, 0, 0, "threads of a block"),
        ("sm_90", 33, 16, 0, 32, "33 threads are 2 warps"),
    ],
)
def test_blocks_per_multiprocessor_are_those_of_the_cuda_occupancy_header(
    name: str, threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    assert target(name).blocks_per_sm_for(threads, registers, shared) == blocks, limit


def test_more_registers_than_a_thread_can_have_fit_nowhere() -> None:
    # The header admits 256 and the guide 255; the encoding of an instruction holds 255.
    assert target("sm_90").blocks_per_sm_for(32, 256, 0) == 0


@pytest.mark.parametrize(
    ("arguments", "what", "least", "got"),
    [
        ((0, 32, 0), "threads", 1, 0),
        ((-8, 32, 0), "threads", 1, -8),
        ((32, -1, 0), "registers_per_thread", 0, -1),
        ((32, 32, -1), "shared_bytes", 0, -1),
    ],
)
def test_an_impossible_kernel_is_refused(
    arguments: tuple[int, int, int], what: str, least: int, got: int
) -> None:
    message = f"occupancy: {what} must be at least {least}, got {got}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        target("sm_80").blocks_per_sm_for(*arguments)


@given(
    st.sampled_from(list(TARGETS.values())),
    st.integers(1, 1024),
    st.integers(0, 255),
    st.integers(0, 227 * 1024),
)
def test_resident_blocks_never_exceed_what_the_multiprocessor_has(
    t: Target, threads: int, registers: int, shared: int
) -> None:
    blocks = t.blocks_per_sm_for(threads, registers, shared)
    assert 0 <= blocks <= t.blocks_per_sm
    assert blocks * threads <= t.threads_per_sm
    assert blocks * threads * registers <= t.registers_per_sm
    assert blocks * (shared + t.shared_reserved_per_block) <= t.shared_per_sm
    assert (blocks == 0) or shared <= t.shared_per_block_optin


def test_a_value_without_a_text_is_refused_as_any_other() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    wrong: Any = Silent()
    with refused(UnsupportedTargetError, f"unknown target a value of type Silent. {KNOWN}"):
        target(wrong)
