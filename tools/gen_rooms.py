"""Write the table of folders in `docs/architecture.md`, from the folders' docstrings, or check that it is up
to date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptxgen.commands.parts.quiet import quietly
from tools.commands.generated_file import write_or_check

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "architecture.md"
_HEADS: Final = "| folder | what it holds |\n|---|---|\n"
_TOP: Final = ("ptxgen", "templates", "flash", "benchmarks", "tools")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_rooms.py", __doc__, PAGE, "the docstrings of the folders say", render)


def render() -> str:
    """The page, with a row for each folder of Python modules and for each module at the top of a package.

    Raises ValueError for a page without the table, and for a folder or module without a docstring.
    """
    before, heads, rest = PAGE.read_text(encoding="utf-8").partition(_HEADS)
    if not heads:
        raise ValueError(f"{PAGE.name}: no table begins with {_HEADS.splitlines()[0]!r}")
    after = dropwhile(lambda line: line.startswith("|"), rest.splitlines(keepends=True))
    return "".join((before, heads, *_rows(), *after))


def _rows() -> Iterator[str]:
    for top in _TOP:
        for init in sorted((ROOT / top).rglob("__init__.py"), key=lambda init: init.parent.parts):
            folder = init.parent.relative_to(ROOT)
            yield f"| `{folder.as_posix()}/` | {_sentences(init)} |\n"
            if folder.as_posix() in ("ptxgen", "flash"):
                for module in sorted(init.parent.glob("*.py")):
                    if not module.stem.startswith("__"):
                        yield f"| `{module.relative_to(ROOT).as_posix()}` | {_sentences(module)} |\n"


def _sentences(module: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if docstring is None:
        raise ValueError(f"{module.relative_to(ROOT)}: a docstring must explain it")
    return " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(quietly(main))
