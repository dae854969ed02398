"""What proofs leave in memory."""

import gc
from pathlib import Path

from ptxgen.check.prove import prove
from ptxgen.parse import parse


def test_a_proof_is_freed_without_the_collector() -> None:
    module = parse((Path(__file__).parents[2] / "ptx/triton/attention.sm_80.ptx").read_text(encoding="utf-8"))
    prove(module, block=128)
    gc.collect()
    gc.disable()
    try:
        prove(module, block=128)
        assert not gc.collect()
    finally:
        gc.enable()
