"""A checked call, its launch, and its execution by numpy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.calls.gpu import Prepared
from flash.calls.memory import HostMemory, Memory
from flash.calls.step import Step, plan_of
from flash.contract.catalogue import Build
from flash.cpu.attention import attention_cpu
from flash.cpu.engine_choice import engine_of
from flash.cpu.paged_rows import KeyRows, PagedRows, gathered_rows
from flash.device.cta_order import USUAL_CACHE_BYTES
from flash.launch.checks import Geometry, grid_ctas, sizes_of
from flash.launch.scheduler_choice import (
    USUAL_DEVICE,
    USUAL_MULTIPROCESSORS,
    Device,
    ctas_at_once,
    width_of_sections,
)
from flash.launch.varlen import LENGTHS, TABLE
from flash.mods.trace import AUX
from flash.operands.dtypes import I32, MX_BLOCK
from flash.problem.config import AttentionConfig
from flash.problem.features import ANGLES, SCALES
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import OUTPUTS, Output
from flash.problem.rotary import rotated
from flash.problem.sequences import Sequence as OneSequence
from flash.problem.sequences import each_sequence
from flash.reference import scaled_numbers
from flash.scores.aux_arrays import gathered
from flash.scores.window import position_offset
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.runtime.plan import LaunchPlan

_ON_HOST: Final = HostMemory()
MATRICES: Final = ("q", "k", "v", "out")
_NO_OPERANDS: Final = frozenset((*MATRICES, *[output.name for output in OUTPUTS]))


class Call(NamedTuple):  # a NamedTuple: a dataclass takes four times as long to make
    """One checked call: the problem, and its arrays by the names of arguments: q, k, v, out, those of
    `OUTPUTS` that are wanted, and the operands of the config's features.
    """

    config: AttentionConfig
    geometry: Geometry
    layout: str
    scale: float
    arrays: Mapping[str, ArrayView]
    numbers: Mapping[str, int | float] = MappingProxyType({})  # arguments of the features
    # The launches of known calls like it (`Forward.checked`); None if there are none.
    launches: dict[tuple[object, ...], Prepared] | None = None

    @property
    def matrices(self) -> list[ArrayView]:
        """The arrays of the matrices Q, K, V and O of the call, in this order."""
        return [self.arrays[name] for name in MATRICES]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The arrays besides O that a call writes, such as LSE."""
        return tuple([output for output in OUTPUTS if output.name in self.arrays])

    @property
    def operands(self) -> dict[str, ArrayView]:
        """The arrays of the config's features, such as a bias or lengths, by name."""
        return {name: array for name, array in self.arrays.items() if name not in _NO_OPERANDS}


def make_plan(
    build: Build,
    geometry: Geometry,
    scale: float,
    addresses: tuple[int, ...],
    numbers: Mapping[str, int | float] = MappingProxyType({}),
    cache_bytes: int = USUAL_CACHE_BYTES,
    splits: int = 1,
    multiprocessors: int = USUAL_MULTIPROCESSORS,
) -> LaunchPlan:
    """The launch of a kernel. `addresses` are the addresses of Q, K, V, O, what the kernel
    writes in addition, the operands, and the counter of tickets if it takes them. `numbers` are the scalar
    arguments of the kernel's features, `cache_bytes` is the size of the device's L2 cache, a persistent
    kernel has as many CTAs as run at once on its `multiprocessors`. With several `splits`, O and LSE are
    dense arrays [batch, heads, seq_q, splits, head_dim_v] and [batch, heads, seq_q, splits].
    """
    config = build.config
    steps = [len(config.features.steps_of(name)) for name in "QKVO"]
    strides = [three[-count:] for three, count in zip(geometry.strides, steps, strict=True)]
    if splits > 1:
        g = geometry
        strides[-1] = dense_strides((g.batch, g.heads, g.seq_q, splits, config.tiling.head_dim_v))[:-1]
    strides += [()] * len(config.outputs)
    rows_q, rows_k = config.features.row_counts
    parts = grid_ctas(config, geometry)
    values: dict[str, int | float] = {
        "parts": parts,
        rows_q: geometry.seq_q,
        rows_k: geometry.seq_k,
        "max_seqlen_q": geometry.longest_q,
        "batch": geometry.batch,
        "heads": geometry.heads,
        "kv_heads": geometry.kv_heads,
        "group": geometry.group,
        "splits": splits,
        "section": width_of_sections(config, geometry, Device(multiprocessors, cache_bytes)),
        "softmax_scale": scale,
        "pages": geometry.pages,
        **dict(geometry.operand_sizes),
        **numbers,
    }
    ctas = parts * splits
    if config.is_persistent:
        ctas = ctas_at_once(build.resources, parts, multiprocessors)
    strides += geometry.operand_strides
    strides += [()] * config.takes_tickets
    return plan_of(build, addresses, strides, values, ctas)


@functools.lru_cache(maxsize=64)
def on_cpu_of(config: AttentionConfig, backend: str) -> Callable[..., None]:
    """Attention as a config says, on a backend without kernels; the function takes the arguments of
    `attention_cpu` that are not the config's.
    """
    scores: dict[str, Any] = {"causal": config.causal, **config.score_arguments}
    return functools.partial(attention_cpu, engine=engine_of(backend), **scores)


def run_on_cpu(call: Call, attend: Callable[..., None]) -> None:
    """Compute a forward call on the host with the function `attend` that `on_cpu_of` returned."""
    config, operands = call.config, dict[str, Any]()
    if len(call.arrays) > len(MATRICES):
        operands = gathered({name: host_array(a) for name, a in call.operands.items()})
    seed = int(call.numbers.get("dropout_seed", 0))
    attend = functools.partial(attend, softmax_scale=call.scale, dropout_seed=seed)
    outputs = {output: host_array(call.arrays[output.name]) for output in call.outputs}
    if config.varlen:
        _each_on_cpu(call, attend, operands, outputs)
        return
    q, k, v, out = (_bhsd(array, call.layout) for array in call.matrices)
    if SCALES[0] in operands:
        scales = _scales(call, operands)
        q, k, v = (
            scaled_numbers(x, scale, config.scale_block, np.float32)
            for x, scale in zip((q, k, v), scales, strict=True)
        )
    sizes = out.shape[:3]
    whole = {
        output.name: array.reshape(output.shape(*sizes, packed=False)) for output, array in outputs.items()
    }
    attend(q, k, v, out, **whole, **operands)


def _scales(call: Call, operands: dict[str, Any]) -> list[NDArray[Any]]:
    """The scales of Q, K and V, broadcast to all of their axes and taken out of `operands`; empty if there
    are none.
    """
    features = call.config.features
    sizes = sizes_of(call.geometry, features)
    shapes = {
        operand.name: [*(sizes[axis] for axis in operand.axes), *[operand.columns] * (operand.columns > 0)]
        for operand in features.operands
        if operand.name in SCALES
    }
    return [np.broadcast_to(operands.pop(name), shape) for name, shape in shapes.items()]


def _each_on_cpu(
    call: Call, attend: Callable[..., None], operands: dict[str, Any], outputs: Mapping[Output, NDArray[Any]]
) -> None:
    """Compute packed sequences one after another with numpy."""
    q, out = (host_array(call.arrays[name]).swapaxes(0, 1) for name in ("q", "out"))
    lengths = {name: operands.pop(name) for name in tuple(operands) if name in LENGTHS}
    scales, table = _scales(call, operands), operands.pop(TABLE, None)
    tables = None if table is None else np.broadcast_to(table, (call.geometry.batch, table.shape[-1]))
    keys_of, values_of = (_rows_of(_of_keys(call, name), tables) for name in ("k", "v"))
    scales_of = _scales_of(call.config, scales, tables)
    angles = [operands.pop(name) for name in ANGLES if name in operands]
    of_heads = call.geometry.batch, call.geometry.heads
    of_all = {AUX: operands.pop(AUX)} if AUX in operands else {}
    wide = {name: np.broadcast_to(array, of_heads) for name, array in operands.items()}
    for sequence in each_sequence(**lengths):
        b, rows, keys = sequence
        of_q, of_k, of_v = q[None, :, rows], keys_of(b, keys), values_of(b, keys)
        if angles:
            of_q = _rotated(call.config, of_q, angles, keys.stop - keys.start)
        if scales:
            of_q, of_k, of_v = (
                scaled_numbers(gathered_rows(x), gathered_rows(scale), call.config.scale_block, np.float32)
                for x, scale in zip((of_q, of_k, of_v), scales_of(sequence), strict=True)
            )
        attend(
            of_q,
            of_k,
            of_v,
            out[None, :, rows],
            **{output.name: output.of_sequence(array, b, rows) for output, array in outputs.items()},
            **{name: array[b : b + 1] for name, array in wide.items()},
            **of_all,
            first_batch=b,
            first_query=_first_query(call.config, (rows, keys)),
        )


def _rotated(
    config: AttentionConfig, q: NDArray[Any], angles: Sequence[NDArray[Any]], keys: int
) -> NDArray[Any]:
    """The queries of a sequence, [1, heads, queries, head_dim], rotated by their positions among its keys, of
    which the last query has the last, and rounded once. Queries before the first key have its position.
    """
    positions = np.maximum(keys + np.arange(-q.shape[2], 0), 0)
    cos, sin = angles
    rows = rotated(q, cos, sin, positions[None], interleaved=config.rotary_interleaved)
    return rows.astype(q.dtype)


def _first_query(config: AttentionConfig, of: tuple[slice, slice]) -> int:
    """The index of the first query of a sequence, with these queries and keys, for functions of scores:
    with pages its position among the keys.
    """
    if config.page_size is None:
        return 0
    queries, keys = (rows.stop - rows.start for rows in of)
    return position_offset(config.causal, queries, keys)


def _of_keys(call: Call, name: str) -> NDArray[Any]:
    """K or V of all sequences, [total_k, kv_heads, dim], or in pages, [pages, kv_heads, page_size, dim]."""
    array = call.arrays[name]
    return host_array(array) if call.config.page_size is None else _bhsd(array, call.layout)


def _rows_of(array: NDArray[Any], tables: NDArray[Any] | None) -> Callable[[int, slice], KeyRows]:
    """A function that gives some rows of a sequence, [1, heads, rows, dim], of an array of all, [rows, heads,
    dim], or in pages, [pages, heads, rows, dim], with the `tables` of their numbers.
    """
    if tables is None:
        return lambda _, rows: array.swapaxes(0, 1)[None, :, rows]
    return lambda b, rows: PagedRows(array, tables[b], rows.stop)


def _scales_of(
    config: AttentionConfig, scales: Sequence[NDArray[Any]], tables: NDArray[Any] | None
) -> Callable[[OneSequence], list[KeyRows]]:
    """A function that gives the scales of Q, K and V of a sequence, as `scaled_numbers` takes them."""
    if config.features.mx is None:
        return lambda one: [scale[one.number : one.number + 1] for scale in scales]
    of_q, of_k, of_v = (_rows_of(x, paged) for x, paged in zip(scales, (None, tables, tables), strict=True))

    def of(one: OneSequence) -> list[KeyRows]:
        b, rows, keys = one
        first = keys.start // MX_BLOCK + b if tables is None else 0
        blocks = slice(first, first - (keys.start - keys.stop) // MX_BLOCK)
        return [of_q(b, rows), of_k(b, keys), of_v(b, blocks)]

    return of


def step_of(
    call: Call, build: Build, memory: Memory = _ON_HOST, device: Device = USUAL_DEVICE, splits: int = 1
) -> Step:
    """The launch of a call; `splits` and the last sizes of O and LSE are as in `make_plan`."""
    arrays = call.matrices + [call.arrays[output.name] for output in build.config.outputs]
    arrays += call.operands.values()
    if build.config.takes_tickets:  # a launch that was stopped may have left a number there
        arrays.append(memory.array((1,), I32, is_cleared=True))
    plan = make_plan(
        build,
        call.geometry,
        call.scale,
        tuple([array.pointer for array in arrays]),
        call.numbers,
        device.cache_bytes,
        splits,
        device.multiprocessors,
    )
    return Step(build, tuple(arrays), plan)


def counters(config: KernelConfig) -> list[NDArray[np.int32]]:
    """The arrays after the operands in a launch on the host: the counter of tickets, or none."""
    return [np.zeros(1, np.int32)] * config.takes_tickets


def _bhsd(array: ArrayView, layout: str) -> NDArray[Any]:
    """The array with its axes in the order [batch, heads, seq, dim]; a 3-D array gets batch 1."""
    values = host_array(array)
    if values.ndim == 3:
        return values[np.newaxis]
    return values if layout == "bhsd" else values.transpose(0, 2, 1, 3)
