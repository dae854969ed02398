"""Proofs, sanitizers, orders of warps and registers of the kernels of gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from gradient_runs import Case, case
from kernel_runs import mostly_nightly, nightly, without

from flash.contract.gradients import emit_gradient, gradient_build, sum_build
from flash.gradients.checks import WRITTEN, Checks
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host.caller import Caller
from flash.kernels.sum_terms import SumConfig
from flash.launch.step import Step
from flash.operands.dtypes import DTYPES
from flash.problem.config import AttentionConfig
from flash.problem.gradients import KEYS, QUERIES, SCORES, GradientConfig, gradient_config
from ptxgen import ir
from ptxgen.arrays.views import view
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from ptxgen.text import render

Array = np.ndarray[Any, Any]


def _first_keys(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return query - key < 17


def _squared(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return score + 0.1 * score * score


FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window": (20, 7)},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": True, "causal": True},
    "bias": {"bias": "f32"},
    "key_bias": {"key_bias": "f32", "causal": "top_left"},
    "mask": {"mask": True},
    "sink": {"sink": True},
    "dropout": {"dropout": 0.1},
    "varlen": {"varlen": True, "causal": True, "seqused_q": True, "seqused_k": True},
    "score_mod": {"score_mod": _squared},
    "mask_mod": {"mask_mod": _first_keys},
    "several": {"softcap": 2.0, "dropout": 0.1, "window": (20, 7), "alibi": True, "sink": True},
}
KINDS: dict[str, dict[str, Any]] = {
    "f16": {"dtype": "f16"},
    "bf16": {"dtype": "bf16"},
    "tf32": {"dtype": "f32", "precision": "tf32"},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade"},
}


def kernels(
    config: AttentionConfig, on: str = "sm_80", alignment: int = 16, *, with_dlse: bool = True
) -> list[GradientConfig]:
    """The kernels of a call in which every gradient is wanted."""
    wanted = tuple(f.argument for f in config.scores if f.gradient_of)
    owners = [QUERIES, KEYS, *([SCORES] if "bias" in wanted else [])]
    return [
        gradient_config(config, owner, target(on), alignment, with_dlse=with_dlse, wanted=wanted)
        for owner in owners
    ]


def _assert_proved(config: AttentionConfig, on: str = "sm_80", alignment: int = 16) -> None:
    for kernel in kernels(config, on, alignment):
        made = gradient_build(kernel)
        assert made.proof.complete, (kernel.name, made.proof.unknown)
        assert not made.global_proof.unknown, (kernel.name, made.global_proof.unknown)
        assert not made.is_faulty, kernel.name


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly(FEATURES, ["several"]))
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
def test_kernels_are_proved(name: str, kind: str) -> None:
    _assert_proved(AttentionConfig(64, **KINDS[kind], **FEATURES[name]))


@pytest.mark.nightly
@pytest.mark.parametrize("head_dim", [8, 40, 128, 160, 192, 256])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["sm_80", "sm_86"])
def test_kernels_of_every_head_dim_are_proved(head_dim: int, kind: str, on: str) -> None:
    _assert_proved(AttentionConfig(head_dim, causal=True, **KINDS[kind]), on)


@pytest.mark.nightly
@pytest.mark.parametrize("alignment", [8, 4, 2])
def test_kernels_with_narrow_accesses_are_proved(alignment: int) -> None:
    _assert_proved(AttentionConfig(64, head_dim_v=40, dtype="f16", causal=True), alignment=alignment)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_kernel_that_sums_terms_is_proved(dtype: str) -> None:
    made = sum_build(SumConfig(target("sm_80"), DTYPES[dtype]))
    assert made.proof.complete
    assert not made.global_proof.unknown
    assert not made.is_faulty


# ------------------------------------------------------------------------------------------
# registers

_HEAD_DIMS = [64, 96, 128, 192, 256]
_TARGETS = ["sm_80", "sm_86", "sm_90", "sm_120"]


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("kind", "head_dim", "on"),
    [
        pytest.param(*of, marks=pytest.mark.slow) if of == ("f16", 128, "sm_90") else nightly(*of)
        for of in itertools.product(KINDS, _HEAD_DIMS, _TARGETS)
    ],
)
def test_no_kernel_with_default_tiles_spills(kind: str, head_dim: int, on: str, assembler: Assembler) -> None:
    if (kind, head_dim) == ("f32_grade", 256):
        pytest.xfail("kernels with derivatives of scores spill: no smaller tile exists")
    spilled = {}
    for name, features in FEATURES.items():
        for kernel in kernels(AttentionConfig(head_dim, **KINDS[kind], **features), on):
            assembly = assembler.assemble(render(emit_gradient(kernel)), on)
            usage = assembly.kernel(kernel.name)
            if usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes:
                spilled[name, kernel.owner] = usage
            assert assembly.advisories == ()
    assert not spilled


# ------------------------------------------------------------------------------------------
# sanitizers and orders of the warps


def steps(of: Case) -> tuple[list[Step], dict[str, Array]]:
    """The launches of a case, and what they write, full of NaN."""
    out, lse = of.forward()
    arrays = {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out, "lse": lse}
    arrays |= {} if of.dlse is None else {"dlse": of.dlse}
    written = {name: np.full_like(arrays[like], np.nan) for name, like in WRITTEN.items()}
    views = {name: view(array, name) for name, array in {**arrays, **written}.items()}
    seed = of.others.get("dropout_seed")
    given = {**of.arrays, **{n: a for n, a in of.others.items() if isinstance(a, np.ndarray)}}
    operands = {name: view(array, name) for name, array in given.items()}
    sizes = Checks(of.config, Caller("test")).check(views, operands, "bhsd", (None, None))
    found = {name: np.full_like(of.arrays[name], np.nan) for name in of.wanted}
    sums = {name: view(array, name) for name, array in found.items()}
    numbers = {**of.config.numbers, **({} if seed is None else {"dropout_seed": seed})}
    call = GradientCall(of.config, sizes, "bhsd", of.config.scale, views, operands, numbers, sums)
    space = {
        name: np.full(memory.shape, 0 if memory.is_cleared else np.nan, np.float32)
        for name, memory in memory_of(call).items()
    }
    memory = {name: view(array, name) for name, array in space.items()}
    launches = [named.step for named in steps_of(call, target("sm_80"), memory, "test")]
    return launches, {**written, **found, **space}


def _bits(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def interpret(of: Case, **how: Any) -> dict[str, bytes]:
    """What the launches of a case write."""
    launches, written = steps(of)
    for step in launches:
        step.interpret(**how)
    return _bits(written)


def _normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


WATCHED: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "heads": 2},
    "one stage": {"head_dim": 160, "head_dim_v": 136, "seq_q": 40, "seq_k": 70},
    "window": {"window": (20, 7), "with_dlse": True},
    "rows without keys": {"seq_q": 150, "seq_k": 20, "causal": True},
    "rows without keys, one stage": {"seq_q": 150, "seq_k": 20, "head_dim": 136, "causal": True},
    "keys without rows": {"seq_q": 20, "seq_k": 150, "causal": "top_left"},
    "keys without rows, one stage": {"seq_q": 20, "seq_k": 150, "head_dim": 136, "causal": "top_left"},
    "bias": {"bias": "f32", "heads": 2, "batch": 2, "arrays": {"bias": _normal(70, 90)}},
    "no queries": {"seq_q": 0, "seq_k": 20},
    "no queries, one stage": {"seq_q": 0, "seq_k": 20, "head_dim": 136},
    "several": {
        "causal": True,
        "alibi": True,
        "sink": True,
        "key_bias": "f32",
        "softcap": 2.0,
        "dropout": 0.2,
        "arrays": {"alibi_slopes": np.abs(_normal(1)), "sink": _normal(1, 1), "key_bias": _normal(1, 90)},
    },
    "f32_grade": {"dtype": "f32", "precision": "f32_grade", "causal": True},
    "tf32": {"dtype": "f32", "precision": "tf32", "head_dim": 160, "seq_q": 20, "seq_k": 40},
}


@pytest.mark.parametrize(
    "name",
    [
        "causal",
        pytest.param("several", marks=pytest.mark.slow),
        *(nightly(name) for name in WATCHED if name not in ("causal", "several")),
    ],
)
def test_the_sanitizers_report_nothing(name: str) -> None:
    of = case(**WATCHED[name])
    assert interpret(of, sanitize="all") == interpret(of)


@pytest.mark.nightly
@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("seed", range(3))
def test_every_order_of_the_warps_gives_the_same_bits(name: str, seed: int) -> None:
    of = case(**WATCHED[name])
    assert interpret(of, sanitize="all", schedule=PCT(seed)) == interpret(of)


# ------------------------------------------------------------------------------------------
# memory


@pytest.mark.parametrize(
    "name", [pytest.param("several", marks=pytest.mark.slow), *map(nightly, ("nothing", "alibi", "key_bias"))]
)
def test_memory_beside_the_arrays_grows_as_the_sequences_do(name: str) -> None:
    def elements(seq: int) -> int:
        arrays = {"alibi_slopes": _normal(1), "sink": _normal(1), "key_bias": _normal(1, seq)}
        settings = FEATURES[name]
        given = {n: a for n, a in arrays.items() if settings.get(n.removesuffix("_slopes"))}
        of = case(seq, seq, arrays=given, **settings)
        _, written = steps(of)
        return sum(array.size for n, array in written.items() if n not in (*WRITTEN, *of.wanted))

    assert 0 < elements(40) * 2 == elements(80)


# ------------------------------------------------------------------------------------------
# faults

_SYNCHRONISING = (
    "bar.sync",
    "bar.warp.sync",
    "cp.async.wait_group",
    "cp.async.commit_group",
    "cp.async.wait_all",
)
# Problems of one config each: more tiles than stages on both sides, heads that share keys, hidden keys,
# rows without keys and keys without rows.
FAULTY: dict[str, list[dict[str, Any]]] = {
    "one stage": [
        {"seq_q": seq_q, "seq_k": seq_k, "head_dim": 136, "heads": 2, "causal": True}
        for seq_q, seq_k in ((70, 70), (150, 20))
    ],
    "two stages": [
        {"seq_q": seq_q, "seq_k": seq_k, "heads": 2, "causal": True}
        for seq_q, seq_k in ((200, 200), (150, 20))
    ],
    "no mask": [
        {"seq_q": seq_q, "seq_k": seq_k, "heads": 2} for seq_q, seq_k in ((130, 70), (70, 0), (0, 70))
    ],
    "bias": [
        {"seq_q": seq_q, "seq_k": seq_k, "heads": 2, "bias": "f32", "arrays": {"bias": _normal(seq_q, seq_k)}}
        for seq_q, seq_k in ((130, 70), (70, 0))
    ],
}


def _synchronising(step: Step) -> Iterator[int]:
    """The barriers, waits and commits of a launch."""
    for at, s in enumerate(step.made.kernel.body):
        if isinstance(s, ir.Instr) and s.opcode in _SYNCHRONISING:
            yield at


def _is_noticed(of: Case, entry: str, at: int) -> bool:
    """Whether the sanitizers notice that a kernel has no statement `at`."""
    for step in steps(of)[0]:
        if step.made.kernel.name != entry:
            step.interpret()
            continue
        try:
            step.interpret(without(step.made.module, at), sanitize="all")
        except TrapError as error:
            return any(word in str(error) for word in ("race", "pending", "uninitialised"))
    return False


def faults(name: str) -> Iterator[str]:
    """The statements without which the sanitizers notice nothing in any problem of a config."""
    problems = [case(**how) for how in FAULTY[name]]
    launches = {step.made.kernel.name: step for of in problems for step in steps(of)[0]}
    for entry, step in launches.items():
        for at in _synchronising(step):
            if not any(_is_noticed(of, entry, at) for of in problems):
                yield f"{entry}: {step.made.kernel.body[at]}"


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTY)
def test_no_barrier_wait_or_commit_can_be_left_out(name: str) -> None:
    assert not list(faults(name))
