from __future__ import annotations

import numpy as np
import pytest
from dsl.kernels import builder, computed, instructions, lanes
from error_texts import refused

from ptxgen import ir
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.types import f32, f64, pred, s32, u8, u32


def regions(k):
    return k.build().kernels[0].regions


def test_tiles_follow_each_other_at_their_alignment():
    k = builder()
    k.shared("A", (3, 5), f32)
    k.shared("B", (2, 3), u8, align=4)
    k.shared("C", (1, 1), f64, pitch=4, align=128)
    assert regions(k) == (ir.Region("A", 0, 60, 16), ir.Region("B", 60, 6, 4), ir.Region("C", 128, 32, 128))


def test_the_pitch_is_the_distance_of_rows():
    k = builder()
    tile = k.shared("A", (4, 30), pitch=36)
    assert (tile.rows, tile.columns, tile.pitch, tile.row_bytes) == (4, 30, 36, 144)
    assert regions(k) == (ir.Region("A", 0, 4 * 144, 16),)


def test_all_tiles_share_one_base():
    k = builder()
    for name in "AB":
        k.shared(name, (4, 4))
    bases = [i for i in instructions(k) if ir.Symbol("smem") in i.operands]
    assert len(bases) == 1


def test_a_kernel_without_tiles_declares_no_shared_memory():
    assert builder().build().kernels[0].dynamic_shared == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                {"shape": shape, "pitch": pitch},
                ": rows and columns must be positive and pitch >= columns, "
                f"got {shape}, pitch {shape[1] if pitch is None else pitch}",
            )
            for shape, pitch in (
                *(((0, 4), None), ((4, 0), None), ((-1, 4), None)),
                *(((4, 4), 3), ((4, 2.5), None), ((4, True), 1)),
            )
        ),
        *(
            ({"align": align}, f": align must be a power of two (bytes), got {align!r}")
            for align in (0, 3, -16, 1.0)
        ),
        ({"dtype": pred}, ": pred has no size in memory"),
        ({"name": "B"}, " is declared twice in kernel 'kernel'"),
    ],
)
def test_a_wrong_tile_is_refused(arguments, message):
    k = builder()
    k.shared("B", (4, 4))
    named = {"name": "A", "shape": (4, 4), **arguments}
    with refused(ConfigError, f"shared tile {named['name']!r}{message}"):
        k.shared(**named)


@pytest.mark.parametrize("block", ["loop", "when", "only_if"])
def test_a_tile_is_not_declared_inside_a_block(block):
    """Its base would have no value behind the block, where the next tile would use it."""
    k = builder()
    condition = k.thread_id() < 3
    blocks = {"loop": lambda: k.loop(0, 3), "when": lambda: k.when(condition)}
    message = f"shared tile 'A' is declared inside '{block}'; declare it before the block begins"
    with blocks.get(block, lambda: k.only_if(condition))(), refused(ConfigError, message):
        k.shared("A", (4, 4))


# ---------------------------------------- pointers into tiles


@pytest.mark.parametrize("place", ["row", "column", "both", "signed"])
def test_a_pointer_by_row_and_column(place):
    def body(k, x):
        tile = k.shared("A", (32, 4), u32, pitch=5)
        if place == "row":
            mine, other = tile.pointer(x, 2), tile.pointer(x ^ 1, 2)
        elif place == "column":
            tile = k.shared("B", (1, 32), u32)
            mine, other = tile.pointer(0, x), tile.pointer(column=x ^ 1)
        elif place == "both":
            mine, other = tile.pointer(x, x & 3), tile.pointer(x ^ 1, (x ^ 1) & 3)
        else:
            mine, other = tile.pointer(x + 1).step(-1), tile.pointer((x ^ 1).as_(s32), 0)
        k.store(mine, x)
        k.barrier()
        return k.load(other)

    assert (computed(body, lanes()) == lanes() ^ 1).all()


def test_static_places_cost_no_instruction():
    k = builder()
    tile = k.shared("A", (4, 8))
    before = len(instructions(k))
    assert tile.pointer(2, 3).offset == 2 * 32 + 3 * 4
    assert tile.pointer(2, 3).step(1, -2).offset == 3 * 32 + 1 * 4
    assert len(instructions(k)) == before


@pytest.mark.parametrize(
    ("use", "message"),
    [
        *(
            (
                lambda _, tile, row=row: tile.pointer(row),
                f"shared tile 'A': row must be an integer of 32 bits, got {row!r}",
            )
            for row in (1.5, True, None)
        ),
        (
            lambda k, tile: tile.pointer(0, k.param("x", f32)),
            "shared tile 'A': column must be an integer of 32 bits, got Value(%f0: f32)",
        ),
        (
            lambda k, tile: tile.pointer().step(k.thread_id()),
            "the offset of a pointer must be a Python int, got Value(%r1: u32); what is known only on the "
            "GPU goes into pointer.element(index) or tile.pointer(row, column)",
        ),
        (
            lambda _, tile: tile.pointer(1).advance(1),
            "advance moves a cursor; make one with cursor(), got Pointer(shared f32 [%r0+32])",
        ),
    ],
)
def test_a_wrong_pointer_into_a_tile_is_refused(use, message):
    k = builder()
    with refused(TypeMismatchError, message):
        use(k, k.shared("A", (4, 8)))


def test_a_cursor_walks_and_leaves_its_origin_alone():
    def body(k, x):
        tile = k.shared("A", (8, 32), u32)
        start = tile.pointer(0, x)
        cursor = start.cursor()
        with k.loop(0, 8) as i:
            k.store(cursor, i.as_(u32) + 1)
            cursor.advance(rows=1)
        total = k.var(u32, 0)
        for row in range(8):
            total.set(total * 10 + k.load(start.step(row)))
        return total

    assert (computed(body, lanes()) == 12345678).all()


def test_a_step_from_a_cursor_moves_with_it():
    def body(k, x):
        tile = k.shared("A", (4, 32), u32)
        for row in range(4):
            k.store(tile.pointer(row, x), x + 100 * row)
        cursor = tile.pointer(0, x).cursor()
        ahead = cursor.step(1)
        cursor.advance(rows=2)
        return k.load(ahead)

    assert (computed(body, lanes()) == lanes() + 300).all()


# ---------------------------------------- fragments


def test_a_fragment_holds_a_variable_for_each_place():
    def body(k, x):
        part = k.fragment(2, 3, u32, 0)
        for i in range(2):
            for j in range(3):
                part[i, j].set(x * (3 * i + j))
        total = k.var(u32, 0)
        for row in part:
            for element in row:
                total.set(total + element)
        return total + part.row(1)[2]

    assert (computed(body, lanes()) == lanes() * (15 + 5)).all()


def test_a_part_of_a_fragment_has_its_variables():
    k = builder()
    whole = k.fragment(4, 6, initial=None)
    part = whole.part(slice(1, 3), slice(2, 6, 2))
    assert (part.rows, part.columns) == (2, 2)
    assert [list(row) for row in part] == [[whole[i, 2], whole[i, 4]] for i in (1, 2)]
    rows = whole.part(slice(0, 2))
    assert (rows.rows, rows.columns, rows[1, 5]) == (2, 6, whole[1, 5])


def test_fill_sets_every_element():
    def body(k, x):
        part = k.fragment(2, 2)
        part.fill(1.5)
        total = x
        for element in part.all():
            total = total + element
        return total

    assert (computed(body, lanes("float32")) == np.arange(32) + 6).all()


def test_a_fragment_without_initial_values_emits_nothing():
    k = builder()
    k.fragment(4, 4, initial=None)
    assert [i.opcode for i in instructions(k)] == ["ret"]
