"""The checks of a launch: they derive from the caller's arrays sizes and strides that a kernel may
rely on.

Nothing here queries a device. All problems of a call are reported at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from flash.device.cta_order import heads_per_section
from flash.families.request import natural_alignment
from flash.host.caller import LAUNCH, Caller, raise_problems
from flash.launch.arguments import (
    Argument,
    address_problems,
    device_problems,
    heads_problems,
    out_problems,
    sharing_problems,
)
from flash.launch.operands import (
    Operands,
    batch_problems,
    operand_problems,
    operand_sizes,
    operand_strides,
    table_problems,
)
from flash.launch.shapes import LAYOUTS, PACKED, joined, matrices, rank_problems, split
from flash.operands.dtypes import DTYPES, OF_ARRAYS
from flash.problem.config import ALIGNMENTS, AttentionConfig
from flash.problem.features import Features
from flash.problem.kernel_config import KernelConfig
from flash.problem.limits import MAX_CTAS, max_seq
from flash.problem.outputs import Output
from flash.scores.options import SCALES, is_scale
from ptxgen.arguments import integer, is_one_of
from ptxgen.arrays import overlap
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import ArrayView
from ptxgen.errors import LaunchError, did_you_mean, shown

if TYPE_CHECKING:
    from ptxgen.runtime.cuda_driver import DeviceProperties


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity, as a dict key
class Geometry:
    """The sizes and strides of a checked call, without addresses, so that repeated calls share it.

    `strides` holds the batch, head and row strides of Q, K, V and O, in elements, zero for a
    dimension with one element or none; `operand_strides` holds the strides of each operand's axes,
    `operand_sizes` the lengths of those that have sizes of their own, by parameter.
    `stride_alignment` is the largest of 16, 8, 4 and 2 bytes that divides all of `strides`. `reach`
    holds, for each of Q, K, V and O, two byte offsets from its pointer: of its first byte, and of
    the byte after its last one. Shapes are in the caller's layout. `nbytes` is the size of an
    element of Q, K and V, `natural_alignment` the most bytes that their row lengths let a kernel
    access at once. For packed sequences seq_q and seq_k are the total rows of all sequences, and
    `max_seqlen_q` is the most queries of one sequence; otherwise `max_seqlen_q` is None. If K and V
    are in `pages` pages, their strides are those of page, head and row, and seq_k is the number of
    rows that `block_table` has room for in each sequence.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    strides: tuple[tuple[int, int, int], ...]
    stride_alignment: int
    reach: tuple[tuple[int, int], ...]
    out_shape: tuple[int, ...]
    unbatched: bool  # whether arrays have no axis of batches, though sequences are not packed
    nbytes: int
    natural_alignment: int
    operand_strides: tuple[tuple[int, ...], ...] = ()
    operand_sizes: tuple[tuple[str, int], ...] = ()
    max_seqlen_q: int | None = None
    pages: int = 0  # 0 if K and V are not in pages

    @property
    def group(self) -> int:
        """The number of query heads that share a key/value head."""
        return self.heads // self.kv_heads if self.kv_heads else 1

    def shape_of(self, output: Output) -> tuple[int, ...]:
        """The shape of the array of an output other than O, such as LSE."""
        packed = self.max_seqlen_q is not None
        shape = output.shape(self.batch, self.heads, self.seq_q, packed=packed)
        return shape[1:] if self.unbatched else shape

    @property
    def packed_rows(self) -> int:
        """The number of queries of all heads that share a key/value head; of packed sequences,
        those of the longest one.
        """
        return self.longest_q * self.group

    @property
    def is_empty(self) -> bool:
        """Whether the output has no rows, so that nothing needs to run."""
        return 0 in (self.batch, self.heads, self.seq_q, self.longest_q)

    @property
    def longest_q(self) -> int:
        """The number of queries of the longest sequence."""
        return self.seq_q if self.max_seqlen_q is None else self.max_seqlen_q


def check(
    config: AttentionConfig,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    out: ArrayView | None,
    *,
    layout: str = "bhsd",
    operands: Operands = MappingProxyType({}),
    features: Features | None = None,
    max_seqlen_q: int | None = None,
    caller: Caller = LAUNCH,
) -> Geometry:
    """The geometry of a call; without `out`, the output is taken to be dense. Shapes are as in
    `AttentionKernel.launch`. `operands` are the arrays of `features`, by default the config's, `max_seqlen_q`
    is the most queries of a packed sequence.

    Raises `LaunchError` with every problem that depends neither on addresses nor on the device.
    """
    if not is_one_of(layout, LAYOUTS):
        raise LaunchError(
            f"{caller.name}: layout must be one of {', '.join(LAYOUTS)}, got "
            f"{shown(layout)}{did_you_mean(layout, LAYOUTS)}"
        )
    layout, of_pages = _layouts_of(config, layout)
    arrays = {"q": q, "k": k, "v": v} | ({"out": out} if out is not None else {})
    declared = matrices(config, layout, len(q.shape), caller.source_words("as q is"), of_pages)
    problems = list(_type_problems(declared, arrays, caller))
    problems += [p for one in declared if one.name in arrays for p in one.row_problems(arrays[one.name])]
    problems += device_problems({**arrays, **operands})
    ranks = list(rank_problems(q.shape, layout))
    if not ranks:
        ranks = list(_shape_problems(config, declared, arrays, layout, caller))
    if config.varlen:
        ranks += batch_problems(operands)
    if of_pages:
        ranks += table_problems(operands, k)
    if ranks:
        raise_problems(problems + ranks, caller.name)
    geometry = _geometry(config, q, k, v, out, layout, of_pages)
    if config.varlen:
        batch = operands["cu_seqlens_q"].size - 1
        geometry = replace(geometry, batch=batch, max_seqlen_q=max_seqlen_q or 0)
    if of_pages:
        room = operands["block_table"].shape[-1] * (config.page_size or 0)
        geometry = replace(geometry, seq_k=room, pages=k.shape[0])
    problems += out_problems(out, geometry.out_shape)
    problems += _size_problems(geometry, max_seq(config.features))
    if not operands:
        raise_problems(problems, caller.name)
        return geometry
    features = features or config.features
    sizes = sizes_of(geometry, features)
    if of_pages:
        sizes["table_columns"] = operands["block_table"].shape[-1]
    sizes |= {operand.last: operand.columns for operand in features.operands if operand.columns}
    problems += operand_problems(features.operands, operands, sizes)
    raise_problems(problems, caller.name)
    own_sizes = operand_sizes(features.operands, sizes)
    own_sizes |= {name: sizes[name] for name in features.scale_blocks}
    return replace(
        geometry, operand_strides=operand_strides(features, operands), operand_sizes=tuple(own_sizes.items())
    )


def sizes_of(geometry: Geometry, features: Features) -> dict[str, int]:
    """The lengths of the axes of operands of a kernel with `features`, by their names, as far as they follow
    from Q, K and V.
    """
    sizes = {axis: getattr(geometry, axis) for axis in ("batch", "heads", "kv_heads", "pages")}
    sizes |= zip(features.row_counts, (geometry.seq_q, geometry.seq_k), strict=True)
    sizes |= {axis: int(axis) for one in features.operands for axis in one.axes if axis.isdigit()}
    return sizes | features.counts_of_scales(sizes)


def _layouts_of(config: AttentionConfig, layout: str) -> tuple[str, str]:
    """The layout of Q and O, and of K and V that are not in pages; and the layout of pages, empty if there
    are none. Packed sequences allow only `PACKED`; `layout` is then that of pages.
    """
    if not config.varlen:
        return layout, ""
    if config.page_size is not None:
        return PACKED, layout
    if layout != LAYOUTS[0]:
        raise LaunchError(
            f"launch: layout is for batches of one length, got {shown(layout)}, but with varlen q, k "
            "and v are [total, heads, dim]; leave out the layout"
        )
    return PACKED, ""


def check_addresses(
    geometry: Geometry,
    arrays: tuple[ArrayView, ...],
    operands: Operands = MappingProxyType({}),
    caller: str = LAUNCH.name,
) -> None:
    """Refuse null and misaligned pointers, and an output that shares memory with an input.

    `arrays` are q, k, v and, if the caller passed it, out. Raises `LaunchError` with all problems.
    """
    problems: list[str] = []
    for name, array in zip(("q", "k", "v", "out"), arrays, strict=False):
        if not array.pointer or array.pointer % geometry.nbytes:
            problems += address_problems(name, array, geometry.nbytes)
    for name, array in operands.items():
        problems += address_problems(name, array, OF_ARRAYS[array.dtype].nbytes)
    if len(arrays) > 3 and not problems:
        out, (low, high) = arrays[3], geometry.reach[3]
        near = {
            name: array
            for name, array, (first, end) in zip("qkv", arrays, geometry.reach, strict=False)
            if array.pointer + end > out.pointer + low and out.pointer + high > array.pointer + first
        }
        if near or operands:
            problems += sharing_problems(("out",), {"out": out, **near, **operands})
    if problems:
        raise_problems(problems, caller)


def alignment(config: AttentionConfig, geometry: Geometry, *pointers: int) -> int:
    """The alignment, in bytes, of the kernel variant for these pointers: 16, 8, 4 or 2.

    Raises `LaunchError` if the config promises a larger alignment than the arrays have.
    """
    merged = geometry.stride_alignment
    for pointer in pointers:
        merged |= pointer
    aligned = math.gcd(ALIGNMENTS[0], merged)
    if config.alignment == "auto":
        return min(aligned, geometry.natural_alignment)
    if aligned % int(config.alignment):
        raise LaunchError(
            "launch: the config promises pointers and strides that are multiples of "
            f"{config.alignment} bytes, these are multiples of {aligned}; use alignment='auto'"
        )
    return int(config.alignment)


def scale(config: AttentionConfig, softmax_scale: object, caller: Caller = LAUNCH) -> float:
    """The call's softmax_scale, else the config's. Raises `LaunchError` for an invalid scale."""
    if softmax_scale is None:
        return config.scale
    if not is_scale(softmax_scale):
        usual = f"the config's {config.scale:g}" if caller.has_config else "1/sqrt(head_dim)"
        raise LaunchError(
            f"{caller.name}: softmax_scale must be {SCALES}, or None for {usual}, got {shown(softmax_scale)}"
        )
    return float(softmax_scale)  # type: ignore[arg-type]  # is_scale has checked that it is a number


def seed(config: AttentionConfig, dropout_seed: object, caller: Caller = LAUNCH) -> int:
    """The dropout seed of a call. Raises `LaunchError` for an invalid seed, or any if dropout is 0."""
    if not config.dropout:
        has_not, cure = "dropout is 0", "dropout=0.1"
        if caller.has_config:
            has_not, cure = "the config has no dropout", f"AttentionConfig({cure}, ...)"
        raise LaunchError(f"{caller.name}: dropout_seed is given, but {has_not}; use {cure}")
    number = integer(dropout_seed, 0, (1 << 64) - 1)
    if number is not None:
        return number
    has = "the config has " if caller.has_config else ""
    raise LaunchError(
        f"{caller.name}: dropout_seed must be an integer from 0 to 2**64 - 1, because "
        f"{has}dropout={config.dropout:g}, got {shown(dropout_seed)}"
    )


def _type_problems(
    declared: tuple[Argument, ...], arrays: dict[str, ArrayView], caller: Caller
) -> Iterator[str]:
    dtypes = {array.dtype for array in arrays.values()}
    other = OF_ARRAYS.get(dtypes.pop()) if len(dtypes) == 1 else None
    # If all arrays have one dtype, the config may be wrong: the message then names both cures.
    fits = other is not None and other.name in DTYPES
    or_else = caller.or_use(f"dtype={other.name!r}") if other and fits else ""
    for argument in declared:
        if argument.name in arrays:
            yield from argument.type_problems(arrays[argument.name], or_else)


def _shape_problems(
    config: AttentionConfig,
    declared: tuple[Argument, ...],
    arrays: dict[str, ArrayView],
    layout: str,
    caller: Caller,
) -> Iterator[str]:
    """Say what is wrong with the shapes of q, k and v; q has a number of dimensions that it may
    have.
    """
    wanted = {"head_dim": config.head_dim, "head_dim_v": config.value_dim}
    if (mx := config.features.mx) is not None:
        wanted[mx.of_scores] = config.head_dim // mx.format.in_byte
    sizes = wanted | ({} if config.page_size is None else {"page_size": config.page_size})
    for argument in declared:
        if argument.name == "out":
            continue  # `out_problems` checks it
        shape, columns = tuple(arrays[argument.name].shape), argument.axes[-1]
        for problem in argument.shape_problems(shape, sizes):
            is_other = caller.has_config and len(shape) == len(argument.axes) and shape[-1] != wanted[columns]
            field, _, in_byte = columns.partition(" / ")
            columns_asked = shape[-1] * int(in_byte or 1) if is_other else 0
            cure = f"; use AttentionConfig({field}={columns_asked}, ...)" if is_other else ""
            yield f"{problem}{cure}"
    heads, kv_heads = (
        next((n for axis, n in sizes.items() if axis.endswith(of)), 1) for of in ("heads", "kv_heads")
    )
    shapes = f" (layout {layout!r}, shapes {list(arrays['q'].shape)} and {list(arrays['k'].shape)})"
    yield from heads_problems(heads, kv_heads, "k and v", shapes)


def _geometry(
    config: AttentionConfig,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    out: ArrayView | None,
    layout: str,
    of_pages: str,
) -> Geometry:
    of_keys = of_pages or layout
    batch, heads, seq_q, _ = split(q.shape, layout, 1)
    _, kv_heads, seq_k, _ = split(k.shape, of_keys, 1)
    rank = len(q.shape)
    out_shape = joined(batch, heads, seq_q, config.value_dim, rank=rank, layout=layout)
    of_out = out_shape, dense_strides(out_shape)
    if out is not None and tuple(out.shape) == out_shape:
        of_out = out_shape, out.strides
    layouts = [(array.shape, array.strides) for array in (q, k, v)] + [of_out]
    of_each = (layout, of_keys, of_keys, layout)
    strides = tuple(_strides(*one, of) for one, of in zip(layouts, of_each, strict=True))
    nbytes = config.element.nbytes
    of_elements = (nbytes, nbytes, nbytes, config.output.nbytes)
    in_bytes = [n * step for three, n in zip(strides, of_elements, strict=True) for step in three]
    return Geometry(
        batch,
        heads,
        kv_heads,
        seq_q,
        seq_k,
        strides=strides,
        stride_alignment=math.gcd(ALIGNMENTS[0], *in_bytes),
        reach=tuple(overlap.reach(*one, n) for one, n in zip(layouts, of_elements, strict=True)),
        out_shape=out_shape,
        unbatched=rank == 3 and not config.varlen,
        nbytes=nbytes,
        natural_alignment=natural_alignment(config.head_dim, config.value_dim, config.element),
    )


def _strides(shape: tuple[int, ...], strides: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    """Batch, head and row strides; 0 for a dimension of one element, whose stride in the array's
    library is arbitrary.
    """
    if 0 in shape:
        return 0, 0, 0
    steps = split(
        tuple(step if length > 1 else 0 for length, step in zip(shape, strides, strict=True)), layout, 0
    )
    return steps[:3]


def grid_ctas(kernel: KernelConfig, geometry: Geometry) -> int:
    """The number of CTAs of a launch: one for each block of query rows of each head and each slice
    of the values. Each packed sequence gets as many CTAs as the longest one needs.
    """
    rows, heads = _rows_of_heads(geometry, kernel.packed)
    t = kernel.tiling
    return -(-rows // t.block_q) * heads * geometry.batch * t.value_slices


def section(kernel: KernelConfig, geometry: Geometry, cache_bytes: int) -> int:
    """The number of heads in a section of a causal kernel: the CTAs of these heads alternate, so
    that their K and V stay in an L2 cache of `cache_bytes`. For packed sequences the mean number of
    keys counts.
    """
    t = kernel.tiling
    packed_sequences = geometry.batch if kernel.features.packs_keys else 1
    keys = -(-geometry.seq_k // max(packed_sequences, 1))
    nbytes = keys * (t.head_dim + t.head_dim_v) * geometry.nbytes
    _, heads = _rows_of_heads(geometry, kernel.packed)
    group = 1 if kernel.packed else geometry.group
    return heads_per_section(heads * geometry.batch, group, nbytes, cache_bytes)


def _rows_of_heads(geometry: Geometry, packed: bool) -> tuple[int, int]:
    """The number of rows of a head, and of heads of a batch item; with packed GQA, of a head of K and V."""
    if packed:
        return geometry.packed_rows, geometry.kv_heads
    return geometry.longest_q, geometry.heads


def _size_problems(geometry: Geometry, most: int) -> Iterator[str]:
    """Say which sizes no backend computes: too many rows for a row index, or more heads than CTAs."""
    names = ("seq_q", "seq_k") if geometry.max_seqlen_q is None else ("total_q", "total_k")
    if geometry.pages:
        names = "total_q", "the rows that block_table has room for"
    for name, length in zip(names, (geometry.seq_q, geometry.seq_k), strict=True):
        if length > most:
            yield f"{name} must be at most {most}, got {length}; split it and merge by LSE"
    if geometry.batch * geometry.heads > MAX_CTAS:
        yield (
            f"batch times heads must be at most {MAX_CTAS}, got {geometry.batch} * "
            f"{geometry.heads}; split the batch"
        )


def check_limits(
    geometry: Geometry, kernel: KernelConfig, device: DeviceProperties, caller: str = LAUNCH.name
) -> None:
    """Raise one `LaunchError` with all limits of the kernel or its device that a call exceeds."""
    raise_problems(_limit_problems(geometry, kernel, device), caller)


def _limit_problems(geometry: Geometry, kernel: KernelConfig, device: DeviceProperties) -> Iterator[str]:
    t, most = kernel.tiling, max_seq(kernel.features)
    rows, heads = _rows_of_heads(geometry, kernel.packed)
    if kernel.packed and rows > most >= geometry.longest_q:
        longest = "seq_q" if geometry.max_seqlen_q is None else "max_seqlen_q"
        yield (
            f"{longest} times heads / kv_heads must be at most {most} with pack_gqa=True, "
            f"got {geometry.longest_q} * {geometry.group}; use pack_gqa='auto'"
        )
    ctas, slices = grid_ctas(kernel, geometry), t.value_slices
    if ctas > MAX_CTAS:
        kind = "kv_heads" if kernel.packed else "heads"
        yield (
            f"a grid has at most {MAX_CTAS} CTAs, this call needs {ctas} (ceil({rows} / "
            f"{t.block_q}) query blocks * {heads} {kind} * {geometry.batch} batch"
            f"{f' * {slices} slices of head_dim_v' if slices > 1 else ''}); "
            "split the batch or use a larger block_q"
        )
    if t.shared_bytes > device.shared_per_block_optin:
        yield (
            f"the kernel needs {t.shared_bytes} bytes of shared memory per block, but "
            f"{device} allows {device.shared_per_block_optin}; use a smaller tile or block_q"
        )
