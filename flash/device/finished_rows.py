"""The end of the softmax of a thread's rows: O is divided by the sums, and the outputs of each row
(`flash/device/row_outputs.py`) are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flash.device.cta import Cta
from flash.device.lazy_softmax import LazySoftmax
from flash.device.max_logit import RowTops
from flash.device.parameters import ScoreArray
from flash.device.row_outputs import store_row_outputs
from ptxgen.dsl import Fragment, KernelBuilder, Value, marked
from ptxgen.dsl.matrices.lanes import QUAD


@marked("finished rows: LSE")
def finish_rows(
    k: KernelBuilder,
    cta: Cta,
    rows: tuple[Value, Sequence[int]],
    in_quad: Callable[[], Value],
    softmax: LazySoftmax,
    O: Fragment,
    v_scale: ScoreArray | None,
    undone: Sequence[Value] = (),
    tops: RowTops | None = None,
) -> None:
    """O /= sum, times the scale of V if there is one, and the factor that `undone` has for each row unless it
    is empty; and write the `row_outputs`, and the largest scores if `tops` follow them. `rows` are the first
    row of the thread, and all its rows counted from that; `in_quad` gives the index of this lane among those
    that share them.
    """
    first_row, down_from_first = rows
    factor = None if v_scale is None else v_scale.of_sequence(k, cta.kv_head)
    for i, down in enumerate(down_from_first):
        finished = softmax.finish(i)
        inverse = cta.weighed(finished.inverse)
        if factor is not None:
            inverse = inverse * factor
        if undone:
            inverse = inverse * undone[i]
        for output in O.row(i):
            k.mul(output, inverse, into=output)
        if cta.row_outputs:
            row = first_row + down
            with k.when(cta.writes_row((row < cta.O.rows) & (in_quad() == 0))):
                store_row_outputs(k, cta.row_outputs, row, finished)
    cta.store_tops(k, tops, rows, QUAD)
