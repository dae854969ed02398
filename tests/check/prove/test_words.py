"""The proof of barriers where a number from shared memory decides who comes to them: one warp takes numbers
and tells two others. The right kernels are proved and run clean; each mistake makes them unproved.
"""

from __future__ import annotations

import pytest
from role_kernels import outcome, text

from ptxgen.check.prove import prove_shared

WARP = 32
BLOCK = 3 * WARP
BEFORE = """.shared .align 8 .b32 word[2];
.shared .align 8 .b32 other[2];
mov.u32 %r30, 0; mov.u32 %r31, word; setp.eq.u32 %p1, %r3, 0;
"""
# Barriers 1 and 2 are those of the empty stages, 3 and 4 those of the full ones.
TAKER = """again:
add.u32 %r32, %r30, 1; bar.sync %r32, 96;
mad.lo.u32 %r33, %r30, 4, %r31;
@%p1 atom.global.inc.u32 %r34, [%rd1], %r2;
@%p1 st.shared.u32 [%r33], %r34;
add.u32 %r35, %r30, 3; bar.arrive %r35, 96;
bar.sync 5, 32; ld.shared.u32 %r36, [%r33];
xor.b32 %r30, %r30, 1;
setp.lt.u32 %p2, %r36, %r1; @%p2 bra again;
bar.sync 1, 96; bar.sync 2, 96;
"""
TOLD = """bar.arrive 1, 96; bar.arrive 2, 96;
more:
add.u32 %r35, %r30, 3; bar.sync %r35, 96;
mad.lo.u32 %r33, %r30, 4, %r31;
ld.shared.u32 %r36, [%r33];
add.u32 %r32, %r30, 1; bar.arrive %r32, 96;
xor.b32 %r30, %r30, 1;
setp.lt.u32 %p2, %r36, %r1; @!%p2 bra none;
bar.sync 6, 64;
bra more;
none:
"""
# Without roles a barrier of all threads is enough, because who writes has read the number before.
TOGETHER = """again:
mad.lo.u32 %r33, %r30, 4, %r31;
@%p1 atom.global.inc.u32 %r34, [%rd1], %r2;
@%p1 st.shared.u32 [%r33], %r34;
bar.sync 0;
ld.shared.u32 %r36, [%r33];
xor.b32 %r30, %r30, 1;
setp.lt.u32 %p2, %r36, %r1; @%p2 bra again;
"""


def roles(taker: str = TAKER, told: str = TOLD) -> str:
    """The kernel with roles."""
    return text((1, taker), (2, told), before=BEFORE)


def together(body: str = TOGETHER) -> str:
    """The kernel without roles."""
    return text((3, body), before=BEFORE)


def changed(body: str, old: str, new: str) -> str:
    """A part of a kernel with a mistake."""
    assert body.count(old) == 1
    return body.replace(old, new)


def is_proved(ptx: str) -> bool:
    """Whether all barriers of a kernel are proved."""
    return all(v.verdict == "proved" for v in prove_shared(ptx, block=BLOCK).barriers)


@pytest.mark.parametrize("ptx", [roles(), together()], ids=["roles", "together"])
def test_a_number_from_one_thread_is_the_same_for_all_who_read_it(ptx: str) -> None:
    assert is_proved(ptx)
    for n, seed in ((0, None), (1, 0), (4, 1), (4, None)):
        assert not outcome(ptx, BLOCK, n, n, seed=seed)


def test_the_numbers_may_be_of_words_of_one_variable_with_a_constant_offset() -> None:
    at = "ld.shared.u32 %r36, [%r33];"
    moved = "sub.u32 %r37, %r31, 0; mad.lo.u32 %r33, %r30, 4, %r31;\nld.shared.u32 %r36, [%r33+0];"
    assert is_proved(roles(told=changed(TOLD, at, moved)))


ST = "@%p1 st.shared.u32 [%r33], %r34;\n"
FULL = "add.u32 %r35, %r30, 3; bar.arrive %r35, 96;\n"
WAIT = "add.u32 %r35, %r30, 3; bar.sync %r35, 96;\n"
FREE = "add.u32 %r32, %r30, 1; bar.arrive %r32, 96;\n"
LD = "ld.shared.u32 %r36, [%r33];\n"
AT = "mad.lo.u32 %r33, %r30, 4, %r31;\n"
MISTAKES_OF_TAKER = {
    "the write is behind the arrival": (ST + FULL, FULL + ST),
    "every lane writes": (ST, ST.replace("@%p1 ", "")),
    "two lanes write": (ST, "setp.lt.u32 %p3, %r5, 2;\n@%p3 st.shared.u32 [%r33], %r34;\n"),
    "who writes depends on memory": (ST, "setp.eq.u32 %p3, %r5, %r6;\n@%p3 st.shared.u32 [%r33], %r34;\n"),
    "no wait for the empty stage": ("bar.sync %r32, 96;", ""),
    "the wait is for the other stage": ("add.u32 %r32, %r30, 1;", "sub.u32 %r32, 2, %r30;"),
    "the write is to the other stage": (AT, "xor.b32 %r38, %r30, 1; mad.lo.u32 %r33, %r38, 4, %r31;\n"),
    "where it writes depends on memory": (AT, "and.b32 %r38, %r6, 1; mad.lo.u32 %r33, %r38, 4, %r31;\n"),
    "its own warp reads too early": ("bar.sync 5, 32; ", ""),
    "a copy to the word as well": (ST, ST + "@%p1 st.shared.v2.u32 [%r31], {%r34, %r34};\n"),
    "an atomic on the word as well": (ST, ST + "@%p1 atom.shared.add.u32 %r39, [%r33], 1;\n"),
    "a part of the word again": (ST, ST + "@%p1 st.shared.u8 [%r33+2], %r34;\n"),
    "an allocation of tensor memory, which is not modelled": (
        ST,
        ST + "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r31], 32;\n",
    ),
    "a store anywhere": (ST, ST + "add.u32 %r38, %r31, %r6;\n@%p1 st.shared.u32 [%r38], %r34;\n"),
}
MISTAKES_OF_TOLD = {
    "the read is before the wait": (WAIT + AT + LD, AT + LD + WAIT),
    "no wait": (WAIT, ""),
    "the read is of the other stage": (AT, "xor.b32 %r38, %r30, 1; mad.lo.u32 %r33, %r38, 4, %r31;\n"),
    "the stage is given back before it is read": (LD + FREE, FREE + LD),
    "the stage is never given back": (FREE, ""),
    "a stage is given back too often": (FREE, FREE + "bar.arrive %r32, 96;\n"),
    "it writes, too": (LD, LD + "setp.eq.u32 %p3, %r3, 40;\n@%p3 st.shared.u32 [%r33], %r36;\n"),
    "it writes a part, too": (LD, LD + "setp.eq.u32 %p3, %r3, 40;\n@%p3 st.shared.u8 [%r33+2], %r36;\n"),
    "one warp reads a word of its own": (
        AT,
        "setp.eq.u32 %p3, %r4, 2; selp.b32 %r38, 1, %r30, %p3; mad.lo.u32 %r33, %r38, 4, %r31;\n",
    ),
    "each lane reads its own": (AT, "and.b32 %r38, %r5, 1; mad.lo.u32 %r33, %r38, 4, %r31;\n"),
    "some lanes do not read": (LD, "setp.lt.u32 %p3, %r5, 9; mov.u32 %r36, 0;\n@%p3 " + LD),
    "one warp counts otherwise": (
        "setp.lt.u32 %p2, %r36, %r1;",
        "setp.eq.u32 %p3, %r4, 2; selp.b32 %r38, %r2, %r1, %p3; setp.lt.u32 %p2, %r36, %r38;",
    ),
}
MISTAKES_TOGETHER = {
    "one stage": ("xor.b32 %r30, %r30, 1;", ""),
    "no barrier": ("bar.sync 0;", "bar.sync 1, 32;"),
    "every thread writes": (ST, ST.replace("@%p1 ", "")),
    "one of each warp writes": (ST, "setp.eq.u32 %p3, %r5, 0;\n" + ST.replace("%p1", "%p3")),
}


@pytest.mark.parametrize("name", MISTAKES_OF_TAKER)
def test_a_mistake_of_who_takes_numbers_is_not_proved(name: str) -> None:
    assert not is_proved(roles(taker=changed(TAKER, *MISTAKES_OF_TAKER[name])))


@pytest.mark.parametrize("name", MISTAKES_OF_TOLD)
def test_a_mistake_of_who_is_told_is_not_proved(name: str) -> None:
    assert not is_proved(roles(told=changed(TOLD, *MISTAKES_OF_TOLD[name])))


@pytest.mark.parametrize("name", MISTAKES_TOGETHER)
def test_a_mistake_without_roles_is_not_proved(name: str) -> None:
    # The barrier for all threads comes to be alone, so there is one that needs the number.
    body = changed(TOGETHER, *MISTAKES_TOGETHER[name]) + "bar.sync 0;\n"
    assert not is_proved(together(body))


def test_a_word_of_which_the_neighbour_is_copied_over_is_not_proved() -> None:
    inside = ST + "@%p1 st.shared.u32 [other], %r34;\n"
    assert is_proved(roles(taker=changed(TAKER, ST, inside)))
    assert not is_proved(roles(taker=changed(TAKER, ST, inside.replace("[other]", "[word+4]"))))


def test_one_of_two_warps_that_gives_a_stage_back_too_early_is_not_proved() -> None:
    early = TOLD.replace("more", "less").replace("none", "end")
    ptx = text((1, TAKER), (1, early), (1, TOLD), before=BEFORE)
    assert is_proved(ptx)
    wrong = text((1, TAKER), (1, changed(early, LD + FREE, FREE + LD)), (1, TOLD), before=BEFORE)
    assert not is_proved(wrong)


# Two warps read a word with the sign above bit 31 or with zeros, and compare 64 bits.
WIDE = """bar.sync 1, 96; {load} %{register}7, [word]; setp.lt.s{bits} %p2, %{register}7, 3; @%p2 bra {label};
bar.sync 3, 64; {label}:
"""
TYPES = ("b32", "u32", "s32")


def wide(first: str, second: str, bits: int) -> str:
    """A kernel in which two warps read one number into registers of `bits` bits, by loads of these types."""
    named = {"register": "rd" if bits == 64 else "r1", "bits": bits}
    told = (
        WIDE.format(load=f"ld.shared.{type}", label=f"less{n}", **named)
        for n, type in enumerate((first, second))
    )
    taker = "@%p1 mov.u32 %r34, 0xfffffff0; @%p1 st.shared.u32 [word], %r34; bar.sync 1, 96;"
    return text((1, taker), *((1, body) for body in told), before=BEFORE)


@pytest.mark.parametrize("first", TYPES)
@pytest.mark.parametrize("second", TYPES)
def test_a_register_wider_than_the_word_may_get_another_number(first: str, second: str) -> None:
    assert is_proved(wide(first, second, 32))
    ptx = wide(first, second, 64)
    assert not is_proved(ptx)
    if (first == "s32") != (second == "s32"):
        assert outcome(ptx, BLOCK, 0, 0)


def test_variables_without_a_size_may_be_at_one_address() -> None:
    def kernel(where: str) -> str:
        body = changed(TAKER, ST, ST + f"@%p1 st.shared.u32 [{where}], %r34;\n")
        ptx = text((1, body), (2, TOLD), before=BEFORE.replace("%r31, word", "%r31, any"))
        sizeless = "".join(f".extern .shared .align 8 .b32 {name}[];\n" for name in ("any", "more_of_it"))
        return ptx.replace(".visible", f"{sizeless}.visible")

    def proved(ptx: str) -> bool:
        proof = prove_shared(ptx, block=BLOCK, dynamic_smem=8)
        return all(v.verdict == "proved" for v in proof.barriers)

    assert proved(kernel("other"))
    assert not proved(kernel("more_of_it"))


def test_the_reason_says_what_is_wrong() -> None:
    ptx = roles(told=changed(TOLD, LD + FREE, FREE + LD))
    reasons = {v.reason for v in prove_shared(ptx, block=BLOCK).barriers if v.verdict == "unknown"}
    assert reasons == {
        "warp 0 may write a word that decides which barriers others come to before they have read what it "
        "held"
    }
