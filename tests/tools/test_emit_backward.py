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
from contract_host import Host
from gradient_judge import assert_gradients_are_accurate
from host_programs import Hosts
from stub_host import StubHost

from flash import gradient_kernels
from flash.commands import emit as tool
from flash.commands.parts.emit_gradients import KINDS
from flash.problem.config import AttentionConfig
from flash.problem.sequences import each_sequence
from flash.scores.features import SCORES
from ptxgen.errors import ConfigError
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler

SMALL = {"backward": ["backward", "--owner", "queries", "--head-dim", "16", "--dtype", "f16"], "sum": ["sum"]}


def emitted(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    assert tool.main(argv) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    return printed.out


def host(capfd: pytest.CaptureFixture[str], *argv: str) -> Host:
    """A host with the two files of a kernel."""
    return Host(emitted(capfd, *argv), emitted(capfd, *argv, "--json"))


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
    found = kernel.empty("Y", **{f"m{n}": extent for n, extent in enumerate(shape)})
    kernel.launch({"X": terms, "Y": found}, **{f"r{n}": extent for n, extent in enumerate(ratio)})
    return found


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
    found = {n: arrays[f"d{n.upper()}"] for n in "qkv"}
    for n, shape in shapes.items():
        (terms,) = [arrays[f"{of}{n}"] for of in ("row_", "key_", "d") if f"{of}{n}" in arrays]
        terms = terms.reshape(in_four_axes(terms.shape))
        found[n] = summed(make("sum"), terms, in_four_axes(shape)).reshape(shape)
    return found


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
def test_a_host_that_has_only_the_files_computes_gradients(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    train(functools.partial(host, capfd), name)


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
    found = gradients_of(make, step.options, step.shapes, arrays, numbers)

    scores: dict[str, Any] = {"window": (9, 4)} if "--window" in step.options else {}
    assert_gradients_are_accurate(
        found, arrays["O"], dout, dlse, q, k, v, of_scores,
        softmax_scale=SCALE, causal="--causal" in step.options, **scores,
    )  # fmt: skip


@pytest.mark.slow
def test_a_host_computes_gradients_of_packed_sequences(capfd: pytest.CaptureFixture[str]) -> None:
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
    given = {name: arrays[name] for name in ("Q", "K", "V", "dO", "alibi_slopes")}
    numbers = {
        "batch": 3, "heads": HEADS, "kv_heads": KV_HEADS, "group": HEADS // KV_HEADS, "total_q": 25,
        "total_k": 34, "max_seqlen_q": 18, "max_seqlen_k": 21, "softmax_scale": np.float32(SCALE),
        "section": 1,
    }  # fmt: skip
    options = ("--causal", "--alibi", "--varlen", "--seqused-k")
    found = gradients_of(
        functools.partial(host, capfd), options, {"alibi_slopes": (3, HEADS)}, arrays, numbers
    )
    unwritten = {"q": np.ones(25, bool), "k": np.ones(34, bool)}
    for b, queries, keys in each_sequence(**lengths):
        rows = {"q": queries, "k": keys, "v": keys}
        of_one = {n: found[n][None, :, part] for n, part in rows.items()}
        q, k, v = (given[n.upper()][None, :, part] for n, part in rows.items())
        dout, out = (arrays[n][None, :, queries] for n in ("dO", "O"))
        slopes = {"alibi_slopes": given["alibi_slopes"][b : b + 1]}
        of_one["alibi_slopes"] = found["alibi_slopes"][b : b + 1]
        assert_gradients_are_accurate(
            of_one, out, dout, np.zeros(dout.shape[:3]), q, k, v, slopes, softmax_scale=SCALE, causal=True
        )
        unwritten["q"][queries], unwritten["k"][keys] = False, False
    assert unwritten["q"].sum() == 2
    assert unwritten["k"].sum() == 2
    for n, rows_of in (("q", "q"), ("k", "k"), ("v", "k")):
        assert np.isnan(found[n][:, unwritten[rows_of]]).all()


# ------------------------------------------------------------------------------------ options

OPTIONS = {
    "backward": [
        ["--owner", "keys"],
        ["--owner", "scores", "--bias", "f32"],
        ["--dtype", "bf16"],
        ["--dtype", "f32", "--precision", "tf32"],
        ["--causal"],
        ["--causal", "top_left"],
        ["--alibi"],
        ["--alibi", "--wanted", "alibi_slopes"],
        ["--dlse"],
        ["--alignment", "4"],
        ["--varlen", "--seqused-q"],
        ["--non-deterministic", "--owner", "deltas"],
        ["--non-deterministic", "--owner", "keys"],
        ["--non-deterministic", "--owner", "sums"],
    ],
    "sum": [["--dtype", "f16"], ["--target", "sm_90"]],
}


@pytest.mark.parametrize("kernel", KINDS)
def test_every_option_makes_another_kernel_that_its_contract_describes(
    kernel: str, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = set()
    for argv in [[], *OPTIONS[kernel]]:
        made = host(capfd, *SMALL[kernel], *argv)
        texts.add(made.text)
        (declared,) = parse(made.text).kernels
        contract = made.contract
        assert (contract["kind"], contract["entry"]) == (kernel, declared.name)
        assert [p["type"] for p in contract["parameters"]] == [p.type for p in declared.params]
        assert contract["block"] == [declared.threads, 1, 1]
        assert contract["dynamic_shared_bytes"] == declared.dynamic_shared_bytes
        addresses = [p["name"] for p in contract["parameters"] if p["type"] == "u64"]
        assert addresses == [array["name"] for array in contract["arrays"]]
    assert len(texts) == 1 + len(OPTIONS[kernel])


def test_kernels_of_a_call_take_the_same_options(capfd: pytest.CaptureFixture[str]) -> None:
    """What concerns another kernel of the call leaves a text as it is."""
    keys = [*SMALL["backward"], "--owner", "keys", "--alibi", "--key-bias", "f32"]
    assert emitted(capfd, *keys, "--wanted", "alibi_slopes", "--dlse") == emitted(capfd, *keys)
    several = emitted(capfd, *keys, "--wanted", "key_bias,alibi_slopes")
    assert several == emitted(capfd, *keys, "--wanted", "alibi_slopes,key_bias") != emitted(capfd, *keys)


@pytest.mark.nightly
def test_emission_depends_on_the_options_alone() -> None:
    """A fresh process with another hash seed writes the same bytes."""
    argv = ["--alibi", "--sink", "--wanted", "alibi_slopes,sink", "--json"]
    argv = [sys.executable, "-m", "ptxgen", "emit", *SMALL["backward"], *argv]
    found = {
        subprocess.run(
            argv, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.sample(0, gate=2)
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "argv",
    [
        ["backward", "--owner", "queries", "--head-dim", "128", "--dtype", "bf16", "--causal"],
        ["backward", "--owner", "keys", "--head-dim", "128", "--dtype", "bf16", "--causal"],
        ["backward", "--owner", "scores", "--head-dim", "64", "--dtype", "f16", "--bias", "f32"],
        ["backward", "--owner", "keys", "--head-dim", "64", "--dtype", "f16", "--non-deterministic"],
        ["backward", "--owner", "sums", "--head-dim", "64", "--dtype", "f16", "--non-deterministic"],
        ["sum", "--dtype", "bf16"],
    ],
    ids=lambda argv: "-".join(argv[::2]),
)
def test_the_assembler_takes_them_for_every_generation_without_spills(
    argv: list[str], assembler: Assembler, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for target in ("sm_80", "sm_90", "sm_120"):
        cubin = tmp_path / f"{target}.cubin"
        how = ["--target", target, "--assemble", "--cubin", str(cubin), "-o", str(tmp_path / "x")]
        assert tool.main([*argv, *how]) == 0
        said = capfd.readouterr().err
        assert f"assembler  {assembler.name} {assembler.version}, for {target}\n" in said
        assert "spills     0 bytes stored, 0 loaded\nstack      0 bytes per thread\n" in said
        assert cubin.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("kernel", "argv"),
    [
        ("sum", []),
        ("backward", []),
        *(
            pytest.param("backward", argv, marks=pytest.mark.slow)
            for argv in (
                ["--owner", "keys"],
                ["--owner", "scores", "--bias", "f32"],
                ["--alibi", "--sink", "--wanted", "alibi_slopes,sink", "--dlse", "--causal"],
                ["--varlen", "--owner", "keys", "--seqused-k"],
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_accesses_are_proved(kernel: str, argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert tool.main([*SMALL[kernel], *argv, "--prove", "--json"]) == 0
    printed = capfd.readouterr()
    contract = json.loads(printed.out)
    assert (contract["proof"]["complete"], contract["global_proof"]["complete"]) == (True, True)
    count = len(contract["global_proof"]["accesses"])
    assert count > 0
    said = printed.err.splitlines()
    assert f"{contract['entry']}: {count} of {count} global accesses proved" in said
    assert said[-1] == "races: not judged; a run with the sanitizer `race` looks for them"


@pytest.mark.parametrize("language", ["c", "rust"])
def test_stubs_have_every_argument(language: str, capfd: pytest.CaptureFixture[str]) -> None:
    for kernel, argv in SMALL.items():
        contract = json.loads(emitted(capfd, *argv, "--json"))
        text = emitted(capfd, *argv, "--stub", language)
        assert contract["entry"] in text
        for parameter in contract["parameters"]:
            assert parameter["name"] in text, (kernel, parameter)


@pytest.mark.parametrize("kernel", KINDS)
def test_help_shows_examples_that_work(
    kernel: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main([kernel, "--help"])
    assert stopped.value.code == 0
    shown = capfd.readouterr().out.replace("\\\n", "")
    examples = [
        line.split()[2:] for line in shown.splitlines() if line.startswith(f"  ptxgen emit {kernel} ")
    ]
    assert len(examples) == {"backward": 6, "sum": 2}[kernel]
    monkeypatch.chdir(tmp_path)
    for argv in examples:
        assert tool.main([word for word in argv if word != "--assemble"]) == 0
    assert len([*tmp_path.iterdir()]) == len({argv[-1] for argv in examples if "-o" in argv})


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--owner", "scores"],
            "backward: owner='scores' is for the gradient of a bias, which the config does not have; give "
            "bias='f32', or take owner='queries' and owner='keys'",
        ),
        (
            ["--non-deterministic"],
            "backward: owner='queries' is none of the kernels with deterministic=False, which are deltas, "
            "keys, sums, scores; use deterministic=True",
        ),
        (
            ["--owner", "sums"],
            "backward: owner='sums' is none of the kernels with deterministic=True, which are queries, keys, "
            "scores; use deterministic=False",
        ),
        (
            [
                "--owner",
                "keys",
                "--non-deterministic",
                "--dtype",
                "f32",
                "--precision=f32_grade",
                "--head-dim=136",
            ],
            "backward: one sweep has no kernels for head_dim=136, head_dim_v=136, dtype='f32' with "
            "precision='f32_grade'; use deterministic=True",
        ),
        (
            ["--wanted", "sink"],
            "backward: wanted must name arrays of scores with a gradient (none, because the config asks for "
            "no such array), got 'sink'",
        ),
        (
            ["--alibi", "--sink", "--wanted", "alibi_slope"],
            "backward: wanted must name arrays of scores with a gradient (alibi_slopes, sink), got "
            "'alibi_slope'; did you mean 'alibi_slopes'?",
        ),
        (
            ["--dtype", "f32", "--target", "sm_75"],
            "backward: kernels of gradients copy asynchronously, which needs sm_80 or later, got sm_75; only "
            "backend 'cpu' computes gradients without such a GPU",
        ),
        (
            ["--head-dim-v", "257"],
            "backward: head_dim_v must be at most 256 in kernels of gradients, got 257; only backend 'cpu' "
            "computes gradients of wider values",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_3(
    argv: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.ptx"
    assert tool.main([*SMALL["backward"], *argv, "-o", str(out)]) == 3
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", f"ptxgen emit: error: {message}\n")
    assert not out.exists()


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
        "backward: owner must be one of 'queries', 'keys', 'scores', 'deltas', 'sums', got 'key'; did you "
        "mean 'keys'?"
    )
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.sum_terms("e4m3")  # type: ignore[arg-type]  # it is no type of Q
    assert str(stopped.value) == "sum_terms: dtype must be one of 'f32', 'f16', 'bf16', got 'e4m3'"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["backward", "--head-dim", "16"], "ptxgen emit backward: error: --owner is required"),
        (["backward", "--owner", "keys"], "ptxgen emit backward: error: --head-dim is required"),
        (
            [*SMALL["backward"], "--tile", "32"],
            "ptxgen emit backward: error: unrecognized arguments: --tile 32",
        ),
        (["sum", "--head-dim", "16"], "ptxgen emit sum: error: unrecognized arguments: --head-dim 16"),
        (
            ["bakward"],
            "ptxgen emit: error: the kernels are forward, decode, append, merge, backward, sum, got "
            "'bakward'; did you mean 'backward'?",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main(argv)
    assert stopped.value.code == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == message


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
        given = {**numbers, **wrong}
        names = [array["name"] for array in kernel.contract["arrays"]]
        arrays = {name: kernel.empty(name, **sizes_in(given)) for name in names}
        capfd.readouterr()
        assert kernel.run(arrays, given) == ("exit code 1" if says else "")
        assert capfd.readouterr().err.endswith(says)
