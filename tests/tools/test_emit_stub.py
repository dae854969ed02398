"""Hosts in C and Rust that `tools/emit.py --stub` writes: compiled, run on the interpreter, and right."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_token import decode_a_token
from command_line import words
from contract_host import TYPES
from host_programs import Hosts
from judge import assert_attention_is_accurate
from stub_host import StubHost

from flash.commands import emit

PROGRAMS = Path(__file__).parents[1] / "programs"
Make = Callable[..., StubHost]
SCALE = 0.25
SEQ_Q, SEQ_K, BATCH, HEADS, KV_HEADS = 20, 37, 2, 4, 2


@pytest.fixture(params=["c", pytest.param("rust", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """What makes a host of the options of a kernel."""
    compilers: Hosts = request.getfixturevalue({"c": "cc", "rust": "rustc"}[request.param])
    folders = (tmp_path / str(n) for n in itertools.count())
    return lambda *argv: StubHost(compilers, request.param, next(folders), *argv)


def inputs(dtype: str, dim: int, dim_v: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(dim)
    return tuple(
        rng.standard_normal((BATCH, heads, rows, columns)).astype(TYPES[dtype])
        for heads, rows, columns in ((HEADS, SEQ_Q, dim), (KV_HEADS, SEQ_K, dim), (KV_HEADS, SEQ_K, dim_v))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "features"),
    [
        (["--head-dim", "16", "--causal", "--return-lse", "--return-max-logit"], {"causal": True}),
        (
            [
                *("--head-dim", "24", "--head-dim-v", "16", "--dtype", "f16", "--bias", "f16"),
                *("--window", "9,3", "--softcap", "20", "--sink"),
            ],
            {"window": (9, 3), "softcap": 20.0, "bias": (BATCH, HEADS, SEQ_Q, SEQ_K), "sink": (HEADS,)},
        ),
        (["--head-dim", "8", "--head-dim-v", "300", "--dtype", "bf16"], {}),
        (
            [*("--head-dim", "40", "--head-dim-v", "24", "--dtype", "f16", "--target", "sm_90a", "--causal")],
            {"causal": True},
        ),
    ],
    ids=["causal", "scores", "wide", "tensor-maps"],
)
def test_a_host_computes_attention(make: Make, argv: list[str], features: dict[str, Any]) -> None:
    host = make(*argv)
    dtype, dim, dim_v = (host.contract[key] for key in ("dtype", "head_dim", "head_dim_v"))
    q, k, v = inputs(dtype, dim, dim_v)
    rng = np.random.default_rng(1)
    arguments = dict(features)
    arrays = {"Q": q, "K": k, "V": v, "O": np.full((BATCH, HEADS, SEQ_Q, dim_v), np.nan, TYPES[dtype])}
    for name in ("bias", "sink"):
        if name in features:
            element = TYPES[host.array_of(name)["type"]]
            arguments[name] = rng.standard_normal(features[name]).astype(element)
            arrays[name] = np.broadcast_to(
                arguments[name], (BATCH, *arguments[name].shape[-3:])[: len(host.array_of(name)["dims"])]
            )
    lse = None
    if "--return-lse" in argv:
        lse = np.full((BATCH * HEADS, SEQ_Q), np.nan, np.float32)
        arrays["LSE"] = lse
    if "--return-max-logit" in argv:
        arrays["MAX_LOGIT"] = np.full(BATCH * HEADS, host.array_of("MAX_LOGIT")["initial"], np.float32)
    numbers = {"softmax_scale": SCALE, "group": HEADS // KV_HEADS, "section": HEADS, "softcap": 20.0}
    numbers |= {"window_left": 9, "window_right": 3}
    host.launch(arrays, **{name: value for name, value in numbers.items() if name in host.numbers})
    result = None if lse is None else lse.reshape(BATCH, HEADS, SEQ_Q)
    tops = arrays["MAX_LOGIT"].reshape(BATCH, HEADS) if "MAX_LOGIT" in arrays else None
    assert_attention_is_accurate(
        arrays["O"], result, q, k, v, max_logit=tops, softmax_scale=SCALE, **arguments
    )


def test_a_host_computes_packed_sequences(make: Make) -> None:
    host = make("--head-dim", "16", "--dtype", "f16", "--varlen", "--causal", "--return-lse")
    lengths = [(3, 9), (0, 4), (17, 17)]
    rng = np.random.default_rng(3)
    total_q, total_k = (sum(each) for each in zip(*lengths, strict=True))
    q, k, v = (
        rng.standard_normal((heads, rows, 16)).astype(np.float16)
        for heads, rows in ((HEADS, total_q), (KV_HEADS, total_k), (KV_HEADS, total_k))
    )
    ends = np.cumsum([(0, 0), *lengths], axis=0).astype(np.int32)
    out, lse = np.zeros_like(q), np.zeros((HEADS, total_q), np.float32)
    arrays = {"Q": q, "K": k, "V": v, "O": out, "LSE": lse}
    arrays |= {f"cu_seqlens_{of}": np.ascontiguousarray(ends[:, n]) for n, of in enumerate("qk")}
    host.launch(arrays, softmax_scale=SCALE, group=2, batch=3, max_seqlen_q=17, section=4)
    for (q0, k0), (q1, k1) in itertools.pairwise(ends):
        if q1 > q0:
            queries, keys = np.s_[None, :, q0:q1], np.s_[None, :, k0:k1]
            assert_attention_is_accurate(
                out[queries], lse[queries], q[queries], k[keys], v[keys], softmax_scale=SCALE, causal=True
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "layout", "splits"),
    [
        ("f16", {"paged", "e4m3", "rotary", "padded", "indexed"}, 2),  # append, attend, merge
        ("f32", {"alone", "rotary", "lse"}, 0),  # one launch
    ],
    ids=["three-launches", "one-launch"],
)
def test_hosts_decode_a_token(make: Make, dtype: str, layout: set[str], splits: int) -> None:
    decode_a_token(make, dtype, layout, splits)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group": 3}, ": heads must be group * kv_heads = 6, got 4\n"),
        ({"seq_q": 0}, ": seq_q must be from 1 to 2147483392, got 0\n"),
        ({"seq_k": 38}, "must have "),
        ({"seq_q": "many"}, "seq_q: must be a number"),
        ({"seq_q": 1 << 33}, "seq_q: "),
        ({"batch": None}, "batch: give it as NAME=VALUE\n"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_program_says_what_is_wrong_with_its_arguments(
    plain: StubHost, change: dict[str, Any], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    q, k, v = inputs("f32", 16, 16)
    arrays = {"Q": q, "K": k, "V": v, "O": np.zeros_like(q)}
    sizes = {"batch": BATCH, "heads": HEADS, "kv_heads": KV_HEADS, "group": 2, "seq_q": SEQ_Q, "seq_k": SEQ_K}
    arguments = {**sizes, "softmax_scale": SCALE, **change}
    assert (
        plain.run(arrays, {n: value for n, value in arguments.items() if value is not None}) == "exit code 1"
    )
    assert says in capfd.readouterr().err


@pytest.fixture(scope="module", params=["c", pytest.param("rust", marks=pytest.mark.slow)])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StubHost:
    """A host of a kernel without features."""
    compilers: Hosts = request.getfixturevalue({"c": "cc", "rust": "rustc"}[request.param])
    return StubHost(compilers, request.param, tmp_path_factory.mktemp("plain") / "host", "--head-dim", "16")


def test_a_header_checks_what_a_host_gives(cc: Hosts, tmp_path: Path) -> None:
    argv = ["--head-dim", "64", "--dtype", "f16", "--stub", "c", "--prefix", "small"]
    assert emit.main([*argv, "-o", str(tmp_path / "small.h")]) == 0
    program = cc.c(Path(shutil.copy(PROGRAMS / "stub_checks.c", tmp_path)))
    done = subprocess.run(
        [program],
        env=cc.environment | {"LD_LIBRARY_PATH": cc.environment["LIBRARY_PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "right: 0",
        "bytes 122880 94720, grid 8",
        "small: seq_q must be from 1 to 2147483392, got 0",
        "small: heads must be group * kv_heads = 6, got 4",
        "small: the number of CTAs along x must be from 1 to 2147483647, got 67108864000",
        "small: Q must be an address and a multiple of 16, got 0x0",
        "small: Q must be an address and a multiple of 16, got 0x1008",
        "small: K_row_stride must be a multiple of 8 elements, got 65",
        "small: O_row_stride must not be 0, because the array is written",
        "without keys: 0",
        "keys that repeat: 0",
        "backwards: 0",
        "launched: 1",
    ]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--stub", "go"], "argument --stub: invalid choice: 'go' (choose from"),
        (["--stub", "c", "--json"], "--stub and --json are two outputs; run the command twice"),
        (["--stub", "c", "--example", "x.c"], "--example needs -o FILE, which the program includes"),
        (words("--stub c --example x -o x"), "--example, --output and --cubin must be different files"),
        (["--example", "x.c"], "--prefix and --example need --stub"),
        (["--prefix", "x"], "--prefix and --example need --stub"),
        (["--stub", "rust", "--prefix", "x"], "--prefix is for --stub c; the names of Rust"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        emit.main(["--head-dim", "8", *argv])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_a_prefix_that_is_no_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for prefix in ("7th", "a-b", "int"):
        assert emit.main(["--head-dim", "8", "--stub", "c", "--prefix", prefix]) == 3
        says = (
            "error: stub: the prefix must be a name in C that begins with a letter, and neither a word of "
            f"the language nor ptxgen, got {prefix!r}; give another prefix"
        )
        assert says in capsys.readouterr().err
