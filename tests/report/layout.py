"""A page of a report that is always the same, and small pictures of its layout.

The kernel is a text, its machine code is given, and no assembler is asked, so that only the page itself
and what a report says can change the picture. Text is shown in a font of the test's own, in which every
character is a bar of half an em, so that the fonts of the machine and the way in which a version of
Chromium draws letters do not matter.

Pillow and fontTools are imported by what uses them: without a browser nothing here is called.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ptxgen.report import Launch, Report, Subject, collect
from ptxgen.report.data import LOOP, MachineCode, SassRow, StallLine, Stalls
from ptxgen.report.issue_model import Wait

if TYPE_CHECKING:
    from PIL.Image import Image

CELL: Final = 8  # pixels of the page along each side of a pixel of its small picture
# A cell of the picture differs if red, green or blue does by more than this: for black on white, if an
# edge has moved by two pixels.
MOST_LEVELS: Final = 64
# The part of all cells that may differ: of a page of 360 x 6,000 pixels, an area of 46 x 46.
MOST_CELLS: Final = 0.001
_COLOURS: Final = 128  # of a golden picture; each is at most 18 levels from that of the page
_EM: Final = 1000
_BAR: Final = ((0, 0), (0, 600), (500, 600), (500, 0))
_OUTLINED: Final = "header, nav, section, footer, .tile, .pane, .pane > h3, .rows, .scroll, svg, .meter"
_MARKERS: Final = "\u25b8\u25be\u2026"  # of `details`, and where text is cut off

SOURCE: Final = """\
__global__ void __launch_bounds__(64) turned(float *out, const float *in, int turns) {
    __shared__ float words[64 * 32];
    float sum = 0;
    for (int turn = 0; turn < turns; turn++) {
        words[32 * threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        sum += words[32 * (threadIdx.x ^ 32)];
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}
"""
TEXT: Final = """\
.version 7.0
.target sm_80
.address_size 64

.visible .entry turned(
	.param .u64 out,
	.param .u64 in,
	.param .u32 turns
)
.maxntid 64, 1, 1
{
	.reg .pred %p<2>;
	.reg .b32 %r<8>;
	.reg .f32 %f<4>;
	.reg .b64 %rd<6>;
	.shared .align 4 .b8 words[8192];
	.loc 1 1 0
	ld.param.u64 %rd0, [out];
	ld.param.u64 %rd1, [in];
	ld.param.u32 %r0, [turns];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, words;
	mad.lo.u32 %r3, %r1, 128, %r2;
	xor.b32 %r4, %r1, 32;
	mad.lo.u32 %r4, %r4, 128, %r2;
	mul.wide.u32 %rd2, %r1, 4;
	add.u64 %rd3, %rd0, %rd2;
	add.u64 %rd4, %rd1, %rd2;
	.loc 1 3 0
	mov.f32 %f0, 0f00000000;
	.loc 1 4 0
	mov.u32 %r5, 0;
	setp.ge.u32 %p0, %r5, %r0;
	@%p0 bra $done;
$turn:
	.loc 1 5 0
	ld.global.f32 %f1, [%rd4];
	st.shared.f32 [%r3], %f1;
	.loc 1 6 0
	bar.sync 0;
	.loc 1 7 0
	ld.shared.f32 %f2, [%r4];
	add.rn.f32 %f0, %f0, %f2;
	.loc 1 8 0
	bar.sync 0;
	.loc 1 4 0
	add.u32 %r5, %r5, 1;
	setp.lt.u32 %p1, %r5, %r0;
	@%p1 bra $turn;
$done:
	.loc 1 10 0
	st.global.f32 [%rd3], %f0;
	.loc 1 11 0
	ret;
}
.file 1 "turned.cu"
"""


@functools.cache
def layout_report() -> Report:
    """The report on `TEXT`, with a machine code of one line for each instruction."""
    launch = Launch((2,), [np.zeros(128, np.float32), np.ones(128, np.float32), 3])
    subject = Subject(TEXT, launch=launch, sources={"turned.cu": SOURCE.splitlines()}, assemble=False)
    result = collect(subject)
    lines = [line for line in result.ptx if line.kind == "instruction"]
    names = [line.text.strip() for line in lines]
    loop = range(names.index("ld.global.f32 %f1, [%rd4];"), names.index("@%p1 bra $turn;") + 1)
    rows = tuple(
        SassRow(16 * n, name.upper(), line.number, n in loop)
        for n, (name, line) in enumerate(zip(names, lines, strict=True))
    )
    mix = (("shared", 2), ("copies", 2), ("f32", 1), ("control", 6), ("integers, moves", 14))
    loop_mix = (("shared", 2), ("copies", 1), ("f32", 1), ("control", 3), ("integers, moves", 2))
    code = MachineCode("an assembler", 18, 0, 0, 0, rows, mix, loop_mix)
    waits = [(n + 1, 0, 0, 9.0 * (n % 3), *[0] * 5, 2.0 * n, 3) for n in range(len(loop))]
    stalls = Stalls(
        LOOP,
        4,
        sum(map(sum, waits)),
        tuple(wait.value for wait in Wait),
        tuple(
            StallLine(lines[n].number, lines[n].source, 1, clocks)
            for n, clocks in sorted(zip(loop, waits, strict=True), key=lambda pair: -sum(pair[1]))
        ),
    )
    return dataclasses.replace(result, code=code, stalls=stalls, missing=())


def style(characters: str) -> str:
    """A style sheet that shows these characters in the font of bars, and outlines boxes, whose own borders
    are too fine for a small picture. There are no scroll bars, whose form is the system's, and no listing is
    left out because it is not in view. Nothing but the font changes where anything is.
    """
    font = base64.b64encode(_font(characters + _MARKERS)).decode()
    return f"""
        @font-face {{ font-family: Bars; src: url(data:font/ttf;base64,{font}); }}
        *, ::before, ::after, ::marker {{ font-family: Bars !important; font-synthesis: none !important;
            letter-spacing: 0 !important; scrollbar-width: none !important; }}
        .k {{ content-visibility: visible !important; }}
        {_OUTLINED} {{ outline: 4px solid var(--ink) !important; outline-offset: -4px !important; }}
    """


def _font(characters: str) -> bytes:
    """A TrueType font in which a space is blank and all other characters are the same bar."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    drawn, blank = TTGlyphPen(None), TTGlyphPen(None).glyph()
    drawn.moveTo(_BAR[0])
    for corner in _BAR[1:]:
        drawn.lineTo(corner)
    drawn.closePath()
    built = FontBuilder(_EM, isTTF=True)
    built.setupGlyphOrder([".notdef", "blank", "bar"])
    built.setupCharacterMap({ord(c): "blank" if c.isspace() else "bar" for c in characters})
    built.setupGlyf({".notdef": blank, "blank": blank, "bar": drawn.glyph()})
    built.setupHorizontalMetrics(dict.fromkeys((".notdef", "blank", "bar"), (_EM // 2, 0)))
    built.setupHorizontalHeader(ascent=800, descent=-200)
    built.setupNameTable({"familyName": "Bars", "styleName": "Regular"})
    built.setupOS2(sTypoAscender=800, sTypoDescender=-200, sTypoLineGap=0, usWinAscent=800, usWinDescent=200)
    built.setupPost()
    result = io.BytesIO()
    built.save(result)
    return result.getvalue()


_SIZE = """
const done = arguments[0], page = document.documentElement;
requestAnimationFrame(() => requestAnimationFrame(
  () => done({width: page.scrollWidth, height: page.scrollHeight})));
"""


def picture(driver: Any, scale: int = 1) -> Image:
    """The layout of the page that `driver` shows, from its top to its end, one pixel for `CELL` x `CELL`
    pixels of the page. `scale` is the pixels of the screen along a pixel of the page.
    """
    from PIL import Image

    # A browser may still hold the size that the page had before its last change: the size comes from the
    # page's own layout, after the frame that draws it.
    size = driver.execute_async_script(_SIZE)
    clip = {"x": 0, "y": 0, **size, "scale": 1}
    settings = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", settings)
    with Image.open(io.BytesIO(base64.b64decode(taken["data"]))) as whole:
        return whole.convert("RGB").reduce(CELL * scale)


def save(small: Image, path: Path) -> None:
    """Save the picture of a layout in few bytes."""
    from PIL import Image

    small.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


class Difference(NamedTuple):
    """How a picture differs from a golden one: in words, which are empty if it does not, and as a picture of
    both and of the cells that differ.
    """

    words: str
    shown: Image


def difference(got: Image, golden: Image) -> Difference:
    """Compare the layouts of two pages; where one is longer, the other one has nothing."""
    from PIL import Image

    size = max(got.width, golden.width), max(got.height, golden.height)
    pair = [np.zeros((size[1], size[0], 3), np.int16) for _ in range(2)]
    for array, one in zip(pair, (got, golden), strict=True):
        array[: one.height, : one.width] = np.asarray(one)
    differs = np.abs(pair[0] - pair[1]).max(axis=2) > MOST_LEVELS
    differs |= _beyond(size, got) | _beyond(size, golden)
    marked = np.where(differs[:, :, None], (255, 0, 0), pair[0] // 3 + 160)
    shown = Image.fromarray(np.hstack([*pair[::-1], marked]).astype(np.uint8))
    words = ""
    if differs.mean() > MOST_CELLS:
        rows, columns = (np.flatnonzero(differs.any(axis=axis)) * CELL for axis in (1, 0))
        words = (
            f"{differs.mean():.2%} of the picture differs, where {MOST_CELLS:.2%} may: from pixel "
            f"({columns[0]}, {rows[0]}) to ({columns[-1] + CELL}, {rows[-1] + CELL}); the page has "
            f"{CELL * got.width} x {CELL * got.height} pixels, the golden one {CELL * golden.width} x "
            f"{CELL * golden.height}"
        )
    return Difference(words, shown.resize((4 * shown.width, 4 * shown.height), Image.Resampling.NEAREST))


def _beyond(size: tuple[int, int], one: Image) -> Any:
    """The cells of a picture of `size` that are outside of a smaller one."""
    rows, columns = np.indices(size[::-1])
    return (rows >= one.height) | (columns >= one.width)
