"""The forward kernel for Blackwell of f32, as three products of f16: what
`flash/kernels/tcgen05_forward.py` does for one row tile, with tiles that become pairs of f16
(`flash/device/split_boxes.py`).

| role | warps | for each tile of keys, the last first |
|---|---|---|
| softmax | a warpgroup | S to registers, a row in each thread; P = exp2(scale S - shift) as pairs of f16 |
| correction | a warpgroup | O = O exp2(old shift - new shift) + P V, in registers |
| multiplying | one thread of a warp | S = Q Kᵀ of the next tile, P V |
| loading | a warpgroup | one thread has K and V copied, and all split them |

Scores, weights and the products P V are rings of their own in tensor memory, of two stages, one and two. So S
of the next tile, and P V of the one before, are multiplied while the softmax computes weights. Tensor cores
truncate their sums: the small products come first, in the order low high' + high low' + high high'.
"""

from __future__ import annotations

from contextlib import ExitStack

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta
from flash.device.parameters import Parameters
from flash.device.split_boxes import halves
from flash.device.tensor_split import SplitCorrection, SplitRings, SplitRowTiles, SplitTensorPipeline
from flash.device.warpgroup_roles import has_tiles
from flash.device.work_tiles import WorkTile
from flash.families.tcgen05 import TCGEN05_ROWS
from flash.families.tcgen05_split import OUTPUT_STAGES, SCORE_STAGES, SplitTcgen05Tiling
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Role, marked
from ptxgen.dsl.blackwell import TensorMemory
from ptxgen.dsl.hopper import BoxTile, Operand
from ptxgen.records import dataclass
from ptxgen.types import f16, f32

_FACTORS = 2  # of a row: of O, and of the product of a tile


@dataclass(frozen=True)
class Roles:
    """The warp roles of a CTA; `multiplying` is within `others`."""

    softmax: Role
    correction: Role
    loading: Role
    others: Role
    multiplying: Role

    @classmethod
    def of(cls, k: KernelBuilder, t: SplitTcgen05Tiling) -> Roles:
        """Declare the roles of the warpgroups of a kernel, with the registers of a thread from `t`."""
        to_copy, to_compute = t.registers_of_roles(keeps_more=False)
        softmax = k.warpgroup_role("softmax", registers=to_compute)
        correction = k.warpgroup_role("correction", registers=t.correction_registers(keeps_more=False))
        loading = k.warpgroup_role("loading", registers=to_copy)
        others = k.warpgroup_role("others", registers=t.multiplying_registers)
        return cls(softmax, correction, loading, others, others.warp_role("multiplying"))


@marked("tcgen05 split: roles")
def tcgen05_split_attention_forward(config: KernelConfig, t: SplitTcgen05Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    # Proofs do not follow shifts and products through what packed heads and new rows in place divide.
    appends = config.features.appended is not None
    short = not (config.packed or appends or config.features.rotation is not None)
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    parameters = Parameters.declare(k, config)
    roles = Roles.of(k, t)
    memory = k.tensor_memory(t.tensor_columns)
    rings = _rings(k, t, roles, memory)
    pipeline = SplitTensorPipeline(k, config, t, roles, memory)

    def work_of(role: Role) -> WorkTile:
        return WorkTile(k, config, t, parameters, Cta.of(k, config, parameters), role, pipeline)

    if appends:
        AppendedKV.written(k, config, parameters, Cta.of(k, config, parameters))
    with roles.softmax:
        SplitRowTiles(work_of(roles.softmax), rings).run()
    with roles.correction:
        SplitCorrection(work_of(roles.correction), rings).run()
    with roles.loading:
        cta = Cta.of(k, config, parameters)
        pipeline.parameters = parameters
        pipeline.load_work_tile(cta, has_tiles(cta))
    with roles.others, roles.multiplying:
        multiply(work_of(roles.multiplying), rings, pipeline)
    return k.finish()


def _rings(k: KernelBuilder, t: SplitTcgen05Tiling, roles: Roles, memory: TensorMemory) -> SplitRings:
    """Declare the rings of stages between the roles of products, softmax and correction."""
    softmax, products, correction = roles.softmax, roles.multiplying, roles.correction
    S = TCGEN05_ROWS, t.tile
    O = TCGEN05_ROWS, t.output_columns
    factors = (_FACTORS, TCGEN05_ROWS), f32, "none"
    return SplitRings(
        memory.ring(SCORE_STAGES, products, softmax, s=S),
        memory.ring(1, softmax, products, written=True, p=(S, f16), l=(S, f16)),
        memory.ring(OUTPUT_STAGES, products, correction, o=O),
        k.tma.ring(OUTPUT_STAGES, softmax, correction, written=True, factors=factors),
    )


@marked("tcgen05 split: products")
def multiply(work: WorkTile, rings: SplitRings, pipeline: SplitTensorPipeline) -> None:
    """Start S = Q Kᵀ for each tile of keys, and P V for the tile before it."""
    k, cta, memory = work.k, work.cta, pipeline.memory

    def parts(tile: BoxTile) -> tuple[Operand, Operand]:
        high, low = halves(tile)
        return memory.operand(high), memory.operand(low)

    with ExitStack() as blocks:
        blocks.enter_context(memory.by_warp())
        blocks.enter_context(k.when(has_tiles(cta), uniform=True))
        query = blocks.enter_context(pipeline.queries.drain())
        q, q_low = parts(query.q)

        def scores() -> None:
            k.note("S = Q K^T")
            with pipeline.keys.drain() as key:
                of_key, key_low = parts(key.k)
                with rings.scores.fill() as stage, memory.one_thread():
                    stage.s.mma(q_low, of_key.T, use=False)
                    stage.s.mma(q, key_low.T)
                    stage.s.mma(q, of_key.T)

        def outputs() -> None:
            k.note("P V")
            with pipeline.values.drain() as value:
                of_value, value_low = parts(value.v)
                with rings.outputs.fill() as stage, rings.weights.drain() as weights, memory.one_thread():
                    stage.o.mma(weights.l, of_value, use=False)
                    stage.o.mma(weights.p, value_low)
                    stage.o.mma(weights.p, of_value)

        scores()
        with pipeline.each_tile(cta, after=1):
            scores()
            outputs()
        outputs()
