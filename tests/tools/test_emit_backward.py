"""The kernels of gradients, emitted for hosts in other languages."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command_line import Command
from contract_host import Host, emitted_host
from gradient_judge import assert_gradients_are_accurate
from host_programs import Hosts
from stub_host import StubHost

import flash
from flash import gradient_kernels
from flash.commands import emit as tool  # noqa: F401  # of the fixture `call`
from flash.problem.config import AttentionConfig
from flash.problem.sequences import each_sequence
from flash.scores.features import SCORES
from ptxgen.errors import ConfigError

PROGRAM = "ptxgen emit"

SMALL = {"backward": ["backward", "--owner", "queries", "--head-dim", "16", "--dtype", "f16"], "sum": ["sum"]}


# ------------------------------------------------------------------------- what a host computes


def numbers_of(kernel: Host, given: dict[str, Any]) -> dict[str, Any]:
    """Those that the kernel has as parameters, or that its sizes are said by."""
    names = {p["name"] for p in kernel.contract["parameters"]} | set(kernel.contract["sizes"])
    return {name: value for name, value in given.items() if name in names}


def launch(kernel: Host, arrays: dict[str, Any], numbers: dict[str, Any]) -> None:
    """Launch a kernel on those of the arrays that it takes; make those that it writes and that are not
    there yet.
    """
    sizes = sizes_in(numbers)
    for array in kernel.contract["arrays"]:
        if array["name"] not in arrays:
            assert array["written"], array
            arrays[array["name"]] = kernel.empty(array["name"], **sizes)
    taken = {array["name"]: arrays[array["name"]] for array in kernel.contract["arrays"]}
    kernel.launch(taken, **numbers_of(kernel, numbers))


def summed(kernel: Host, terms: Any, shape: tuple[int, ...]) -> Any:
    """The terms, summed to the four axes of an array of scores by a launch of the sum kernel."""
    ratio = [a // b for a, b in zip(terms.shape, shape, strict=True)]
    result = kernel.empty("Y", **{f"m{n}": extent for n, extent in enumerate(shape)})
    kernel.launch({"X": terms, "Y": result}, **{f"r{n}": extent for n, extent in enumerate(ratio)})
    return result


class Step(NamedTuple):
    """A training step: options of its kernels, and the shapes of the arrays of scores."""

    options: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    dlse: bool = False


STEPS = {
    "rows": Step(("--causal", "--alibi", "--sink"), {"alibi_slopes": (1, 4), "sink": (2, 4)}, dlse=True),
    "keys": Step(("--key-bias", "f32"), {"key_bias": (2, 1, 21)}),
    "scores": Step(("--bias", "f32", "--window", "9,4"), {"bias": (1, 4, 18, 21)}),
    "broadcast": Step(("--bias", "f32"), {"bias": (2, 1, 1, 21)}),
    "one sweep": Step(
        ("--non-deterministic", "--causal", "--alibi", "--sink"),
        {"alibi_slopes": (1, 4), "sink": (2, 4)},
        dlse=True,
    ),
}
BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K = 2, 4, 2, 18, 21
DIM, DIM_V, SCALE = 16, 8, 0.25
WHOLE = {
    feature.argument: tuple(
        {"batch": BATCH, "heads": HEADS, "seq_q": SEQ_Q, "seq_k": SEQ_K}[axis] for axis in feature.axes
    )
    for feature in SCORES
    if feature.gradient_of
}


def in_four_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array of scores, or of terms, as [batch, heads, queries, keys]."""
    return (*shape[:2], *[1] * (4 - len(shape)), *shape[2:])


def sizes_in(numbers: dict[str, Any]) -> dict[str, int]:
    return {name: n for name, n in numbers.items() if isinstance(n, int)}


def gradients_of(
    make: Callable[..., Host],
    options: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    arrays: dict[str, Any],
    numbers: dict[str, Any],
) -> dict[str, Any]:
    """The gradients that the kernels of these options write, by the names of the arguments, with hosts that
    `make` makes of options of `ptxgen emit`. `shapes` are those of the arrays of scores; what the kernels
    write is put into `arrays`.
    """
    dims = ["--head-dim", str(DIM), "--head-dim-v", str(DIM_V), "--dtype", "f32", "--precision", "f32_grade"]
    how = [*dims, *options]
    launch(make(*[x for x in how if x != "--non-deterministic"], "--return-lse"), arrays, numbers)
    arrays["LSE"] = arrays["LSE"].reshape(arrays["dO"].shape[:-1])
    how += ["--wanted", ",".join(shapes), *(["--dlse"] if "dLSE" in arrays else [])]
    owners = ["queries", "keys"]
    if "--non-deterministic" in options:
        owners = ["deltas", "keys", "sums"]
        arrays["dQ_sums"] = np.zeros(arrays["Q"].shape, np.float32)
    for owner in (*owners, *(["scores"] if "bias" in shapes else [])):
        launch(make("backward", "--owner", owner, *how), arrays, numbers)
    result = {n: arrays[f"d{n.upper()}"] for n in "qkv"}
    for n, shape in shapes.items():
        (terms,) = [arrays[f"{of}{n}"] for of in ("row_", "key_", "d") if f"{of}{n}" in arrays]
        terms = terms.reshape(in_four_axes(terms.shape))
        result[n] = summed(make("sum"), terms, in_four_axes(shape)).reshape(shape)
    return result


@pytest.mark.parametrize(
    "name",
    [
        "rows",
        pytest.param("keys", marks=pytest.mark.slow),
        pytest.param("scores", marks=pytest.mark.slow),
        pytest.param("broadcast", marks=pytest.mark.nightly),
        pytest.param("one sweep", marks=pytest.mark.nightly),
    ],
)
def test_a_host_that_has_only_the_files_computes_gradients(name: str, call: Command) -> None:
    train(functools.partial(emitted_host, call), name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("broadcast", marks=pytest.mark.slow),
        pytest.param("rows", marks=pytest.mark.nightly),
        pytest.param("one sweep", marks=pytest.mark.nightly),
    ],
)
def test_a_host_in_c_computes_gradients(name: str, cc: Hosts, tmp_path: Path) -> None:
    folders = (tmp_path / str(n) for n in itertools.count())
    train(lambda *argv: StubHost(cc, "c", next(folders), *argv), name)


@pytest.mark.parametrize(
    ("dim", "causal"),
    [
        (24, True),
        pytest.param(64, False, marks=pytest.mark.nightly),
        pytest.param(136, True, marks=pytest.mark.slow),
    ],
)
def test_a_host_in_c_encodes_the_tensor_maps_of_gradients(
    dim: int, causal: bool, cc: Hosts, tmp_path: Path
) -> None:
    """On sm_90a, where kernels copy tiles by TMA: the gradients have the bits of a call in Python."""
    config = AttentionConfig(dim, dtype="f16", causal=causal, target="sm_90a")
    rng = np.random.default_rng(dim)
    arrays: dict[str, Any] = {
        name: rng.standard_normal((BATCH, heads, rows, dim)).astype(np.float16)
        for name, heads, rows in (
            ("Q", HEADS, SEQ_Q),
            ("K", KV_HEADS, SEQ_K),
            ("V", KV_HEADS, SEQ_K),
            ("dO", HEADS, SEQ_Q),
        )
    }
    q, k, v, dout = (arrays[name] for name in ("Q", "K", "V", "dO"))
    out, lse = flash.AttentionKernel(config).launch(q, k, v, return_lse=True, backend="cpu")
    arrays |= {"O": out, "LSE": lse}
    right = flash.AttentionGradient(config).launch(dout, q, k, v, out, lse, backend="interpreter")
    numbers: dict[str, Any] = {
        "batch": BATCH, "heads": HEADS, "kv_heads": KV_HEADS, "group": HEADS // KV_HEADS,
        "seq_q": SEQ_Q, "seq_k": SEQ_K, "softmax_scale": np.float32(config.scale),
    }  # fmt: skip
    options = ["--head-dim", str(dim), "--dtype", "f16", "--target", "sm_90a", *["--causal"] * causal]
    for owner in ("queries", "keys"):
        host = StubHost(cc, "c", tmp_path / owner, "backward", "--owner", owner, *options)
        assert host.contract["entry"].startswith(f"attention_gradient_{owner}_wgmma_f16_")
        launch(host, arrays, numbers)
    for name, gradient in (("dQ", right.dq), ("dK", right.dk), ("dV", right.dv)):
        assert arrays[name].tobytes() == gradient.tobytes(), name


def train(make: Callable[..., Host], name: str) -> None:
    """Compute the gradients of a step by hosts that `make` makes; they are accurate."""
    step, rng = STEPS[name], np.random.default_rng(len(name))

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    q, dout = normal(BATCH, HEADS, SEQ_Q, DIM), normal(BATCH, HEADS, SEQ_Q, DIM_V)
    k, v = (normal(BATCH, SEQ_K, KV_HEADS, dim).swapaxes(1, 2) for dim in (DIM, DIM_V))
    of_scores = {n: normal(*shape) for n, shape in step.shapes.items()}
    arrays: dict[str, Any] = {"Q": q, "K": k, "V": v, "dO": dout}
    if step.dlse:
        arrays["dLSE"] = normal(BATCH, HEADS, SEQ_Q)
    dlse = arrays.get("dLSE", np.zeros((BATCH, HEADS, SEQ_Q)))
    arrays |= {n: np.broadcast_to(array, WHOLE[n]) for n, array in of_scores.items()}
    numbers: dict[str, Any] = {
        "batch": BATCH, "heads": HEADS, "kv_heads": KV_HEADS, "group": HEADS // KV_HEADS,
        "seq_q": SEQ_Q, "seq_k": SEQ_K, "softmax_scale": np.float32(SCALE), "section": 1,
        "window_left": 9, "window_right": 4,
    }  # fmt: skip
    if "bias" in step.shapes:
        shared = step.shapes["bias"][:2]
        numbers |= {"bias_batch": shared[0], "bias_heads": shared[1]}
        numbers |= {"over_batch": BATCH // shared[0], "over_heads": HEADS // shared[1]}
    result = gradients_of(make, step.options, step.shapes, arrays, numbers)

    scores: dict[str, Any] = {"window": (9, 4)} if "--window" in step.options else {}
    assert_gradients_are_accurate(
        result, arrays["O"], dout, dlse, q, k, v, of_scores,
        softmax_scale=SCALE, causal="--causal" in step.options, **scores,
    )  # fmt: skip


@pytest.mark.slow
def test_a_host_computes_gradients_of_packed_sequences(call: Command) -> None:
    rng = np.random.default_rng(2)
    ends = {"q": [0, 5, 5, 23], "k": [0, 9, 13, 34]}
    lengths = {f"cu_seqlens_{side}": np.array(rows, np.int32) for side, rows in ends.items()}
    lengths["seqused_k"] = np.array([7, 4, 21], np.int32)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    # Two rows of Q, and some of K and V, are of no sequence.
    arrays: dict[str, Any] = {
        "Q": normal(HEADS, 25, DIM),
        "K": normal(KV_HEADS, 34, DIM),
        "V": normal(KV_HEADS, 34, DIM_V),
        "dO": normal(HEADS, 25, DIM_V),
        "alibi_slopes": normal(3, HEADS),
        "row_alibi_slopes": np.zeros((3, HEADS, 18), np.float32),
        **lengths,
    }
    arguments = {name: arrays[name] for name in ("Q", "K", "V", "dO", "alibi_slopes")}
    numbers = {
        "batch": 3, "heads": HEADS, "kv_heads": KV_HEADS, "group": HEADS // KV_HEADS, "total_q": 25,
        "total_k": 34, "max_seqlen_q": 18, "max_seqlen_k": 21, "softmax_scale": np.float32(SCALE),
        "section": 1,
    }  # fmt: skip
    options = ("--causal", "--alibi", "--varlen", "--seqused-k")
    result = gradients_of(
        functools.partial(emitted_host, call), options, {"alibi_slopes": (3, HEADS)}, arrays, numbers
    )
    unwritten = {"q": np.ones(25, bool), "k": np.ones(34, bool)}
    for b, queries, keys in each_sequence(**lengths):
        rows = {"q": queries, "k": keys, "v": keys}
        of_one = {n: result[n][None, :, part] for n, part in rows.items()}
        q, k, v = (arguments[n.upper()][None, :, part] for n, part in rows.items())
        dout, out = (arrays[n][None, :, queries] for n in ("dO", "O"))
        slopes = {"alibi_slopes": arguments["alibi_slopes"][b : b + 1]}
        of_one["alibi_slopes"] = result["alibi_slopes"][b : b + 1]
        assert_gradients_are_accurate(
            of_one, out, dout, np.zeros(dout.shape[:3]), q, k, v, slopes, softmax_scale=SCALE, causal=True
        )
        unwritten["q"][queries], unwritten["k"][keys] = False, False
    assert unwritten["q"].sum() == 2
    assert unwritten["k"].sum() == 2
    for n, rows_of in (("q", "q"), ("k", "k"), ("v", "k")):
        assert np.isnan(result[n][:, unwritten[rows_of]]).all()


# ------------------------------------------------------------------------------------ options


def test_kernels_of_a_call_take_the_same_options(call: Command) -> None:
    """What concerns another kernel of the call leaves a text as it is."""
    keys = [*SMALL["backward"], "--owner", "keys", "--alibi", "--key-bias", "f32"]
    assert call.quiet(*keys, "--wanted", "alibi_slopes", "--dlse") == call.quiet(*keys)
    several = call.quiet(*keys, "--wanted", "key_bias,alibi_slopes")
    assert several == call.quiet(*keys, "--wanted", "alibi_slopes,key_bias") != call.quiet(*keys)


@pytest.mark.nightly
def test_emission_depends_on_the_options_alone() -> None:
    """A fresh process with another hash seed writes the same bytes."""
    argv = ["--alibi", "--sink", "--wanted", "alibi_slopes,sink", "--json"]
    argv = [sys.executable, "-m", "ptxgen", "emit", *SMALL["backward"], *argv]
    result = {
        subprocess.run(
            argv, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(result) == 1


@pytest.mark.parametrize("language", ["c", "rust"])
def test_stubs_have_every_argument(language: str, call: Command) -> None:
    for kernel, argv in SMALL.items():
        contract = json.loads(call.quiet(*argv, "--json"))
        text = call.quiet(*argv, "--stub", language)
        assert contract["entry"] in text
        for parameter in contract["parameters"]:
            assert parameter["name"] in text, (kernel, parameter)


def test_python_refuses_what_the_options_cannot_say() -> None:
    paged = AttentionConfig(16, dtype="f16", varlen=True, page_size=4)
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.backward(paged, "keys")
    assert str(stopped.value) == (
        "backward: keys and values in pages have no gradients, got page_size=4; use page_size=None"
    )
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.backward(AttentionConfig(16, dtype="f16"), "key")
    assert str(stopped.value) == (
        "backward: owner must be one of 'queries', 'keys', 'scores', 'elements', 'deltas', 'sums', "
        "got 'key'; did you mean 'keys'?"
    )
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.sum_terms("e4m3")  # type: ignore[arg-type]  # it is no type of Q
    assert str(stopped.value) == "sum_terms: dtype must be one of 'f32', 'f16', 'bf16', got 'e4m3'"


@pytest.mark.parametrize(
    "language", [pytest.param("c", marks=pytest.mark.slow), pytest.param("rust", marks=pytest.mark.nightly)]
)
def test_hosts_refuse_a_bias_that_is_not_shared_evenly(
    language: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compilers: Hosts = request.getfixturevalue({"c": "cc", "rust": "rustc"}[language])
    argv = ["backward", "--owner", "scores", "--head-dim", "16", "--dtype", "f16", "--bias", "f32"]
    kernel = StubHost(compilers, language, tmp_path / "scores", *argv)
    numbers: dict[str, Any] = {
        "batch": 3, "bias_batch": 3, "over_batch": 1, "heads": 4, "kv_heads": 4, "group": 1, "bias_heads": 1,
        "over_heads": 4, "seq_q": 2, "seq_k": 3, "softmax_scale": 0.25,
    }  # fmt: skip
    for wrong, says in (
        ({}, ""),
        ({"over_batch": 2}, ": batch must be bias_batch * over_batch = 6, got 3\n"),
        ({"over_heads": 3}, ": over_heads must be heads / bias_heads = 4, got 3\n"),
        ({"bias_heads": 3, "over_heads": 1}, ": over_heads must be heads / bias_heads = 0, got 1\n"),
        ({"bias_heads": 0}, ": bias_heads must be from 1 to 2147483647, got 0\n"),
    ):
        arguments = {**numbers, **wrong}
        names = [array["name"] for array in kernel.contract["arrays"]]
        arrays = {name: kernel.empty(name, **sizes_in(arguments)) for name in names}
        capfd.readouterr()
        assert kernel.run(arrays, arguments) == ("exit code 1" if says else "")
        assert capfd.readouterr().err.endswith(says)
