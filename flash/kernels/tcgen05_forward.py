"""The forward kernel for Blackwell: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V, for f16 and
bf16 (FlashAttention-4).

A CTA has one or two row tiles of 128 queries, whose products one thread starts in turn, so that the tensor
cores multiply for one row tile while a warpgroup computes the weights of the other:

| role | warps | for each tile of keys, the last first |
|---|---|---|
| softmax | a warpgroup for each row tile | S to registers, a row in each thread; P = exp2(scale S - shift) |
| correction | a warpgroup | O *= exp2(old shift - new shift), where a maximum has grown by more than 2⁸ |
| multiplying | one thread of a warp | O += P V of the tile before, S = Q Kᵀ |
| loading | two warps | one thread has K and V copied; all clear NaN where V may be hidden |

S, P and O of a row tile are a stage of a ring in tensor memory, in which P has the last columns of S. The
stage goes from the products to the softmax as scores, from there to the correction when the factors of O are
known, and back from both with weights and a rescaled O. All products of a thread are done in order, and one
commit covers all that it has started, so that "S is there" also says that the O before it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta
from flash.device.parameters import Parameters
from flash.device.row_tiles import RowTiles
from flash.device.tensor_correction import Correction
from flash.device.tensor_pipeline import GatheredTensorPipeline, TensorPipeline
from flash.device.warpgroup_roles import has_tiles
from flash.device.work_tiles import WorkTile, WorkTiles
from flash.families.tcgen05 import TCGEN05_ROWS, Tcgen05Tiling
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.blackwell import TensorRing, TensorStage
from ptxgen.dsl.hopper import Operand
from ptxgen.records import dataclass
from ptxgen.types import f32, u32

_LOADING_WARPS: Final = 2


@dataclass(frozen=True)
class Roles:
    """The warp roles of a CTA; `multiplying` and `loading` are within `others`."""

    softmax: Role
    correction: Role
    others: Role
    multiplying: Role
    loading: Role

    @classmethod
    def of(cls, k: KernelBuilder, config: KernelConfig, t: Tcgen05Tiling) -> Roles:
        """Declare the warp roles of a kernel, in the order of the CTA's warps."""
        more = config.is_persistent
        to_copy, to_compute = t.registers_of_roles(keeps_more=more)
        softmax = k.warpgroup_role("softmax", warpgroups=t.row_tiles, registers=to_compute)
        correction = k.warpgroup_role("correction", registers=t.correction_registers(keeps_more=more))
        others = k.warpgroup_role("others", registers=to_copy)
        multiplying = others.warp_role("multiplying")
        return cls(
            softmax, correction, others, multiplying, others.warp_role("loading", warps=_LOADING_WARPS)
        )


class Products:
    """The products that one thread starts for a row tile, in stages of the ring in tensor memory."""

    def __init__(self, pipeline: TensorPipeline, t: Tcgen05Tiling) -> None:  # noqa: ARG002
        self.pipeline = pipeline

    def begin(self) -> None:
        """Prepare operands of products, by all threads of the role, before the first work tile."""

    def operand(self, tile: object) -> Operand:
        """A tile of Q, K or V, or a part or transpose of one, as an operand of matrix products."""
        return self.pipeline.memory.operand(tile)

    def queries(self) -> AbstractContextManager[Any]:
        """A consumer's step of the ring `pipeline.queries`, with scales that products of its rows take."""
        return self.pipeline.queries.drain()

    def keys(self) -> AbstractContextManager[Any]:
        """A consumer's step of the ring `pipeline.keys`, with scales that products of its rows take."""
        return self.pipeline.keys.drain()

    def values(self) -> AbstractContextManager[Any]:
        """A consumer's step of the ring `pipeline.values`, with scales that products of its rows take."""
        return self.pipeline.values.drain()

    def scores(self, stage: TensorStage, Q: Operand, K: Operand, i: int) -> None:  # noqa: ARG002
        """Start S = Q Kᵀ of row tile `i`."""
        stage.s.mma(Q, K, use=False)

    def outputs(self, stage: TensorStage, V: Operand, use: Value) -> None:
        """Start O += P V, or O = P V where `use` does not hold."""
        stage.o.mma(stage.p, V, use=use)

    def multiply(self, work: WorkTile, rows: TensorRing) -> None:
        """Start the products of a work tile, in the role that starts them."""
        multiply(work, rows, self.pipeline, self)


@dataclass(frozen=True)
class Work:
    """What the roles of a kernel do; `weights` is the type of P in tensor memory, and `sums` has the sums of
    products besides S and O, each with its columns.
    """

    weights: object
    pipeline: type[TensorPipeline] = TensorPipeline
    row_tiles: type[RowTiles] = RowTiles
    correction: type[Correction] = Correction
    products: type[Products] = Products
    sums: tuple[tuple[str, int], ...] = ()


def tcgen05_attention_forward(config: KernelConfig, t: Tcgen05Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(
        config, t, Work(config.dtype.scalar, GatheredTensorPipeline if t.gathers else TensorPipeline)
    )


@marked("tcgen05: roles")
def attention_module(config: KernelConfig, t: Tcgen05Tiling, of: Work) -> ir.Module:
    """Generate a kernel whose warp roles do what `of` says: its PTX module."""
    # Proofs do not follow shifts and products through what packed heads and new rows in place divide.
    appends = config.features.appended is not None
    short = not (config.packed or appends or config.features.rotation is not None)
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    parameters = Parameters.declare(k, config)
    roles = Roles.of(k, config, t)
    memory = k.tensor_memory(t.tensor_columns)
    S = TCGEN05_ROWS, t.tile
    sums = {name: (TCGEN05_ROWS, columns) for name, columns in of.sums}
    matrices: dict[str, Any] = {
        "s": S,
        "p": (S, of.weights, "s"),
        "o": (TCGEN05_ROWS, t.output_columns),
        **sums,
    }
    rows = memory.ring(
        t.row_tiles, roles.multiplying, roles.softmax, then=roles.correction, dealt=True, **matrices
    )
    factors = k.shared("factors", (t.row_tiles, TCGEN05_ROWS), f32)
    pipeline = of.pipeline(k, config, t, roles, memory)
    products = of.products(pipeline, t)
    of_tiles = roles.loading, roles.softmax, roles.correction, roles.multiplying
    work_tiles = WorkTiles.of(k, config, parameters, of_tiles)

    def work_of(parameters: Parameters, role: Role) -> WorkTile:
        return WorkTile(k, config, t, parameters, Cta.of(k, config, parameters), role, pipeline)

    if appends:
        AppendedKV.written(k, config, parameters, Cta.of(k, config, parameters))
    with roles.softmax, work_tiles.each() as parameters:
        of.row_tiles(work_of(parameters, roles.softmax), rows, factors).run()
    with roles.correction, pipeline.consumed(), work_tiles.each() as parameters:
        of.correction(work_of(parameters, roles.correction), rows, factors, t.row_tiles).run()
    with roles.others:
        with roles.multiplying:
            products.begin()
            with work_tiles.each() as parameters:
                products.multiply(work_of(parameters, roles.multiplying), rows)
        with roles.loading, work_tiles.each() as parameters:
            cta = Cta.of(k, config, parameters)
            pipeline.parameters = parameters
            pipeline.load_work_tile(cta, has_tiles(cta))
    return k.finish()


@marked("tcgen05: products")
def multiply(work: WorkTile, rows: TensorRing, pipeline: TensorPipeline, products: Products) -> None:
    """Start S = Q Kᵀ of each tile of keys, and O += P V of the tile before, for each row tile."""
    k, cta, memory = work.k, work.cta, pipeline.memory
    with ExitStack() as blocks:
        blocks.enter_context(memory.by_warp())
        blocks.enter_context(k.when(has_tiles(cta), uniform=True))
        query = blocks.enter_context(products.queries())
        Q = [
            products.operand(query.q.part(first, TCGEN05_ROWS))
            for first in range(0, work.t.block_q, TCGEN05_ROWS)
        ]
        with products.keys() as key:
            k.note("S = Q K^T")
            K = products.operand(key.k.T)
            for i, Q_i in enumerate(Q):
                with rows.fill() as stage, memory.one_thread():
                    products.scores(stage, Q_i, K, i)
        has_sums = k.var(u32, 0)  # whether O has any
        with pipeline.each_tile(cta, after=1):
            with products.values() as value, products.keys() as key:
                k.note("O += P V of the tile before, S = Q K^T")
                V, K = products.operand(value.v), products.operand(key.k.T)
                for i, Q_i in enumerate(Q):
                    with rows.fill() as stage, memory.one_thread():
                        products.outputs(stage, V, has_sums != 0)
                        products.scores(stage, Q_i, K, i)
            has_sums.set(1)
        with products.values() as value:
            k.note("O += P V of the first tile, which comes last")
            V = products.operand(value.v)
            for _ in Q:
                with rows.fill() as stage, memory.one_thread():
                    products.outputs(stage, V, has_sums != 0)
