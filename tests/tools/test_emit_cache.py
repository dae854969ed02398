"""The kernels of a KV cache, emitted for hosts in other languages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from contract_host import TYPES, Host
from judge import assert_attention_is_accurate

from flash.error_bound import arithmetic_of
from flash.problem.rotary import rotary_tables, rotated
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from tools import emit as tool
from tools.commands.emit_cache import KINDS

DIM, DIM_V = 16, 8
SMALL = {
    "decode": ["decode", "--head-dim", "16", "--tile", "16", "--block-q", "16"],
    "append": ["append", "--head-dim", "16"],
    "merge": ["merge", "--head-dim-v", "16"],
}


def emitted(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    assert tool.main(argv) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    return printed.out


def host(capfd: pytest.CaptureFixture[str], *argv: str) -> Host:
    """A host with the two files of a kernel."""
    return Host(emitted(capfd, *argv), emitted(capfd, *argv, "--json"))


# ------------------------------------------------------------------------- a token, end to end


class Cache(NamedTuple):
    """Sequences of a cache, in the arrays that the contracts name."""

    arrays: dict[str, Any]  # K, V and what says where rows are
    lengths: list[int]  # of the items, without the new row
    padding: list[int]
    sequences: list[int]

    def places(self, item: int) -> Iterator[tuple[int, int]]:
        """Place and row of each row of an item, the new one included."""
        table, rows = self.arrays.get("block_table"), self.arrays["K"].shape[2]
        for row in range(self.lengths[item] + 1):
            sequence = self.sequences[item]
            yield ((sequence, row) if table is None else (int(table[sequence, row // rows]), row % rows))

    def rows(self, name: str, item: int) -> Any:
        """Those of K or V, [1, kv_heads, keys, dim] in f32, times its scale, without padding."""
        stored = np.stack([self.arrays[name][place, :, row] for place, row in self.places(item)], axis=1)[
            None, :, self.padding[item] :
        ].astype(np.float32)
        scale = self.arrays.get(f"{name.lower()}_scale")
        return stored if scale is None else stored * scale[:, None, None]

    def turned(self, q: Any, cos: Any, sin: Any) -> Any:
        """A query of each item, at the position of its new row."""
        positions = np.subtract(self.lengths, self.padding)[:, None]
        return rotated(q, cos, sin, positions, interleaved=False).astype(q.dtype)


def cache_of(kernel: Host, layout: set[str], rng: np.random.Generator) -> Cache:
    """A cache of 3 sequences, 2 of which have rows; everything else is no number."""
    kv_heads, batch, capacity = 2, 2, 24
    indexed = "indexed" in layout
    sequences = [2, 0] if indexed else [0, 1]
    kv_batch = 3 if indexed else batch
    arrays: dict[str, Any] = {}
    if "paged" in layout:
        size = kernel.array_of("K")["dims"][2]["extent"]
        columns = capacity // size
        pages = kv_batch * columns
        arrays["block_table"] = rng.permutation(pages).astype(np.int32).reshape(kv_batch, columns)
        sizes = {"pages": pages, "kv_heads": kv_heads}
    else:
        sizes = {"kv_batch": kv_batch, "batch": kv_batch, "kv_heads": kv_heads, "seq_k": capacity}
    arrays |= {name: kernel.empty(name, **sizes) for name in "KV"}
    if "e4m3" in layout:
        arrays["k_scale"], arrays["v_scale"] = np.array([[0.5, 2], [1, 0.7]], np.float32)
    if indexed:
        arrays["cache_batch_idx"] = np.array(sequences, np.int32)
    padding = [3, 0] if "padded" in layout else [0, 0]
    if "padded" in layout:
        arrays["leftpad_k"] = np.array(padding, np.int32)
    cache = Cache(arrays, [21, 6], padding, sequences)
    arrays["seqused_k"] = np.array(cache.lengths, np.int32) + 1
    for item in range(batch):
        for place, row in [*cache.places(item)][:-1]:
            for name in "KV":
                of_row = arrays[name][place, :, row]
                of_row[...] = rng.standard_normal(of_row.shape).astype(of_row.dtype)
    return cache


def numbers_of(kernel: Host, **given: float) -> dict[str, float]:
    """Those that the kernel has as parameters, or that its sizes are said by."""
    names = {p["name"] for p in kernel.contract["parameters"]} | set(kernel.contract["sizes"])
    return {name: value for name, value in given.items() if name in names}


def append_first(append: Host, cache: Cache, qkv: tuple[Any, ...], tables: tuple[Any, ...]) -> Any:
    """The queries after a launch that puts k and v into the cache."""
    q, k, v = qkv
    arrays = {"K_NEW": k, "V_NEW": v, **cache.arrays}
    names = {array["name"] for array in append.contract["arrays"]}
    if "counts" in names:  # the second row of each item is none
        arrays |= {"K_NEW": np.concatenate([k, k * np.nan], axis=2)}
        arrays |= {"V_NEW": np.concatenate([v, v * np.nan], axis=2)}
        arrays["counts"] = np.array([1, 1], np.int32)
    turned = q
    if "Q_OUT" in names:
        batch, heads, seq_q, _ = q.shape
        turned = append.empty("Q_OUT", batch=batch, heads=heads, seq_q=seq_q)
        arrays |= {"Q": q, "Q_OUT": turned, "COS": tables[0], "SIN": tables[1]}
    append.launch(arrays, **numbers_of(append, seq_k=24))
    return turned


def seen(last: Any, keys: Any) -> Any:
    """[1, heads, seq_q, keys]: those that a mask of the last ones lets be seen."""
    count = min(keys.shape[2], last.shape[2])
    found = np.ones((1, *last.shape[:2], keys.shape[2]), bool)
    found[..., keys.shape[2] - count :] = last[..., last.shape[2] - count :]
    return found


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
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_token_is_decoded_by_what_the_contracts_say(
    dtype: str, layout: set[str], splits: int, capfd: pytest.CaptureFixture[str]
) -> None:
    how = ["--head-dim", str(DIM), "--head-dim-v", str(DIM_V), "--dtype", dtype]
    options = {
        "paged": ["--page-size", "4"],
        "e4m3": ["--kv-dtype", "e4m3"],
        "padded": ["--leftpad-k"],
        "indexed": ["--cache-batch-idx"],
    }
    how += [word for name, words in options.items() if name in layout for word in words]
    mask = ["--mask"] if "mask" in layout else []
    rotary = ["--rotary-dim", "12"] if "rotary" in layout else []
    lse = ["--return-lse"] if "lse" in layout else []
    counted = ["--counts"] if "counted" in layout else []
    alone = ["--append", *rotary] if "alone" in layout else []  # what attends appends
    decode = host(
        capfd,
        "decode",
        *how,
        "--tile",
        "16",
        "--causal",
        "--group",
        "2",
        *lse,
        *mask,
        *alone,
        *(["--splits"] if splits else []),
    )
    merge = host(capfd, "merge", "--head-dim-v", str(DIM_V), "--dtype", dtype, *lse)

    rng = np.random.default_rng(len(layout))
    cache = cache_of(decode, layout, rng)
    q, k, v = (
        rng.standard_normal((2, heads, 1, dim)).astype(TYPES[dtype])
        for heads, dim in ((4, DIM), (2, DIM), (2, DIM_V))
    )
    cos, sin = rotary_tables(24, 12)
    if alone:
        arrays: dict[str, Any] = {"Q": q, "k_new": k, "v_new": v}
        arrays |= {"rotary_cos": cos, "rotary_sin": sin} if rotary else {}
        turned = cache.turned(q, cos, sin) if rotary else q
    else:
        append = host(capfd, "append", *how, *rotary, *counted)
        turned = append_first(append, cache, (q, k, v), (cos, sin))
        arrays = {"Q": turned}

    out = np.full((2, 4, 1, DIM_V), np.nan, TYPES[dtype])
    found_lse = np.full((2, 4, 1), np.nan, np.float32)
    numbers = {"group": 2, "softmax_scale": 0.25, "section": 4, "splits": splits}
    shown = rng.random((2, 4, 1, 9)) < 0.5
    arrays |= {**cache.arrays, **({"mask": shown} if mask else {})}
    if splits:
        parts = decode.empty("O", batch=2, heads=4, seq_q=1, splits=splits)
        of_parts = decode.empty("LSE", batch=2, heads=4, seq_q=1, splits=splits)
        decode.launch(
            {**arrays, "O": parts, "LSE": of_parts.reshape(8, 1, splits)}, **numbers_of(decode, **numbers)
        )
        into = {"LSE": found_lse.reshape(8)} if lse else {}
        merge.launch({"PARTS": parts, "LSES": of_parts.reshape(8, splits), "O": out, **into})
    else:
        into = {"LSE": found_lse.reshape(8, 1)} if lse else {}
        decode.launch({**arrays, "O": out, **into}, **numbers_of(decode, **numbers))

    for item in range(2):
        keys, values = (cache.rows(name, item) for name in "KV")
        exact = {"Q": q[item : item + 1], "K": k[item : item + 1]}
        if rotary:
            at = np.array([[keys.shape[2] - 1]])
            exact = {n: rotated(x, cos, sin, at, interleaved=False) for n, x in exact.items()}
        step = 2.0 ** -{"f32": 22, "f16": 10, "bf16": 7}[dtype]  # one rounding, to its type
        np.testing.assert_allclose(
            turned[item].astype(np.float32), exact["Q"][0].astype(np.float32), rtol=step, atol=step
        )
        step = 2.0**-3 if "e4m3" in layout else step
        for new, row in ((exact["K"], keys), (v[item : item + 1], values)):
            np.testing.assert_allclose(row[:, :, -1:], new.astype(np.float32), rtol=step, atol=step / 8)
        assert_attention_is_accurate(
            out[item : item + 1],
            found_lse[item : item + 1] if lse else None,
            turned[item : item + 1],
            *(x.astype(TYPES[dtype]) for x in (keys, values)),
            softmax_scale=0.25,
            causal=True,
            mask=seen(shown[item], keys) if mask else None,
            arithmetic=arithmetic_of(dtype),
        )


# ------------------------------------------------------------------------------------ options

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


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "argv",
    [
        ["decode", "--head-dim", "128", "--dtype", "bf16", "--causal"],
        [
            "decode",
            "--head-dim",
            "128",
            "--dtype",
            "bf16",
            "--causal",
            "--splits",
            "--group",
            "8",
            "--page-size",
            "64",
            "--cache-batch-idx",
            "--leftpad-k",
        ],
        [
            "decode",
            "--head-dim",
            "128",
            "--dtype",
            "bf16",
            "--causal",
            "--splits",
            "--group",
            "8",
            "--page-size",
            "64",
            "--append",
            "--rotary-dim",
            "128",
        ],
        ["decode", "--head-dim", "64", "--causal", "--append", "--rotary-dim", "32"],
        ["append", "--head-dim", "128", "--dtype", "bf16", "--rotary-dim", "128"],
        ["append", "--head-dim", "64", "--page-size", "16"],
        ["merge", "--head-dim-v", "128", "--dtype", "bf16", "--return-lse"],
    ],
    ids=lambda argv: "-".join(argv[::3]),
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


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("kernel", "argv"),
    [
        *((kernel, []) for kernel in KINDS),
        *(
            ("decode", argv)
            for argv in (
                ["--causal"],
                ["--dtype", "f16", "--block-q", "32"],
                ["--splits"],
                ["--mask"],
                ["--page-size", "4"],
                ["--leftpad-k"],
                ["--cache-batch-idx"],
                ["--dtype", "f16", "--block-q", "32", "--kv-dtype", "e4m3"],
                ["--append", "--rotary-dim", "8", "--page-size", "4", "--splits"],
                ["--append", "--dtype", "f16", "--block-q", "32", "--kv-dtype", "e4m3"],
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
    assert printed.err.splitlines()[-1] == (f"{contract['entry']}: {count} of {count} global accesses proved")


@pytest.mark.parametrize("kernel", KINDS)
def test_help_shows_examples_that_work(
    kernel: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main([kernel, "--help"])
    assert stopped.value.code == 0
    shown = capfd.readouterr().out.replace("\\\n", "")
    examples = [
        line.split()[2:]
        for line in shown.splitlines()
        if line.startswith(f"  python tools/emit.py {kernel} --")
    ]
    assert len(examples) == {"decode": 4, "append": 3, "merge": 2}[kernel]
    monkeypatch.chdir(tmp_path)
    for argv in examples:
        assert tool.main(argv) == 0
    assert len([*tmp_path.iterdir()]) == sum("-o" in argv for argv in examples)


def test_forward_may_be_said(capfd: pytest.CaptureFixture[str]) -> None:
    small = SMALL["decode"][1:]
    assert emitted(capfd, "forward", *small) == emitted(capfd, *small)


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["decode", "--head-dim", "16", "--page-size", "257"],
            "CacheConfig: page_size must be an integer from 1 to 256, or None for contiguous memory, got 257",
        ),
        (
            ["append", "--head-dim", "16", "--kv-dtype", "f8"],
            "CacheConfig: kv_dtype must be 'e4m3', or None for the type of the queries, got 'f8'",
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
            ["decode", "--head-dim", "300"],
            "AttentionConfig: head_dim must be an integer from 1 to 256, got 300; beyond 256 a CTA "
            "cannot keep its rows in registers and shared memory, where the largest tile that fits "
            "256 is 64 on sm_90",
        ),
        (
            ["decode", "--head-dim", "16", "--rotary-dim", "8"],
            "decode: rotary_dim is for a kernel that appends; give append=True, or turn queries "
            "and new keys by the kernel of cache_kernels.append",
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
        (["append", "--head-dim", "257"], "append: head_dim must be an integer from 1 to 256, got 257"),
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
            ["append", "--head-dim", "16", "--dtype", "fp16"],
            "append: dtype must be one of 'f32', 'f16', 'bf16', got 'fp16'; did you mean 'f16'?",
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
            "sm_87, sm_89, sm_90, sm_90a, sm_100, sm_100a, sm_103a, sm_120, sm_120a",
        ),
    ],
)
def test_what_cannot_be_is_3(
    argv: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.ptx"
    assert tool.main([*argv, "-o", str(out)]) == 3
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", f"emit.py: error: {message}\n")
    assert not out.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["deocde", "--head-dim", "16"],
            "emit.py: error: the kernels are forward, decode, append, merge, got 'deocde'; did you "
            "mean 'decode'?",
        ),
        (["decode"], "emit.py decode: error: --head-dim is required"),
        (["append", "--json"], "emit.py append: error: --head-dim is required"),
        (["merge", "--dtype", "f16"], "emit.py merge: error: --head-dim-v is required"),
        (
            ["decode", "--head-dim", "16", "--varlen"],
            "emit.py decode: error: unrecognized arguments: --varlen",
        ),
        (
            ["merge", "--head-dim-v", "x"],
            "emit.py merge: error: argument --head-dim-v: must be a number, got 'x'",
        ),
        (
            [*SMALL["append"], "--cubin", "a", "-o", "a"],
            "emit.py append: error: --cubin and --output must be two files",
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
