"""Correct kernels for sm_90a have no report. Those of nvcc and Triton are always run with all
sanitizers, by `interpreter.both_paths`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper

from ptxgen.interpreter import run

Test = Callable[..., None]
CASES: list[Any] = [
    (hopper.test_tf32_is_rounded_on_the_way, {}),
    *(
        pytest.param(
            hopper.test_scores_and_outputs_of_attention_agree_with_numpy,
            {"rows": 80, "d": 64, "swizzle": swizzle},
            marks=[] if swizzle == "64B" else pytest.mark.slow,
        )
        for swizzle in hopper.SPANS
    ),
    *((hopper.test_a_may_be_stored_with_m_along_rows, {"swizzle": s}) for s in hopper.SPANS),
    (hopper.test_a_stored_box_ends_where_the_tensor_does, {"corner": (24, 5), "swizzle": "64B"}),
    (hopper.test_a_box_is_reduced_into_a_tensor, {"op": "max", "function": np.maximum}),
    (hopper.test_bytes_are_copied_there_and_back, {}),
    (hopper.test_bulk_reductions_combine_values_of_their_type, {}),
    (hopper.test_ctas_of_a_cluster_write_into_each_others_memory, {}),
    *(
        (hopper.test_a_multicast_reaches_the_ctas_of_its_mask, {"copy": copy, "mask": 0b0110})
        for copy in hopper.MULTICASTS
    ),
    *((hopper.test_shared_memory_is_sent_to_another_cta, {"op": op}) for op in ("", ".add.u32")),
    (
        hopper.test_an_mbarrier_waits_for_copies_of_single_threads,
        {"count": 32, "arrive": "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];"},
    ),
    *(
        (hopper.test_a_producer_and_a_consumer_share_two_stages, {"test": test})
        for test in ("try_wait", "test_wait")
    ),
]


@pytest.mark.parametrize(("test", "given"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_correct_kernel_has_no_report(
    test: Test, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper, "run", functools.partial(run, sanitize="all"))
    test(**given)
