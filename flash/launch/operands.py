"""The checks of a launch's operands: arrays other than Q, K, V and O (`flash/problem/features.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from flash.host.caller import LAUNCH, Caller
from flash.launch.arguments import Argument
from flash.operands.declared import Operand
from flash.operands.dtypes import E4M3, E8M0, F32, FP8_ARRAYS, MX, NV
from flash.problem.features import ANGLES, GRADIENT_SCALE, MAX_POSITIONS, SCALES, Features
from flash.scores.features import SCORES
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import LaunchError

Operands = Mapping[str, ArrayView]

# The setting of `AttentionConfig` that asks for each operand, as a user writes it.
_SETTINGS = {
    **{feature.argument: feature.example for feature in SCORES if feature.axes},
    "cu_seqlens_q": "varlen=True",
    "cu_seqlens_k": "varlen=True",
    "seqused_q": "seqused_q=True",
    "seqused_k": "seqused_k=True",
    "block_table": "page_size=16",
    **dict.fromkeys((*SCALES, GRADIENT_SCALE), "dtype='e4m3'"),
    **dict.fromkeys(ANGLES, "rotary_dim=64"),
}


_NO_ENDS = (
    "cu_seqlens_k is given, but the keys are in pages, where seqused_k says how many each sequence has; "
    "leave out cu_seqlens_k"
)


def require_operands(features: Features, arguments: Mapping[str, object], caller: Caller = LAUNCH) -> None:
    """Raise `LaunchError` if an operand of the config is None, or an array that is none is given."""
    wanted = {operand.name for operand in features.operands}
    problems = [
        _NO_ENDS
        if name == "cu_seqlens_k" and features.page_size and array is not None
        else f"{name} must be given"
        + (f", because the config says {_setting(name)}" if caller.has_config else "")
        if array is None
        else _unasked(name, caller)
        for name, array in arguments.items()
        if (array is not None) != (name in wanted)
    ]
    if problems:
        raise LaunchError(f"{caller.name}: " + "; ".join(problems))


def _unasked(name: str, caller: Caller) -> str:
    """The problem of an operand that is given though no setting asks for it; a function takes its settings
    from arrays.
    """
    if name in (*SCALES, GRADIENT_SCALE) and not caller.has_config:
        return f"{name} is given, but q is no array of {FP8_ARRAYS}; leave it out"
    return f"{name} is given, but the config does not say so; use AttentionConfig({_setting(name)}, ...)"


def table_problems(operands: Operands, k: ArrayView) -> Iterator[str]:
    """Say that `block_table` has no columns, or that there is no page of K and V that it may name."""
    shape = list(operands["block_table"].shape)
    if 0 in k.shape:
        yield f"k must have room for a key, got shape {list(k.shape)}"
    if not shape or not shape[-1]:
        yield f"block_table must be [batch, n] with room for a page, got {shape}"


def _setting(name: str) -> str:
    """The config's setting that asks for an operand; another name is that of an array of `aux`."""
    return _SETTINGS.get(name) or f"aux={{{name.removeprefix('aux_')!r}: (type, axes)}}"


def batch_problems(operands: Operands) -> list[str]:
    """Say what is wrong with the shape of `cu_seqlens_q`, which gives the count of sequences."""
    shape = list(operands["cu_seqlens_q"].shape)
    if len(shape) == 1 and shape[0]:
        return []
    return [f"cu_seqlens_q must be [batch + 1], one more than there are sequences, got {shape}"]


def operand_problems(wanted: Iterable[Operand], operands: Operands, sizes: dict[str, int]) -> Iterator[str]:
    """Say what is wrong with types and shapes of operands; `sizes` has the length of each axis."""
    for operand in wanted:
        argument, array = Argument.of(operand), operands[operand.name]
        word = {E8M0.array_name: MX, E4M3.array_name: NV}.get(array.dtype)
        yield from argument.type_problems(array, f", or give scale_block={word!r}" if word else "")
        yield from argument.shape_problems(tuple(array.shape), sizes)
        yield from argument.row_problems(array)
        if (operand.is_whole or operand.columns) and 0 in array.shape:
            yield f"{operand.name} must have an element, got shape {list(array.shape)}"


def scale_problems(operands: Operands) -> Iterator[str]:
    """Say that a scale of fp8 is NaN or infinite, or one of e4m3 negative, of which products ignore the sign.
    Only arrays on the host are read; their types were checked. Pages may have rows of no sequence, with any
    scales, and are not read.
    """
    in_pages = SCALES[1:] if "block_table" in operands else ()
    for name in (*SCALES, GRADIENT_SCALE):
        array = operands.get(name)
        if array is None or array.device != HOST or (name in in_pages and array.dtype != F32.array_name):
            continue
        scales = host_array(array)
        if not np.isfinite(scales).all():
            yield f"{name} must hold finite numbers, got {scales[~np.isfinite(scales)][0]}"
        elif array.dtype == E4M3.array_name and (negative := np.signbit(scales)).any():
            yield f"{name} must hold numbers of 0 or more, got {scales[negative][0]}"


def operand_sizes(wanted: Iterable[Operand], sizes: Mapping[str, int]) -> dict[str, int]:
    """The lengths of arrays, such as `aux`, whose sizes Q, K and V do not give, by parameter."""
    lengths = {axis: sizes[axis] for operand in wanted if operand.is_whole for axis in operand.axes}
    if any(operand.name in ANGLES for operand in wanted):
        lengths["positions"] = min(sizes["positions"], MAX_POSITIONS)  # no query has a later position
    return lengths


def operand_strides(features: Features, operands: Operands) -> tuple[tuple[int, ...], ...]:
    """The strides of each operand's axes, in elements, 0 where it is broadcast. Shapes were checked."""
    strides = []
    for operand in features.operands:
        array = operands[operand.name]
        axes = [*zip(array.shape, array.strides, strict=True)]
        steps = [step if length > 1 else 0 for length, step in (axes[:-1] if operand.columns else axes)]
        strides.append((0,) * (len(operand.axes) - len(steps)) + tuple(steps))
    return tuple(strides)
