"""HTML fragments by which results show themselves in notebooks: a title and its state, a table, texts to
unfold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ptxgen.frames import load_template

OK: Final = "ok"
UNSURE: Final = "unsure"
WRONG: Final = "wrong"


def pretty(result: object, printer: Any, _: bool) -> None:
    """Print `str(result)` where IPython shows no HTML, in place of `repr`. Classes assign this function to
    their method `_repr_pretty_`, which IPython calls.
    """
    printer.text(str(result))


def fragment(
    title: str,
    says: str = "",
    state: str = "",
    *,
    head: Sequence[str] = (),
    rows: Iterable[Sequence[object]] = (),
    texts: Iterable[tuple[str, str, bool]] = (),
) -> str:
    """HTML of a result, whose text and background are those of the page that it is shown in.

    `says` is the result in a few words, `state` its colour: `OK`, `UNSURE`, `WRONG` or none. `head` and
    `rows` are a table, whose integers are printed with commas. `texts` are (name, text, whether it is
    unfolded). No argument is HTML: all are escaped. Empty texts are left out.
    """
    table = [[_cell(cell) for cell in row] for row in rows]
    return load_template("fragment.html.j2").render(
        title=title,
        says=says,
        state=state,
        head=[(name, n > 0 and bool(table) and table[0][n][1]) for n, name in enumerate(head)],
        rows=table,
        texts=[text for text in texts if text[1]],
    )


def _cell(cell: object) -> tuple[str, bool]:
    """The text of a cell, and whether it is a number, which is printed on the right."""
    text = f"{cell:,}" if isinstance(cell, int) else str(cell)
    return text, text.replace(",", "").replace(".", "", 1).isdigit()
