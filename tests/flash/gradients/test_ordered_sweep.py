"""One sweep whose CTAs add to sums of dQ in a fixed order: accuracy, proofs, bits in any order of CTAs."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from gradient_launches import interpret, steps
from gradient_runs import KINDS, SETTINGS, Case, assert_same_bits, case, check, features_of
from kernel_runs import mostly_nightly, nightly, with_place

import flash
from flash.contract.gradients import emit_gradient, gradient_build, verified_gradient
from flash.device.wgmma_query_sums import WgmmaQuerySums
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import against_order, gradient_config
from flash.problem.gradients import KEYS, SUMS_OF_QUERIES, owners_of
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from ptxgen.text import render

_ON = "sm_90a"
_KINDS = [kind for kind, how in KINDS.items() if how.get("target") == _ON]
_FEATURES = [
    name for name, how in SETTINGS.items() if not against_order(AttentionConfig(64, dtype="f16", **how), _ON)
]
_OF_CALLS = [name for name in features_of() if name in _FEATURES]


def ordered(feature: str, *sizes: int, kind: str = "wgmma_f16", head_dim: int = 64, **how: Any) -> Case:
    """A case with a feature, of `sizes` queries and keys."""
    arguments = features_of(*sizes, how.get("heads", 1))[feature]
    return case(*sizes, head_dim, in_order=True, **{**KINDS[kind], **arguments, **how})


@pytest.mark.judged
@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize(
    ("kind", "feature"),
    [
        of if of == ("wgmma_f16", "bottom_right") else nightly(*of)
        for of in itertools.product(_KINDS, _OF_CALLS)
    ],
)
def test_gradients_err_by_no_more_than_their_roundings(kind: str, feature: str) -> None:
    check(ordered(feature, 150, 300, kind=kind, heads=2, kv_heads=1, with_dlse=True))


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize("feature", ["nothing", "bottom_right", "window"])
def test_rows_of_128_columns_err_by_no_more_than_their_roundings(feature: str) -> None:
    check(ordered(feature, 150, 300, head_dim=128))


@pytest.mark.parametrize(
    ("head_dim", "feature"),
    [
        (64, "bottom_right"),
        *(nightly(64, name) for name in _FEATURES if name != "bottom_right"),
        *(nightly(128, name) for name in ("nothing", "bottom_right", "window", "varlen")),
    ],
)
def test_kernels_are_proved_and_do_not_spill(head_dim: int, feature: str, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, dtype="f16", target=_ON, **SETTINGS[feature])
    for owner in owners_of(one_sweep=True):
        kernel = gradient_config(config, owner, target(_ON), 16, one_sweep=True, in_order=True)
        built = gradient_build(kernel)
        assert built.proof.complete, built.proof.unknown
        assert not built.global_proof.unknown, built.global_proof.unknown
        assembly = assembler.assemble(render(emit_gradient(kernel)), _ON)
        usage = assembly.kernel(kernel.name)
        assert (usage.spill_store_bytes, usage.stack_bytes, assembly.advisories) == (0, 0, ())


_ORDERED = {
    "causal": {"feature": "bottom_right", "heads": 2, "kv_heads": 1},
    "full": {"feature": "nothing"},
    "window": {"feature": "window"},
}


def _of(name: str, **how: Any) -> Case:
    settings = dict(_ORDERED[name])
    return ordered(settings.pop("feature"), 400, 500, **settings, **how)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(
            name, seed, marks=pytest.mark.slow if (name, seed) == ("causal", 1) else pytest.mark.nightly
        )
        for name, seed in itertools.product(_ORDERED, range(20))
    ],
)
def test_every_order_of_the_warps_gives_the_same_bits(name: str, seed: int) -> None:
    of = _of(name)
    assert interpret(of, sanitize="all,determinism", schedule=PCT(seed, apart=seed % 2 == 1)) == interpret(of)


def _in_turns(of: Case, seed: int) -> dict[str, bytes]:
    """What the launches of a case write if their CTAs run one after another in an order drawn at random."""
    launches, written = steps(of)
    for step in launches:
        ctas = step.plan.grid[0]
        for number in np.random.default_rng(seed).permutation(ctas):
            step.interpret(with_place(step.build.module, int(number), ctas), grid=(1, 1, 1))
    return {name: array.tobytes() for name, array in written.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly(_ORDERED, ["causal"]))
def test_every_order_in_which_ctas_begin_gives_the_same_bits(name: str) -> None:
    of = _of(name)
    assert _in_turns(of, 1) == interpret(of)


@pytest.mark.slow
def test_without_waits_sums_depend_on_the_order_of_the_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WgmmaQuerySums, "_await", lambda *_: None)
    verified_gradient.cache_clear()
    try:
        of = _of("full")
        results = [interpret(of, schedule=PCT(seed))[SUMS_OF_QUERIES] for seed in range(4)]
    finally:
        verified_gradient.cache_clear()
    assert len(set(results)) > 1


def test_calls_in_order_have_the_bits_of_a_call_that_is_repeated() -> None:
    of = ordered("bottom_right", 150, 200)
    assert_same_bits(of.run(), of.run())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"target": "sm_90"}, "a fixed order is for kernels with wgmma, which is of sm_90a alone"),
        (
            {"target": _ON, "dropout": 0.1},
            "a fixed order is for kernels of one sweep with wgmma, and there is none for this config",
        ),
        ({"mask": True}, "a CTA whose keys a mask hides would be missing in a fixed order"),
    ],
)
def test_one_sweep_in_order_is_refused(how: dict[str, Any], why: str) -> None:
    said = (
        f"AttentionGradient: sweeps=1 sums dq in an order that differs from call to call, because {why}; "
        "give deterministic=False, or leave sweeps out"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        flash.AttentionGradient(AttentionConfig(64, dtype="f16", **how), sweeps=1)


def test_a_target_without_such_kernels_is_refused_by_the_call() -> None:
    of = case(20, 30, 64)  # kernels for sm_80
    kernel = flash.AttentionGradient(of.config, sweeps=1)
    out, lse = of.forward()
    said = (
        "AttentionGradient.launch: sweeps=1 with deterministic=True has no kernels for sm_80, because a "
        "fixed order is for kernels with wgmma, which is of sm_90a alone; give deterministic=False, or leave "
        "sweeps out"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        kernel.launch(of.dout, of.q, of.k, of.v, out, lse, backend="interpreter")


def test_arrays_that_no_tensor_map_takes_are_refused() -> None:
    of = ordered("nothing", 40, 50)
    backwards = of.q[:, :, ::-1]
    out, lse = of.forward()
    said = (
        "AttentionGradient.launch: sweeps=1 with deterministic=True needs arrays that tensor maps describe, "
        "but a stride of Q is -64 elements; leave sweeps out"
    )
    with pytest.raises(LaunchError, match=f"^{re.escape(said)}$"):
        of.kernel.launch(of.dout, backwards, of.k, of.v, out, lse, backend="interpreter")


def test_the_kernel_of_keys_alone_has_an_order() -> None:
    config = AttentionConfig(64, dtype="f16", target=_ON)
    builds = flash.AttentionGradient(config, sweeps=1).builds
    assert [owner for owner, build in builds.items() if build.config.adds_in_order] == [KEYS]
