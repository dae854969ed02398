"""What `ptxgen emit` does alike for all kernels other than the forward kernel."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from cache_token import decode_a_token
from command_line import Command, words
from contract_host import emitted_host

from flash.commands import emit as tool
from flash.commands.parts.emit_kinds import KINDS
from flash.operands.blocks import CACHED_DTYPES
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler

PROGRAM = "ptxgen emit"
SMALL = {
    "decode": ["decode", "--head-dim", "16", "--tile", "16", "--block-q", "16"],
    "append": ["append", "--head-dim", "16"],
    "merge": ["merge", "--head-dim-v", "16"],
    "backward": ["backward", "--owner", "queries", "--head-dim", "16", "--dtype", "f16"],
    "widen": ["widen", "--matrix", "Q", "--head-dim", "16", "--dtype", "e4m3", "--target", "sm_90a"],
    "sum": ["sum"],
    "round": ["round"],
}
_FP8 = ("--dtype", "e4m3", "--target", "sm_90a")
OPTIONS = {
    "decode": [
        ["--head-dim-v", "8"],
        ["--dtype", "f16", "--block-q", "32"],
        ["--dtype", "f32", "--precision", "tf32", "--block-q", "64"],
        ["--tile", "32"],
        ["--block-q", "32"],
        ["--causal"],
        ["--window", "5,"],
        ["--window", ",0"],
        ["--softcap", "30"],
        ["--alibi"],
        ["--mask"],
        ["--sink"],
        ["--pack-gqa"],
        ["--return-lse"],
        ["--alignment", "4"],
        ["--target", "sm_90"],
        ["--page-size", "4"],
        ["--page-size", "64"],
        ["--leftpad-k"],
        ["--cache-batch-idx"],
        ["--splits"],
        ["--dtype", "f16", "--block-q", "32", "--kv-dtype", "e4m3"],
        ["--dtype", "f16", "--block-q", "32", "--stages", "2"],
        ["--block-q", "auto", "--seq-q", "40"],
        ["--block-q", "auto", "--group", "40"],
        ["--append"],
        ["--append", "--rotary-dim", "8"],
        ["--append", "--rotary-dim", "8", "--rotary-interleaved"],
        ["--append", "--group", "2"],
    ],
    "append": [
        ["--head-dim-v", "8"],
        ["--dtype", "f16"],
        ["--dtype", "bf16"],
        ["--target", "sm_90"],
        ["--page-size", "4"],
        ["--kv-dtype", "e4m3"],
        ["--leftpad-k"],
        ["--cache-batch-idx"],
        ["--rotary-dim", "8"],
        ["--rotary-dim", "8", "--rotary-interleaved"],
        ["--counts"],
    ],
    "merge": [
        ["--head-dim-v", "8"],
        ["--dtype", "f16"],
        ["--parts", "bf16"],
        ["--return-lse"],
        ["--alignment", "4"],
        ["--target", "sm_90"],
    ],
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
        [*_FP8],
        [*_FP8, "--out-dtype", "f16"],
        [*_FP8, "--scale-block", "64"],
        [*_FP8, "--dout-dtype", "e5m2"],
    ],
    "widen": [["--matrix", "dO", "--dout-dtype", "e5m2"], ["--head-dim", "32"], ["--scale-block", "64"]],
    "sum": [["--dtype", "f16"], ["--target", "sm_90"]],
    "round": [["--dtype", "f16"], ["--target", "sm_90"]],
}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KINDS)
def test_every_option_makes_another_kernel_that_its_contract_describes(kernel: str, call: Command) -> None:
    texts = set()
    for argv in [[], *OPTIONS[kernel]]:
        host = emitted_host(call, *SMALL[kernel], *argv)
        texts.add(host.text)
        (declared,) = parse(host.text).kernels
        contract = host.contract
        assert (contract["kind"], contract["entry"]) == (kernel, declared.name)
        assert [p["type"] for p in contract["parameters"]] == [p.type for p in declared.params]
        assert contract["block"] == [declared.threads, 1, 1]
        assert contract["dynamic_shared_bytes"] == declared.dynamic_shared_bytes
        addresses = [p["name"] for p in contract["parameters"] if p["type"] == "u64"]
        assert addresses == [array["name"] for array in contract["arrays"]]
    assert len(texts) == 1 + len(OPTIONS[kernel])


@pytest.mark.sample(0, gate=5)
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "argv",
    [
        ["decode", "--head-dim", "128", "--dtype", "bf16", "--causal"],
        words(
            "decode --head-dim 128 --dtype bf16 --causal --splits --group 8 --page-size 64 "
            "--cache-batch-idx --leftpad-k"
        ),
        words(
            "decode --head-dim 128 --dtype bf16 --causal --splits --group 8 --page-size 64 "
            "--append --rotary-dim 128"
        ),
        ["decode", "--head-dim", "64", "--causal", "--append", "--rotary-dim", "32"],
        ["append", "--head-dim", "128", "--dtype", "bf16", "--rotary-dim", "128"],
        ["append", "--head-dim", "64", "--page-size", "16"],
        ["merge", "--head-dim-v", "128", "--dtype", "bf16", "--return-lse"],
        ["backward", "--owner", "queries", "--head-dim", "128", "--dtype", "bf16", "--causal"],
        ["backward", "--owner", "keys", "--head-dim", "128", "--dtype", "bf16", "--causal"],
        ["backward", "--owner", "scores", "--head-dim", "64", "--dtype", "f16", "--bias", "f32"],
        ["backward", "--owner", "keys", "--head-dim", "64", "--dtype", "f16", "--non-deterministic"],
        ["backward", "--owner", "sums", "--head-dim", "64", "--dtype", "f16", "--non-deterministic"],
        ["sum", "--dtype", "bf16"],
        ["round", "--dtype", "bf16"],
    ],
    ids=lambda argv: "-".join(argv[::3]),
)
def test_the_assembler_takes_them_for_every_generation_without_spills(
    argv: list[str], assembler: Assembler, tmp_path: Path, call: Command
) -> None:
    for target in ("sm_80", "sm_90", "sm_120"):
        cubin = tmp_path / f"{target}.cubin"
        files = ["--cubin", str(cubin), "-o", str(tmp_path / "x")]
        code, _, err = call(*argv, "--target", target, "--assemble", *files)
        assert code == 0
        assert f"assembler  {assembler.name} {assembler.version}, for {target}\n" in err
        assert "spills     0 bytes stored, 0 loaded\nstack      0 bytes per thread\n" in err
        assert cubin.read_bytes().startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize("kernel", ["decode", "append"])
def test_the_assembler_takes_those_for_caches_of_one_byte(
    kernel: str, assembler: Assembler, tmp_path: Path
) -> None:
    argv = [kernel, "--head-dim", "64", "--dtype", "f16", "--kv-dtype", "e4m3"]
    argv += ["--append", "--rotary-dim", "64"] if kernel == "decode" else []
    for target in ([], ["--target", "sm_120"]):
        assert tool.main([*argv, *target, "--assemble", "-o", str(tmp_path / "x")]) == 0
        name = target[1] if target else "sm_89"
        assert f".target {name}\n" in (tmp_path / "x").read_text()
        assembler.assemble((tmp_path / "x").read_text(), name)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        *((kernel, "") for kernel in KINDS),
        *(
            pytest.param(kernel, options, marks=[] if "--splits" in options else pytest.mark.slow)
            for kernel, options in (
                ("decode", "--causal"),
                ("decode", "--dtype f16 --block-q 32"),
                ("decode", "--splits"),
                ("decode", "--mask"),
                ("decode", "--page-size 4"),
                ("decode", "--leftpad-k"),
                ("decode", "--cache-batch-idx"),
                ("decode", "--dtype f16 --block-q 32 --kv-dtype e4m3"),
                ("decode", "--append --rotary-dim 8 --page-size 4 --splits"),
                ("decode", "--append --dtype f16 --block-q 32 --kv-dtype e4m3"),
                ("backward", "--owner keys"),
                ("backward", "--owner scores --bias f32"),
                ("backward", "--alibi --sink --wanted alibi_slopes,sink --dlse --causal"),
                ("backward", "--varlen --owner keys --seqused-k"),
            )
        ),
    ],
)
def test_accesses_are_proved(kernel: str, options: str, call: Command) -> None:
    code, out, err = call(*SMALL[kernel], *words(options), "--prove", "--json")
    assert code == 0
    contract = json.loads(out)
    assert (contract["proof"]["complete"], contract["global_proof"]["complete"]) == (True, True)
    count = len(contract["global_proof"]["accesses"])
    assert count > 0
    lines = err.splitlines()
    assert f"{contract['entry']}: {count} of {count} global accesses proved" in lines
    assert lines[-1] == "races: not judged; a run with the sanitizer `race` looks for them"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "count"),
    [("decode", 5), ("append", 3), ("merge", 2), ("backward", 6), ("widen", 2), ("sum", 2), ("round", 2)],
)
def test_help_shows_examples_that_work(
    kernel: str, count: int, tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = call.help(kernel).replace("\\\n", "")
    examples = [
        line.split()[2:] for line in shown.splitlines() if line.startswith(f"  ptxgen emit {kernel} ")
    ]
    assert len(examples) == count
    monkeypatch.chdir(tmp_path)
    for argv in examples:
        assert tool.main([word for word in argv if word != "--assemble"]) == 0
    assert len([*tmp_path.iterdir()]) == len({argv[-1] for argv in examples if "-o" in argv})


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("dtype", "layout", "splits"),
    [
        ("f32", set(), 0),
        ("f32", {"paged", "padded", "indexed"}, 3),
        ("bf16", {"paged", "indexed", "lse"}, 2),
        ("f16", {"padded", "rotary"}, 1),
        ("f16", {"paged", "e4m3", "rotary", "padded", "indexed"}, 2),
        ("bf16", {"e4m3"}, 0),
        ("f16", {"paged", "counted", "rotary"}, 0),
        ("f16", {"mask", "paged", "padded"}, 2),
        ("f32", {"alone"}, 0),
        ("f32", {"alone", "rotary", "lse"}, 0),
        ("f16", {"alone", "rotary", "paged", "padded", "indexed"}, 3),
        ("bf16", {"alone", "rotary", "e4m3"}, 2),
        ("bf16", {"alone", "paged", "e5m2"}, 0),
        ("f16", {"rotary", "e5m2"}, 2),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_token_is_decoded_by_what_the_contracts_say(
    dtype: str, layout: set[str], splits: int, call: Command
) -> None:
    decode_a_token(functools.partial(emitted_host, call), dtype, layout, splits)


def test_forward_may_be_named(call: Command) -> None:
    small = SMALL["decode"][1:]
    assert call.quiet("forward", *small) == call.quiet(*small)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["decode", "--head-dim", "16", "--page-size", "257"],
            "CacheConfig: page_size must be an integer from 1 to 256, or None for contiguous memory, got 257",
        ),
        (
            ["append", "--head-dim", "16", "--kv-dtype", "f8"],
            f"CacheConfig: kv_dtype must be {', '.join(map(repr, CACHED_DTYPES))}, or None for the type of "
            "the queries, got 'f8'",
        ),
        (
            ["decode", "--head-dim", "16", "--kv-dtype", "e4m3"],
            "decode: queries for a cache of 'e4m3' must be of 'f16' or 'bf16', got 'f32'",
        ),
        (
            ["decode", "--head-dim", "20", "--dtype", "f16", "--kv-dtype", "e4m3"],
            "decode: head_dim and head_dim_v of a cache of 'e4m3' must be multiples of 8, got 20 and 20",
        ),
        (
            ["decode", "--head-dim", "16", "--dtype", "f16", "--kv-dtype", "e4m3", "--target", "sm_80"],
            "decode: a cache of 'e4m3' needs sm_89 or later, got sm_80; use kv_dtype=None",
        ),
        (
            ["append", "--head-dim", "16", "--kv-dtype", "e4m3", "--target", "sm_87"],
            "append: a cache of 'e4m3' needs sm_89 or later, got sm_87; use kv_dtype=None",
        ),
        (
            ["decode", "--head-dim", "16", "--seq-q", "0"],
            "decode: seq_q must be an integer from 1 to 2147483647, got 0",
        ),
        (
            ["decode", "--head-dim", "16", "--group", "1.5"],
            "decode: group must be an integer from 1 to 2147483647, got 1.5",
        ),
        (
            ["decode", "--head-dim", "700"],
            "AttentionConfig: head_dim must be an integer from 1 to 576, got 700; beyond 576 a CTA cannot "
            "keep its rows in shared memory",
        ),
        (
            ["decode", "--head-dim", "16", "--append", "--rotary-interleaved"],
            "decode: rotary_interleaved is for a rotary_dim; give one",
        ),
        (
            ["decode", "--head-dim", "16", "--append", "--rotary-dim", "18"],
            "decode: rotary_dim must be an even number from 0 to head_dim=16, got 18",
        ),
        (
            ["decode", "--head-dim", "16", "--block-q", "16", "--append", "--seq-q", "9", "--group", "2"],
            "decode: a kernel that appends must have the queries of a head of K and V in one CTA, "
            "got 9 of 2 heads, which are 2 CTAs of 16 rows; use append=False and the kernel of "
            "cache_kernels.append",
        ),
        (["append", "--head-dim", "577"], "append: head_dim must be an integer from 1 to 576, got 577"),
        (
            ["append", "--head-dim", "16", "--head-dim-v", "513"],
            "append: head_dim_v must be an integer from 1 to 512, got 513",
        ),
        (
            ["append", "--head-dim", "16", "--rotary-dim", "7"],
            "append: rotary_dim must be an even number from 0 to head_dim=16, got 7",
        ),
        (
            ["append", "--head-dim", "16", "--rotary-dim", "18"],
            "append: rotary_dim must be an even number from 0 to head_dim=16, got 18",
        ),
        (
            ["append", "--head-dim", "16", "--rotary-interleaved"],
            "append: rotary_interleaved is for a rotary_dim; give one",
        ),
        (
            ["append", "--head-dim", "16", "--dtype", "f61"],
            "append: dtype must be one of 'f32', 'f16', 'bf16', got 'f61'; did you mean 'f16'?",
        ),
        (["merge", "--head-dim-v", "0"], "merge: head_dim_v must be an integer from 1 to 512, got 0"),
        (
            ["merge", "--head-dim-v", "6", "--dtype", "f16", "--alignment", "8"],
            "merge: alignment must be one of 4, 2, got 8",
        ),
        (
            ["merge", "--head-dim-v", "6", "--parts", "e4m3"],
            "merge: parts must be one of 'f32', 'f16', 'bf16', got 'e4m3'",
        ),
        (
            ["merge", "--head-dim-v", "6", "--target", "sm_9"],
            "unknown target 'sm_9'; did you mean 'sm_90'? Known targets: sm_75, sm_80, sm_86, "
            "sm_87, sm_89, sm_90, sm_90a, sm_100, sm_100a, sm_100f, sm_103, sm_103a, sm_103f, sm_110, "
            "sm_110a, sm_110f, sm_120, sm_120a, sm_120f, sm_121, sm_121a, sm_121f",
        ),
        (
            [*SMALL["backward"], "--owner", "scores"],
            "backward: owner='scores' is for the gradient of a bias, which the config does not have; give "
            "bias='f32', or take owner='queries' and owner='keys'",
        ),
        (
            [*SMALL["backward"], "--non-deterministic"],
            "backward: owner='queries' is none of the kernels with deterministic=False, which are deltas, "
            "keys, sums, scores, elements; use deterministic=True",
        ),
        (
            [*SMALL["backward"], "--owner", "sums"],
            "backward: owner='sums' is none of the kernels with deterministic=True, which are queries, keys, "
            "scores, elements; use deterministic=False",
        ),
        (
            [
                *SMALL["backward"],
                *words("--owner keys --non-deterministic --precision=f32_grade --dtype f32 --head-dim=136"),
            ],
            "backward: one sweep has no kernels for head_dim=136, head_dim_v=136, dtype='f32' with "
            "precision='f32_grade'; use deterministic=True",
        ),
        (
            [*SMALL["backward"], "--wanted", "sink"],
            "backward: wanted must name arrays of scores with a gradient (none, because the config asks for "
            "no such array), got 'sink'",
        ),
        (
            [*SMALL["backward"], "--alibi", "--sink", "--wanted", "alibi_slope"],
            "backward: wanted must name arrays of scores with a gradient (alibi_slopes, sink), got "
            "'alibi_slope'; did you mean 'alibi_slopes'?",
        ),
        (
            [*SMALL["backward"], "--dtype", "f32", "--target", "sm_75", "--head-dim=200"],
            "backward: head_dim=200, head_dim_v=200 needs 72704 bytes of shared memory, but sm_75 allows "
            "65536 bytes per block; only backend 'cpu' computes these gradients",
        ),
        (
            [*SMALL["backward"], "--target", "sm_75", "--head-dim-v", "257"],
            "backward: head_dim and head_dim_v must be at most 256 in kernels of gradients on sm_75, got 16 "
            "and 257; only backend 'cpu' computes gradients of wider rows",
        ),
    ],
)
def test_what_cannot_be_is_3(argv: list[str], message: str, tmp_path: Path, call: Command) -> None:
    out = tmp_path / "out.ptx"
    assert call.error(*argv, "-o", str(out)) == (3, message)
    assert not out.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["deocde", "--head-dim", "16"],
            "the kernels are forward, decode, append, merge, backward, widen, sum, round, got "
            "'deocde'; did you mean 'decode'?",
        ),
        (["decode"], "ptxgen emit decode: error: --head-dim is required"),
        (["append", "--json"], "ptxgen emit append: error: --head-dim is required"),
        (["merge", "--dtype", "f16"], "ptxgen emit merge: error: --head-dim-v is required"),
        (
            ["decode", "--head-dim", "16", "--varlen"],
            "ptxgen emit decode: error: unrecognized arguments: --varlen",
        ),
        (
            ["merge", "--head-dim-v", "x"],
            "ptxgen emit merge: error: argument --head-dim-v: must be a number, got 'x'",
        ),
        (
            [*SMALL["append"], "--cubin", "a", "-o", "a"],
            "ptxgen emit append: error: --cubin and --output must be two files",
        ),
        (["backward", "--head-dim", "16"], "ptxgen emit backward: error: --owner is required"),
        (["backward", "--owner", "keys"], "ptxgen emit backward: error: --head-dim is required"),
        (
            [*SMALL["backward"], "--tile", "32"],
            "ptxgen emit backward: error: unrecognized arguments: --tile 32",
        ),
        (["sum", "--head-dim", "16"], "ptxgen emit sum: error: unrecognized arguments: --head-dim 16"),
        (
            ["bakward"],
            "the kernels are forward, decode, append, merge, backward, widen, sum, round, got "
            "'bakward'; did you mean 'backward'?",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, call: Command) -> None:
    assert call.usage(*argv) == message
