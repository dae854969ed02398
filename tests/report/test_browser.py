"""The page of a report in a real browser, headless: its layout at two widths and in two themes, what
pointing, clicking and the keyboard do. Screenshots are kept in the temporary folder of the run.

Small pictures of one page are compared with those in `tests/golden/`, which `pytest --update-golden`
rewrites, never under CI.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report.kernels import RACE, report_on, softmax_report
from report.layout import difference, layout_report, picture, save, style
from report.test_walk import walk_on

from ptxgen.report import compare, comparison_page, page

pytestmark = pytest.mark.slow

NARROW, WIDE, HEIGHT = 360, 1400, 900
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb"),
)
CODES = {"Tab": {"windowsVirtualKeyCode": 9}}  # the browser itself acts on this key
Shown = Callable[..., Any]


@pytest.fixture(scope="module")
def driver(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = browser.ChromeOptions()
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = browser.ChromeService(shutil.which("chromedriver"))
    built = browser.Chrome(options=options, service=service)
    built.set_page_load_timeout(60)
    yield built
    built.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    result = {"softmax": softmax_report(), "race": report_on(RACE), "layout": layout_report()}
    result["walk"] = replace(report_on(RACE), walk=walk_on(RACE, 40))
    texts = {name: page(report) for name, report in result.items()}
    texts["comparison"] = comparison_page(compare(softmax_report(), report_on(RACE)))
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture
def shown(driver: Any, pages: dict[str, Path]) -> Shown:
    """Loads a page at a width and in a theme of the system."""

    def load(
        name: str, width: int = WIDE, theme: str = "light", *, motion: str = "reduce", scale: int = 1
    ) -> Any:
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": scale, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get("about:blank")
        driver.get(pages[name].as_uri())
        return driver

    return load


def boxes(driver: Any, selector: str) -> list[dict[str, float]]:
    result: list[dict[str, float]] = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => {"
        "const box = one.getBoundingClientRect();"
        "return {left: box.left, right: box.right, top: box.top + scrollY, bottom: box.bottom + scrollY}; })",
        selector,
    )
    return result


def marked(driver: Any) -> dict[str, list[str]]:
    """The texts of the marked lines of each listing."""
    result: dict[str, list[str]] = driver.execute_script(
        "const found = {}; for (const pane of document.querySelectorAll('.pane'))"
        "found[pane.querySelector('h3').firstChild.textContent.trim()] ="
        "[...pane.querySelectorAll('.hot, .exact')]"
        ".map((one) => [...one.childNodes].filter((node) => !/^[UA]$/.test(node.nodeName))"
        ".map((node) => node.textContent).join('').trim());"
        "return found"
    )
    return result


def point_at(driver: Any, selector: str) -> None:
    location = driver.execute_script(
        "const row = document.querySelector(arguments[0]); row.scrollIntoView({block: 'center'});"
        "const box = row.getBoundingClientRect();"
        "return {x: box.left + 20, y: box.top + box.height / 2}",
        selector,
    )
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **location})


def press(driver: Any, *keys: str) -> None:
    for key in keys:
        for type in ("keyDown", "keyUp"):
            driver.execute_cdp_cmd(
                "Input.dispatchKeyEvent", {"type": type, "key": key, "code": key, **CODES.get(key, {})}
            )


LAYOUTS = [(width, theme) for width in (NARROW, WIDE) for theme in ("light", "dark")]


@pytest.mark.parametrize("name", ["softmax", "walk", "comparison"])
@pytest.mark.parametrize(("width", "theme"), LAYOUTS)
def test_the_layout_fits_the_screen(
    shown: Shown, name: str, width: int, theme: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    driver = shown(name, width, theme)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    # Everything that is not in a box that scrolls lies on the screen.
    outside = driver.execute_script(
        "return [...document.querySelectorAll('body *')].filter((one) =>"
        "!one.closest('.scroll, .rows, nav ul, .skip, #said') &&"
        "one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert outside == []
    for selector in ("main > section", ".tiles > li", ".pane"):
        result = boxes(driver, selector)
        for n, one in enumerate(result):
            assert one["right"] > one["left"]
            assert one["bottom"] > one["top"]
            for other in result[n + 1 :]:
                apart = one["bottom"] <= other["top"] + 0.5 or other["bottom"] <= one["top"] + 0.5
                beside = one["right"] <= other["left"] + 0.5 or other["right"] <= one["left"] + 0.5
                assert apart or beside, selector
    logs = [entry["message"] for entry in driver.get_log("browser")]
    assert logs == []
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
    picture = base64.b64decode(taken["data"])
    assert picture.startswith(b"\x89PNG")
    folder = tmp_path_factory.getbasetemp()
    (folder / f"report-{name}-{width}-{theme}.png").write_bytes(picture)


def test_listings_are_side_by_side_on_a_wide_screen_and_stacked_on_a_narrow_one(shown: Shown) -> None:
    wide = boxes(shown("softmax", WIDE), ".pane")
    assert len(wide) == 3
    assert len({one["top"] for one in wide}) == 1
    assert [one["left"] for one in wide] == sorted(one["left"] for one in wide)
    narrow = boxes(shown("softmax", NARROW), ".pane")
    assert len({one["left"] for one in narrow}) == 1
    assert all(a["bottom"] <= b["top"] for a, b in pairwise(narrow))


CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) =>
  .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
const over = (under, c) => {
  const alpha = c.length > 3 ? c[3] : 1;
  return under.map((v, n) => alpha * c[n] + (1 - alpha) * v);
};
const behind = (one) => {
  const all = [];
  for (; one; one = one.parentElement) all.unshift(parse(getComputedStyle(one).backgroundColor));
  return all.reduce(over, [255, 255, 255]);
};
const found = [];
for (const one of document.querySelectorAll('body *')) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || one.closest('.skip, svg, #said, script')) continue;
  const [a, b] = [luminance(parse(getComputedStyle(one).color)), luminance(behind(one))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) found.push([ratio.toFixed(2), one.tagName, one.className, one.textContent.slice(0, 30)]);
}
return found;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["softmax", "walk", "comparison"])
def test_text_has_the_contrast_of_wcag_aa(shown: Shown, name: str, theme: str) -> None:
    driver = shown(name, WIDE, theme)
    assert driver.execute_script(CONTRAST) == []
    # Also while lines are marked.
    driver.execute_script("document.querySelector('.ptx .k > p:nth-last-child(4)')?.click()")
    assert driver.execute_script(CONTRAST) == []


def test_pointing_at_a_line_marks_its_source_in_all_listings(shown: Shown) -> None:
    driver = shown("softmax")
    result = next(line for line in softmax_report().ptx if "ex2.approx" in line.text)
    point_at(driver, f"#p{result.number}")
    lines = marked(driver)
    assert lines["Python"] == ["total.set(total + k.exp(x[i]))"]
    same = [line.text.strip() for line in softmax_report().ptx if line.source == result.source]
    assert lines["PTX"] == same
    code = softmax_report().code
    if code is not None and code.rows:
        sources = {line.number: line.source for line in softmax_report().ptx}
        wanted = [row.text for row in code.rows if sources.get(row.line) == result.source]
        assert lines["Machine code"] == wanted
        assert any("MUFU.EX2" in row for row in wanted)


def test_the_exact_line_stands_out_among_those_of_its_source(shown: Shown) -> None:
    driver = shown("softmax")
    result = next(line for line in softmax_report().ptx if "ex2.approx" in line.text)
    point_at(driver, f"#p{result.number}")
    script = "return [...document.querySelectorAll('.ptx .exact')].map((one) => one.id)"
    assert driver.execute_script(script) == [f"p{result.number}"]


def test_a_click_keeps_a_line_and_another_lets_it_go(shown: Shown) -> None:
    driver = shown("softmax")
    lines = [line.number for line in softmax_report().ptx if line.kind == "instruction"]
    click = "document.getElementById(arguments[0]).click()"
    driver.execute_script(click, f"p{lines[3]}")
    before = marked(driver)
    chosen = "return [...document.querySelectorAll('[aria-selected=true]')].map((one) => one.id)"
    assert driver.execute_script(chosen) == [f"p{lines[3]}"]
    point_at(driver, f"#p{lines[40]}")
    assert marked(driver) == before
    driver.execute_script(click, f"p{lines[3]}")
    point_at(driver, f"#p{lines[40]}")
    assert marked(driver) != before
    assert driver.execute_script(chosen) == []


ACTIVE = "return [document.activeElement.id, document.activeElement.closest('.pane')?.querySelector('h3').id]"


def test_the_keyboard_moves_in_and_between_listings(shown: Shown) -> None:
    driver = shown("softmax")
    first = driver.execute_script(
        "const row = document.querySelector('.ptx .k > p'); row.focus(); return row.id"
    )
    assert first == "p1"
    press(driver, "ArrowDown", "ArrowDown")
    assert driver.execute_script(ACTIVE) == ["p3", "ptx-h"]
    press(driver, "End")
    assert driver.execute_script(ACTIVE)[0] == f"p{len(softmax_report().ptx)}"
    result = next(line for line in softmax_report().ptx if "ex2.approx" in line.text)
    driver.execute_script(f"document.getElementById('p{result.number}').click()")
    press(driver, "ArrowLeft")
    assert driver.execute_script(ACTIVE) == [f"y{result.source}", "source-h"]
    # One stop of the Tab key in each listing.
    stops = driver.execute_script(
        "return [...document.querySelectorAll('.rows')]"
        ".map((one) => one.querySelectorAll('[tabindex=\"0\"]').length)"
    )
    assert set(stops) <= {0, 1}
    press(driver, "Escape")
    assert driver.execute_script("return document.getElementById('said').textContent") == "Nothing is marked."


def test_the_tab_key_reaches_the_skip_links_first(shown: Shown) -> None:
    driver = shown("softmax")
    press(driver, "Tab")
    assert driver.execute_script("return document.activeElement.textContent") == "Skip to the listings"
    box = driver.execute_script("return document.activeElement.getBoundingClientRect().left")
    assert box >= 0


def test_a_link_of_a_finding_shows_its_line(shown: Shown) -> None:
    driver = shown("race")
    line = next(f.line for f in report_on(RACE).findings if f.line)
    driver.execute_script(f"document.querySelector('#findings a[href=\"#p{line}\"]').click()")
    seen = driver.execute_script(
        "const row = document.getElementById(arguments[0]).getBoundingClientRect(),"
        " box = document.getElementById(arguments[0]).closest('.rows').getBoundingClientRect();"
        "return row.top >= box.top && row.bottom <= box.bottom && document.activeElement.id",
        f"p{line}",
    )
    assert seen == f"p{line}"


def test_a_search_goes_from_line_to_line_of_all_listings(shown: Shown) -> None:
    driver = shown("softmax")
    press(driver, "/")
    assert driver.execute_script("return document.activeElement.id") == "find"
    driver.execute_script(
        "const find = document.activeElement; find.value = 'EX2.approx';"
        "find.dispatchEvent(new Event('input'))"
    )
    lines = [f"p{line.number}" for line in softmax_report().ptx if "ex2.approx" in line.text]
    pinned = "return [...document.querySelectorAll('[aria-selected=true]')].map((one) => one.id)"
    for at, line in enumerate([*lines, lines[0]]):
        assert driver.execute_script(pinned) == [line]
        words = f"{at % len(lines) + 1} of {len(lines)}"
        assert driver.execute_script("return document.getElementById('found').textContent") == words
        press(driver, "Enter")
    press(driver, "Escape")
    assert driver.execute_script("return document.querySelectorAll('.hit').length") == 0


TIP = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText"


def test_an_opcode_is_explained_to_the_pointer_and_to_the_keyboard(shown: Shown) -> None:
    driver = shown("race")
    line = next(f.line for f in report_on(RACE).findings if f.line)
    assert driver.execute_script(TIP) == ""
    driver.execute_script(f"document.getElementById('p{line - 1}').click()")
    press(driver, "ArrowDown")
    words = driver.execute_script(TIP)
    for part in ("ld.shared.u32", "Needs PTX 1.0, sm_10", "variable, awaited by a scoreboard", "error: "):
        assert part in words
    assert driver.execute_script("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    press(driver, "Escape")
    assert driver.execute_script(TIP) == ""
    box = driver.execute_script(
        f"const opcode = document.querySelector('#p{line} b'); opcode.scrollIntoView({{block: 'center'}});"
        "const box = opcode.getBoundingClientRect();"
        "return [box.x + 9, box.y + 9]"
    )
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": box[0], "y": box[1]})
    assert driver.execute_script(TIP) == words
    press(driver, "f")
    assert driver.execute_script("return location.hash") == "#f1"


def test_a_listing_can_be_hidden_but_not_the_last_one(shown: Shown) -> None:
    driver = shown("layout")
    script = "document.querySelectorAll('.shows button')[arguments[0]].click()"
    width = boxes(driver, ".ptx")[0]["right"] - boxes(driver, ".ptx")[0]["left"]
    for button in (2, 0, 1):
        driver.execute_script(script, button)
    assert driver.execute_script(
        "return [...document.querySelectorAll('.pane')].map((one) => one.hidden)"
    ) == [True, False, True]
    assert boxes(driver, ".ptx")[0]["right"] - boxes(driver, ".ptx")[0]["left"] > 2 * width


def test_a_walk_goes_forth_and_back_and_lights_its_lines_up(shown: Shown) -> None:
    driver = shown("walk")
    text = "return document.getElementById(arguments[0]).innerText"
    assert driver.execute_script(text, "walk-step").startswith("Step 1 of 12: line ")
    lines = RACE.splitlines()
    store = next(n for n, line in enumerate(lines, 1) if "st.shared" in line)
    load = next(n for n, line in enumerate(lines, 1) if "ld.shared" in line)
    steps = walk_on(RACE, 40).steps
    while f"line {store}," not in driver.execute_script(text, "walk-step"):
        press(driver, "]")
    assert driver.execute_script("return document.querySelector('[aria-selected=true]').id") == f"p{store}"
    table = driver.execute_script(text, "walk-warp").splitlines()
    rows = {name: values for name, *values in (row.split() for row in table)}
    assert rows["%r0"] == [str(n) for n in range(32, 64)]
    assert rows["%r2"] == [str(128 * n) for n in range(32, 64)]
    registers = driver.execute_script(text, "walk-all").split()
    assert registers[registers.index("%r0") + 1] == "40"
    press(driver, "]")
    assert "word" in driver.execute_script(text, "walk-shared-note")
    assert ["128", "0x00000001", "1e-45"] in [
        row.split() for row in driver.execute_script(text, "walk-shared").splitlines()
    ]
    # The report comes with the step after the load; its button, and the one back, go there and before it.
    reports = "return document.querySelectorAll('#walk-reports li').length"
    driver.execute_script(f"document.getElementById('p{load}').click()")
    driver.execute_script("document.getElementById('walk-line').click()")
    assert f"line {load}," in driver.execute_script(text, "walk-step")
    assert driver.execute_script(reports) == 0
    driver.execute_script("document.getElementById('walk-on').click()")
    assert driver.execute_script(reports) == sum(len(step.reports) for step in steps)
    assert "race" in driver.execute_script(text, "walk-reports")
    press(driver, "[", "[")
    assert driver.execute_script(reports) == 0
    assert driver.execute_script("return document.getElementById('walk-none').hidden") is False


def test_the_button_changes_the_theme(shown: Shown) -> None:
    driver = shown("softmax", WIDE, "light")
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = driver.execute_script(colour)
    driver.execute_script("document.getElementById('theme').click()")
    dark = driver.execute_script(colour)
    assert dark != light
    assert driver.execute_script("return document.getElementById('theme').getAttribute('aria-label')") == (
        "Use light colours"
    )
    driver.execute_script("document.getElementById('theme').click(); localStorage.clear()")
    assert driver.execute_script(colour) == light


def test_motion_is_reduced_if_the_reader_asks(shown: Shown) -> None:
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert shown("softmax", motion="reduce").execute_script(behaviour) == "auto"
    assert shown("softmax", motion="no-preference").execute_script(behaviour) == "smooth"


# ---------------------------------------------------------------------------- pictures of the layout

GOLDEN = Path(__file__).parents[1] / "golden"
# The font is of the test's own, so it has to be there before the picture is taken. Heights that depend on
# the window's are fixed, because a picture of the whole page is taken in a larger window.
PREPARE = """
const done = arguments[1];
document.head.append(Object.assign(document.createElement('style'), {textContent: arguments[0]}));
document.fonts.load('16px Bars').then((fonts) => {
  for (const one of document.querySelectorAll('.rows')) one.style.maxHeight = getComputedStyle(one).maxHeight;
  done(fonts.length);
}, (error) => done(String(error)));
"""


def golden(width: int, theme: str) -> Path:
    return GOLDEN / f"report-{width}-{theme}.png"


def laid_out(shown: Shown, driver: Any, width: int, theme: str = "light", *, scale: int = 1) -> Any:
    """The driver with the page whose layout is known, its text as bars."""
    # The page allows no fonts but the system's.
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    try:
        shown("layout", width, theme, scale=scale)
    finally:
        driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    characters = "".join(sorted(set(driver.execute_script("return document.body.textContent"))))
    assert driver.execute_async_script(PREPARE, style(characters)) == 1
    return driver


def golden_picture(width: int, theme: str = "light") -> Any:
    from PIL import Image

    path = golden(width, theme)
    assert path.exists(), f"no {path.name}: run pytest --update-golden"
    with Image.open(path) as result:
        return result.convert("RGB")


@pytest.mark.parametrize(("width", "theme"), LAYOUTS)
def test_the_layout_is_the_golden_one(
    shown: Shown, driver: Any, width: int, theme: str, update_golden: bool, tmp_path: Path
) -> None:
    got = picture(laid_out(shown, driver, width, theme))
    if update_golden:
        save(got, golden(width, theme))
    result = difference(got, golden_picture(width, theme))
    where = tmp_path / f"{golden(width, theme).stem}-difference.png"
    if result.words:
        result.shown.save(where)
    assert result.words == "", (
        f"{result.words}; {where} shows the golden layout, this one, and where they differ"
    )


# Changes of the style that spoil the layout, each with the width at which it does.
SPOILED = {
    "a listing covers the next one": (WIDE, ".pane.ptx { margin-right: -120px; }"),
    "listings are stacked on a wide screen": (WIDE, ".panes { grid-template-columns: 1fr !important; }"),
    "a chart is missing": (WIDE, "#shared svg { visibility: hidden; }"),
    "a chart has no colours": (WIDE, "#mix svg rect { visibility: hidden; }"),
    "margins are larger": (WIDE, "section { margin: 26px 0; }"),
    "the inside of a section moves by 8 pixels": (WIDE, "#limits > * { transform: translateX(8px); }"),
    "three columns of figures on a narrow screen": (
        NARROW,
        ".tiles { grid-template-columns: repeat(3, minmax(0, 1fr)) !important; }",
    ),
    "the page is wider than a narrow screen": (NARROW, "main { width: 500px; }"),
    "text is larger": (NARROW, ".note { font-size: 17px !important; }"),
    "a table does not scroll": (NARROW, ".scroll { overflow: visible; }"),
    "the head covers the page": (NARROW, "header { margin-bottom: -80px; }"),
}


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_spoiled_layout_differs_from_the_golden_one(shown: Shown, driver: Any, width: int) -> None:
    laid_out(shown, driver, width)
    wanted = golden_picture(width)
    driver.execute_script("document.head.append(document.createElement('style'))")
    change = "document.querySelector('head > style:last-of-type').textContent = arguments[0]"
    same = []
    for name, (at, rules) in SPOILED.items():
        if at == width:
            driver.execute_script(change, rules)
            if not difference(picture(driver), wanted).words:
                same.append(name)
    assert same == []
    driver.execute_script(change, "")
    assert difference(picture(driver), wanted).words == ""


# Stand for other machines: another font for letters, and a screen with finer pixels.
@pytest.mark.parametrize("scale", [1, 2])
def test_the_fonts_and_the_screen_of_a_machine_do_not_change_the_layout(
    shown: Shown, driver: Any, scale: int
) -> None:
    laid_out(shown, driver, NARROW, scale=scale)
    driver.execute_script(
        "document.documentElement.style.font = document.body.style.font = '15px/1.5 \"DejaVu Serif\", serif'"
    )
    assert difference(picture(driver, scale), golden_picture(NARROW)).words == ""
