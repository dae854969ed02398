"""Write the table of public kernels in `docs/other-languages.md`, or check that it is up to date. The
verdicts are those that `tools/public_kernels.py` and the nightly tests expect.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptxgen.commands.parts.quiet import quietly
from tools.commands.generated_file import write_or_check
from tools.public.table import page

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "other-languages.md"
_BEGIN, _END = "<!-- public kernels -->\n", "<!-- end of public kernels -->\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_public_kernels.py", __doc__, PAGE, "the table says", render)


def render() -> str:
    """The page with the table as it is now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{page()}\n{_END}{after}"


if __name__ == "__main__":
    sys.exit(quietly(main))
