"""The table of all public kernels."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tools.public.bitsandbytes import BITSANDBYTES
from tools.public.bitsandbytes_triton import BITSANDBYTES_TRITON
from tools.public.cub import CUB
from tools.public.fla import FLA
from tools.public.flag_gems import FLAG_GEMS
from tools.public.flashinfer import FLASHINFER
from tools.public.ggml import GGML
from tools.public.liger import LIGER
from tools.public.llm_c import LLM_C
from tools.public.numba_examples import NUMBA
from tools.public.rows import RIGHT, VERDICTS, Row, Source

SOURCES: Final = (
    *(LIGER, FLAG_GEMS, FLA, BITSANDBYTES_TRITON, NUMBA, CUB),
    *(GGML, BITSANDBYTES, FLASHINFER, LLM_C),
)
ROWS: Final = tuple(row for source in SOURCES for row in source.rows)


def packages() -> list[str]:
    """What to install for the sources that are packages, besides PyTorch and the front ends."""
    pinned = [source for source in SOURCES if "==" in source.package]
    return [name for source in pinned for name in (source.package, *source.needs)]


def page() -> str:
    """The part of the documentation about these kernels, in Markdown."""
    kernels = [row for row in ROWS if not row.twin]
    counts = Counter(row.expected for row in kernels)
    wrong = len(ROWS) - len(kernels)
    counted = ", ".join(f"{counts[kind]} {kind}" for kind in VERDICTS if counts[kind])
    lines = [
        f"{len(kernels)} kernels: {counted}. {wrong} more are made wrong on purpose, and all are reported.",
        "",
        "| source | right |",
        "|---|---|",
        *map(_right, SOURCES),
        "",
        "| not right | why |",
        "|---|---|",
        *(_other(row) for row in ROWS if row.expected != RIGHT),
    ]
    return "\n".join(lines) + "\n"


def _right(source: Source) -> str:
    names = ", ".join(f"`{row.name}`" for row in source.rows if row.expected == RIGHT)
    version = source.package.partition("==")[2] or source.version
    return f"| {source.name}{f' ({version})' if version else ''} | {names} |"


def _other(row: Row) -> str:
    what = "made wrong, reported" if row.twin else row.expected
    return f"| {row.source.name}, `{row.name}`: {what} | {row.reason} |"
