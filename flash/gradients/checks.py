"""Checks the arguments of a call for gradients: shapes, types, strides and devices."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from flash.calls.known import Known
from flash.calls.step import aligned
from flash.families.request import natural_alignment
from flash.host.caller import Caller, raise_problems
from flash.launch import varlen
from flash.launch.arguments import (
    Argument,
    device_problems,
    problems_of_shapes,
    sharing_problems,
    type_and_row_problems,
    written_problems,
)
from flash.launch.checks import Geometry, check, check_addresses
from flash.launch.operands import Operands, scale_problems
from flash.launch.shapes import PACKED, matrices
from flash.operands.dtypes import BF16, F16, F32, FP8_DTYPES, OF_ARRAYS, DType
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import ArrayView
from ptxgen.errors import LaunchError

MATRICES: Final = ("dout", "q", "k", "v", "out", "dq", "dk", "dv")
WRITTEN: Final = {"dq": "q", "dk": "k", "dv": "v"}  # the result, and the matrix whose gradient it is
_OF_ROWS: Final = ("lse", "dlse")


def written_for(config: AttentionConfig, needed: Collection[str], wanted: Collection[str]) -> tuple[str, ...]:
    """The gradients among dq, dk and dv that the kernels of a call write. `needed` are matrices among q, k
    and v, `wanted` arrays of scores, whose gradients the call returns. One kernel writes dk and dv together;
    the terms for the gradients of arrays come from the kernel of dq, or from that of dk and dv. With fp8 the
    kernels write all three.
    """
    terms = {f.gradient_of for f in config.scores if f.argument in wanted}
    if config.is_fp8:
        return tuple(WRITTEN)
    of_queries = "q" in needed or "rows" in terms
    of_keys = not {"k", "v"}.isdisjoint(needed) or "keys" in terms
    return (*(("dq",) if of_queries else ()), *(("dk", "dv") if of_keys else ()))


class Checked(NamedTuple):
    """The sizes of a call for gradients, and the most queries and keys of a packed sequence."""

    geometry: Geometry
    longest_q: int
    longest_k: int

    @property
    def has_no_scores(self) -> bool:
        """Whether there is no pair of a query and a key, so that gradients of arrays of scores are 0."""
        g = self.geometry
        return 0 in (g.batch, g.heads, self.longest_q, self.longest_k)


class Checks:
    """The checks of calls for gradients. What depends on shapes, strides, types and devices alone is checked
    once.
    """

    def __init__(self, config: AttentionConfig, caller: Caller) -> None:
        self._config = config
        self._caller = caller
        self._known = Known[Checked]()

    def check(
        self, views: Mapping[str, ArrayView], operands: Operands, layout: str, longest: tuple[object, object]
    ) -> Checked:
        """The sizes of a call. `views` are the arrays of `MATRICES`, lse, and dlse if the call has it; dq, dk
        and dv only if the caller passes them. `longest` are max_seqlen_q and max_seqlen_k.

        Raises `LaunchError` with all problems of the arrays.
        """
        config, caller = self._config, self._caller.name
        most = self._longest(operands, longest)
        arrays, of = {**views, **operands}, (layout, *most)
        try:
            checked = self._known.get(of, arrays)
        except TypeError:  # not hashable, so no valid layout: `check` refuses it
            checked = None
        problems = list(scale_problems(operands)) if config.is_fp8 else []
        sizes = checked or _sizes(config, views, operands, layout, most, self._caller)
        check_addresses(sizes.geometry, (views["q"], views["k"], views["v"]), operands, caller)
        if checked is None:
            problems += sharing_problems(WRITTEN, arrays)
        if config.varlen:
            totals = sizes.geometry.seq_q, sizes.geometry.seq_k
            problems += varlen.length_problems(operands, *totals, sizes.longest_q, sizes.longest_k)
        raise_problems(problems, caller)
        return checked or self._known.keep(of, arrays, WRITTEN, sizes)

    def _longest(self, operands: Operands, longest: tuple[object, object]) -> tuple[int | None, int | None]:
        """The most queries and keys of a packed sequence; None where sequences are not packed."""
        caller = self._caller.name
        if self._config.varlen:
            most_q = varlen.most_queries(operands, longest[0], caller)
            return most_q, varlen.most_keys(operands, longest[1], caller)
        for side, most in zip("qk", longest, strict=True):
            if most is not None:
                raise LaunchError(
                    f"{caller}: max_seqlen_{side} is given, but the config does not say varlen; use "
                    "AttentionConfig(varlen=True, ...)"
                )
        return None, None


def _sizes(
    config: AttentionConfig,
    views: Mapping[str, ArrayView],
    operands: Operands,
    layout: str,
    most: tuple[int | None, int | None],
    caller: Caller,
) -> Checked:
    """The sizes of a call. Raises `LaunchError` with all problems that depend neither on addresses nor
    on elements.
    """
    most_q, most_k = most
    geometry = check(
        config,
        views["q"],
        views["k"],
        views["v"],
        None,
        layout=layout,
        operands=operands,
        features=config.gradient_features,
        max_seqlen_q=most_q,
        caller=caller,
    )
    arguments = _arguments(config, layout, len(views["q"].shape), caller)
    problems = [
        *device_problems({**views, **operands}),
        *type_and_row_problems(arguments, views),
        *problems_of_shapes(arguments, views, {}),
        *(p for n in WRITTEN if n in views for p in written_problems(n, views[n])),
    ]
    raise_problems(problems, caller.name)
    longest_k = (most_k or 0) if config.varlen else geometry.seq_k
    return Checked(geometry, geometry.longest_q, longest_k)


def _arguments(config: AttentionConfig, layout: str, rank: int, caller: Caller) -> tuple[Argument, ...]:
    """The declarations of all arrays but those of scores, in the order in which they are checked."""
    layout = PACKED if config.varlen else layout
    declared = {a.name: a for a in matrices(config, layout, rank, caller.source_words("as q is"))}
    if config.is_fp8:
        of_out = (config.output,) if caller.has_config else (BF16, F16)
        declared["out"] = replace(declared["out"], dtypes=of_out, why="as attention of fp8 returns it")
    arguments = [declared[name] for name in ("q", "k", "v", "out")]
    for name, like in {"dout": "out", **WRITTEN}.items():
        dtypes: tuple[DType, ...] = (config.output,)
        why = f"as {like} is"
        if config.is_fp8:
            of_rows = name == "dout"
            dtypes, why = (tuple(FP8_DTYPES.values()), "") if of_rows else (dtypes, "as out is")
        arguments.append(Argument(name, declared[like].axes, dtypes, why))
    rows = {
        "bhsd": declared["q"].axes[:-1],
        "bshd": ("batch", "heads", "seq_q"),
        PACKED: ("heads", "total_q"),
    }
    arguments += [Argument(name, rows[layout], (F32,), has_rows=False, is_dense=True) for name in _OF_ROWS]
    return tuple(arguments)


def alignment(config: AttentionConfig, views: Mapping[str, ArrayView]) -> int:
    """The alignment, in bytes, of the kernels for these arrays: 16, 8, 4 or 2."""
    natural = natural_alignment(config.head_dim, config.value_dim, config.element)
    matrices = [views[name] for name in MATRICES if name in views]
    return math.gcd(natural, *[aligned(array, OF_ARRAYS[array.dtype].nbytes) for array in matrices])
