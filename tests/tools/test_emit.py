from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Command

import flash.contract.catalogue
import ptxgen.runtime.cuda
from flash.commands import emit as tool
from flash.contract.catalogue import build
from flash.operands.dtypes import INPUT_DTYPES
from flash.problem.config import AttentionConfig
from ptxgen import ir
from ptxgen.errors import BackendError, PtxGenError
from ptxgen.parse import parse
from ptxgen.runtime import assembler as assembler_module
from ptxgen.runtime.assembler import Assembler, Assembly, KernelUsage
from ptxgen.target import EARLY_TARGETS, TARGETS

PROGRAM = "ptxgen emit"

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tools" / "emit.py")
SMALL = ["--head-dim", "16", "--tile", "16", "--block-q", "16"]
SMALL_CONFIG = AttentionConfig(head_dim=16, tile=16, block_q=16)


def text_of(config: AttentionConfig) -> str:
    return build(config.kernel()).text


def run(argv: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *argv], capture_output=True, check=False, **options)


def fake_assembly(config: AttentionConfig, *, spilled: int = 0, stack: int = 0) -> Assembly:
    name = build(config.kernel()).kernel.name
    usage = KernelUsage(name, 96, spill_store_bytes=spilled, spill_load_bytes=2 * spilled)
    usage = replace(usage, stack_bytes=stack)
    return Assembly(b"\x7fELF of 17 bytes", "ptxas", "13.0.88", "sm_80", (usage,), (), "")


@pytest.fixture
def assembling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Assembly], None]:
    """Makes the tool's assembler give what the test wants."""

    def use(assembly: Assembly) -> None:
        result = SimpleNamespace(assemble=lambda *_: assembly)
        monkeypatch.setattr(assembler_module, "find_assembler", lambda **_: result)

    return use


# ------------------------------------------------------------------------------------ PTX


def test_standard_output_is_the_ptx_and_nothing_else(capfdbinary: pytest.CaptureFixture) -> None:
    assert tool.main(SMALL) == 0
    printed = capfdbinary.readouterr()
    assert printed.err == b""
    assert printed.out == text_of(SMALL_CONFIG).encode()
    assert parse(printed.out.decode()) == build(SMALL_CONFIG.kernel()).module


MX, OF_MX = ("--scale-block", "mx", "--target", "sm_103a"), {"scale_block": "mx", "target": "sm_103a"}


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        (["--head-dim-v", "8"], {"head_dim_v": 8}),
        (["--dtype", "f32"], {}),
        (["--causal"], {"causal": True}),
        (["--causal=bottom_right"], {"causal": "bottom_right"}),
        (["--causal", "top_left"], {"causal": "top_left"}),
        (["--return-lse"], {"return_lse": True}),
        (["--return-max-logit"], {"return_max_logit": True}),
        (["--alignment", "4"], {"alignment": 4}),
        (["--alignment", "auto"], {}),
        (["--tile", "32"], {"tile": 32}),
        (["--tile", "auto", "--block-q", "auto"], {"tile": "auto", "block_q": "auto"}),
        (["--block-q", "32"], {"block_q": 32}),
        (["--window", "5,6"], {"window": (5, 6)}),
        (["--window", "5,"], {"window": (5, None)}),
        (["--window=5"], {"window": (5, None)}),
        (["--window", ",0"], {"window": (None, 0)}),
        (["--softcap", "30"], {"softcap": 30}),
        (["--alibi"], {"alibi": True}),
        (["--bias", "f32"], {"bias": "f32"}),
        (["--mask"], {"mask": True}),
        (["--sink"], {"sink": True}),
        (["--pack-gqa"], {"pack_gqa": True}),
        (["--dropout", "0.1"], {"dropout": 0.1}),
        (["--varlen"], {"varlen": True}),
        (["--varlen", "--seqused-q"], {"varlen": True, "seqused_q": True}),
        (["--varlen", "--seqused-k"], {"varlen": True, "seqused_k": True}),
        (["--varlen", "--page-size", "16"], {"varlen": True, "page_size": 16}),
        (
            ["--varlen", "--page-size", "16", "--rotary-dim", "8", "--rotary-interleaved"],
            {"varlen": True, "page_size": 16, "rotary_dim": 8, "rotary_interleaved": True},
        ),
        (["--target", "sm_75"], {"target": "sm_75"}),
        (["--target", "sm_90a"], {"target": "sm_90a"}),
        (
            [*("--head-dim", "32", "--tile", "32", "--block-q", "128", "--dtype", "e4m3"), *MX],
            {"head_dim": 32, "head_dim_v": 32, "tile": 32, "block_q": 128, "dtype": "e4m3", **OF_MX},
        ),
    ],
)
def test_every_option_reaches_the_kernel(call: Command, argv: list[str], config: dict[str, object]) -> None:
    text = call.out(*SMALL, *argv)
    assert text == text_of(replace(SMALL_CONFIG, **config))
    assert bool(config) == (text != text_of(SMALL_CONFIG))


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-16"},
        pytest.param({"PYTHONHASHSEED": "0", "LC_ALL": "C", "PYTHONUTF8": "0"}, marks=pytest.mark.slow),
        pytest.param(
            {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "PTXGEN_CACHE": "off", "COLUMNS": "20"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_process_emits_the_same_bytes(variables: dict[str, str], tmp_path: Path) -> None:
    argv = [SCRIPT, *SMALL, "--causal", "--return-lse"]
    done = run(argv, cwd=tmp_path, env={**os.environ, **variables})
    text = text_of(replace(SMALL_CONFIG, causal=True, return_lse=True))
    assert (done.returncode, done.stdout, done.stderr) == (0, text.encode(), b"")
    assert list(tmp_path.iterdir()) == []


def test_emitting_imports_no_framework_and_looks_for_no_garbage_in_what_it_imports() -> None:
    code = (
        "import gc, sys; from ptxgen.commands.main import command;"
        "generations = []; gc.callbacks.append(lambda when, how: generations.append(how['generation']));"
        "code = command('emit', sys.argv[1:]);"
        "print(code, gc.isenabled(), gc.get_freeze_count() > 50000, gc.get_threshold()[0],"
        "{1, 2} & {*generations},"
        "[m for m in sys.modules if m.split('.')[0] in ('cuda', 'torch', 'cupy', 'jax')"
        " or m.startswith('ptxgen.interpreter')], file=sys.stderr)"
    )
    done = run(["-c", code, *SMALL], cwd=ROOT)
    assert done.stderr.decode() == "0 True True 100000 set() []\n"
    assert done.stdout == text_of(SMALL_CONFIG).encode()


@pytest.mark.slow
def test_it_runs_from_a_bare_checkout(tmp_path: Path) -> None:
    for folder in ("flash", "ptxgen", "templates", "tools"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # which says where the command is
    # What an editable install added to the path is taken out again: nothing of ours is installed.
    code = (
        "import runpy, sys;"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)];"
        f"sys.path[:] = [p for p in sys.path if p and p != {str(ROOT)!r}];"
        f"sys.argv[:] = [{str(tmp_path / 'tools' / 'emit.py')!r}, *sys.argv[1:]];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
        "if 'ptxgen' not in sys.modules else sys.exit('already imported')"
    )
    done = run(["-B", "-c", code, *SMALL], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == text_of(SMALL_CONFIG).encode()


def test_the_proof_is_reported_and_is_part_of_the_json(call: Command) -> None:
    printed = call(*SMALL, "--prove")
    assert printed.code == 0
    assert printed.out == text_of(SMALL_CONFIG)
    proof = build(SMALL_CONFIG.kernel()).proof
    count, warps = len(proof.accesses), len(proof.convergence)
    assert printed.err.splitlines()[0] == (
        f"{proof.kernel}: {count} of {count} shared accesses, 2 of 2 barriers and {warps} of {warps} warp "
        "instructions proved"
    )
    of_global = build(SMALL_CONFIG.kernel()).global_proof
    count = len(of_global.accesses)
    assert printed.err.splitlines()[-2:] == [
        f"{of_global.kernel}: {count} of {count} global accesses proved",
        "races: not judged; a run with the sanitizer `race` looks for them",
    ]
    result = call.document(*SMALL, "--prove", "--json")
    assert (result["proof"]["complete"], result["global_proof"]["complete"]) == (True, True)
    assert result["proof"]["races"] == "not judged"


def test_a_kernel_with_a_violation_never_leaves_the_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(SMALL_CONFIG.kernel())
    kernel = built.kernel
    small = tuple(replace(r, nbytes=r.nbytes - 256) for r in kernel.regions)
    module = replace(built.module, kernels=(replace(kernel, regions=small),))
    monkeypatch.setattr(
        flash.contract.catalogue, "build", lambda config: flash.contract.catalogue.Build(config, module)
    )
    out = tmp_path / "out.ptx"
    assert tool.main([*SMALL, "--prove", "-o", str(out)]) == 1
    assert "violation: bytes " in capsys.readouterr().err
    assert not out.exists()


def test_a_kernel_with_a_problem_never_leaves_the_tool(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = flash.contract.catalogue.emit

    def without_return(config: object) -> ir.Module:
        module = forward(config)
        kernel = module.kernels[0]
        return replace(module, kernels=(replace(kernel, body=kernel.body[:-1]),))

    monkeypatch.setattr(flash.contract.catalogue, "emit", without_return)
    build.cache_clear()  # the kernel may have been built, and verified, before
    out = tmp_path / "out.ptx"
    assert call.error(*SMALL, "-o", str(out)) == (
        1,
        "the module has 1 problem:\n"
        "1. kernel attention_forward_f32_d16_m16_n16: control runs off the end of the kernel; "
        "end it with ret",
    )
    assert not out.exists()


# ---------------------------------------------------------------------------------- JSON and lists


def test_the_contract_agrees_with_the_text(call: Command) -> None:
    argv = [*SMALL, "--causal", "--return-lse"]
    text = call.out(*argv)
    printed = call.out(*argv, "--json")
    contract = json.loads(printed)
    kernel = parse(text).kernels[0]
    assert printed == json.dumps(contract, indent=2) + "\n"
    assert contract["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert contract["entry"] == kernel.name
    assert f".target {contract['target']}\n" in text
    assert f".version {contract['ptx_version']}\n" in text
    declared = [(p["name"], p["type"]) for p in contract["parameters"]]
    assert declared == [(p.name, p.type) for p in kernel.params]
    assert contract["block"] == [kernel.threads, 1, 1]
    assert contract["dynamic_shared_bytes"] == kernel.dynamic_shared_bytes


def test_list_targets_prints_a_table_of_all_targets(call: Command) -> None:
    lines = call.out("--list-targets").splitlines()
    assert lines[0] == (
        "target   PTX  shared/block   opt-in  shared/SM  registers/SM  threads/SM  blocks/SM  f32 lanes/SM"
    )
    assert lines[6] == (
        "sm_80    7.0        48 KiB  163 KiB    164 KiB         65536        2048         32            64"
    )
    assert [line.split()[0] for line in lines[1:]] == [*EARLY_TARGETS, *TARGETS]


def test_list_targets_prints_json(call: Command) -> None:
    targets = call.document("--list-targets", "--json")
    assert [t["name"] for t in targets] == [*EARLY_TARGETS, *TARGETS]
    assert targets[5] == {
        "name": "sm_80",
        "sm": 80,
        "suffix": "",
        "ptx": "7.0",
        "shared_per_block": 49152,
        "shared_per_block_optin": 166912,
        "shared_per_sm": 167936,
        "shared_reserved_per_block": 1024,
        "registers_per_sm": 65536,
        "registers_per_block": 65536,
        "registers_per_thread": 255,
        "threads_per_block": 1024,
        "threads_per_sm": 2048,
        "warps_per_sm": 64,
        "blocks_per_sm": 32,
        "fp32_lanes_per_sm": 64,
    }


def test_list_tiles_offers_what_can_be_emitted_and_marks_the_choice(call: Command) -> None:
    argv = ["--head-dim", "200", "--head-dim-v", "100", "--target", "sm_86"]
    listed = call.document(*argv, "--list-tiles", "--json")
    assert (listed["target"], listed["head_dim"], listed["head_dim_v"]) == ("sm_86", 200, 100)
    for tile in listed["tiles"]:
        sizes = ["--tile", str(tile["tile"]), "--block-q", str(tile["block_q"]), "--json"]
        contract = call.document(*argv, *sizes)
        assert contract["dynamic_shared_bytes"] == tile["shared_bytes"]
        assert contract["block"] == [tile["threads"], 1, 1]
    contract = call.document(*argv, "--json")
    chosen = [(tile["tile"], tile["block_q"]) for tile in listed["tiles"] if tile["chosen"]]
    assert chosen == [(contract["tile"], contract["block_q"])]
    lines = call.out(*argv, "--list-tiles").splitlines()
    assert lines[0] == (
        "tile  block_q  value_slices  threads  shared_bytes  estimated_registers  ctas_per_sm  chosen"
    )
    assert len(lines) == len(listed["tiles"]) + 1
    assert [line.split()[:2] for line in lines if line.endswith("*")] == [[str(n) for n in chosen[0]]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("features", [[], ["--mask", "--sink"], ["--bias", "bf16"]], ids=str)
@pytest.mark.parametrize("dim", ["64", "192", "256"])
def test_list_tiles_takes_types_and_features_into_account(
    dim: str, features: list[str], call: Command
) -> None:
    argv = ["--head-dim", dim, "--dtype", "bf16", *features]
    tiles = call.document(*argv, "--list-tiles", "--json")["tiles"]
    assert {tile["block_q"] for tile in tiles} <= {32, 64, 128}
    for tile in (tiles[0], tiles[-1]):
        sizes = ["--tile", str(tile["tile"]), "--block-q", str(tile["block_q"]), "--json"]
        assert call.document(*argv, *sizes)["block"] == [tile["threads"], 1, 1]
    contract = call.document(*argv, "--json")
    chosen = [(tile["tile"], tile["block_q"]) for tile in tiles if tile["chosen"]]
    assert chosen == [(contract["tile"], contract["block_q"])]


@pytest.mark.parametrize(("dim", "slices"), [("256", 1), ("257", 2)])
def test_list_tiles_says_to_how_many_ctas_values_are_dealt(dim: str, slices: int, call: Command) -> None:
    argv = ["--head-dim", "64", "--head-dim-v", dim, "--list-tiles", "--json"]
    tiles = call.document(*argv)["tiles"]
    assert {tile["value_slices"] for tile in tiles} == {slices}


def test_the_sizes_of_a_window_and_the_cap_are_not_in_the_text(call: Command) -> None:
    texts = []
    for window, cap in (("5,6", "30"), ("128,0", "50.5")):
        texts.append(call.out(*SMALL, "--window", window, "--softcap", cap))
    assert texts[0] == texts[1]


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("text", ["", ",", "1,2,3", "1,2,"])
def test_a_wrong_window_is_2(text: str, call: Command) -> None:
    assert (
        call.usage(*SMALL, "--window", text)
        == f"argument --window: must be LEFT,RIGHT such as 128,0, got {text!r}"
    )


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ("--target sm_90a --precision f32_grade --scheduler static", "static"),
        ("--target sm_80 --dtype f16 --scheduler mirrored", "mirrored"),
        ("--target sm_90a --precision f32_grade --scheduler grid", ""),
        ("--target sm_90a --dtype f16 --scheduler static", ""),
        ("--target sm_80", ""),
    ],
)
def test_a_scheduler_that_a_kernel_does_not_have_is_noted(options: str, noted: str, call: Command) -> None:
    printed = call("--head-dim", "64", *options.split())
    assert printed.code == 0
    assert printed.out.startswith(".version")
    assert printed.err == (
        f"ptxgen emit: note: --scheduler {noted}: the kernel has a CTA for each block of queries: CTAs take "
        "several blocks only with wgmma of f16 and bf16 and head_dim up to 256\n"
        if noted
        else ""
    )


@pytest.mark.parametrize(
    ("argv", "config", "words"),
    [
        (["--head-dim", "0"], {"head_dim": 0}, "from 1 to 576, got 0; "),
        (["--head-dim", "-8"], {"head_dim": -8}, "from 1 to 576, got -8; "),
        (["--head-dim", "3.5"], {"head_dim": 3.5}, "from 1 to 576, got 3.5; "),
        (["--head-dim", "1000000000"], {"head_dim": 10**9}, "from 1 to 576, got 1000000000; "),
        (["--head-dim-v", "0"], {"head_dim_v": 0}, "head_dim_v must be an integer from 1 to 512"),
        (["--tile", "0"], {"tile": 0}, "tile must be one of 16, 32, 64, 128, 'auto', got 0"),
        (["--tile", "16.0"], {"tile": 16.0}, "16, 32, 64, 128, 'auto', got 16.0"),
        (["--tile", "1", "--list-tiles"], {"tile": 1}, "one of 16, 32, 64, 128, 'auto', got 1"),
        (["--block-q", "48"], {"block_q": 48}, "block_q must be one of 16, 32, 64, 128, 'auto'"),
        (["--alignment", "2"], {"alignment": 2}, "alignment must be one of 16, 8, 4, 'auto'"),
        (["--window=-5,1"], {"window": (-5, 1)}, "each a number of keys from 0 to 1073741568, or"),
        (["--window", "1.5,1"], {"window": (1.5, 1)}, "no limit, got (1.5, 1)"),
        (["--softcap=-1"], {"softcap": -1}, "softcap must be a number from 9.53674e-07 to "),
        (["--dropout", "1"], {"dropout": 1}, "dropout must be "),
        (["--bias", "f16"], {"bias": "f16"}, "bias must be one of 'f32', None, got 'f16'"),
        (
            ["--dtype", "f8"],
            {"dtype": "f8"},
            f"dtype must be one of {', '.join(map(repr, INPUT_DTYPES))}, got 'f8'",
        ),
        (["--target", "sm_9"], {"target": "sm_9"}, "unknown target 'sm_9'; did you mean 'sm_90'?"),
        (
            ["--head-dim", "256", "--tile", "128", "--block-q", "128"],  # 400 KB of shared memory
            {"head_dim": 256, "tile": 128, "block_q": 128},
            " bytes of shared memory, but sm_80 allows 166912 bytes per block; ",
        ),
        (
            ["--head-dim", "256", "--tile", "128"],
            {"head_dim": 256, "tile": 128},
            "; the largest tile that fits is 64",
        ),
    ],
)
def test_an_unsupported_configuration_is_3_with_the_message_of_the_library(
    argv: list[str], config: dict[str, object], words: str, tmp_path: Path, call: Command
) -> None:
    with pytest.raises(PtxGenError) as refused:
        AttentionConfig(**{"head_dim": 64, "target": "sm_80", **config})
    out = tmp_path / "out.ptx"
    printed = call("--head-dim", "64", *argv, "-o", str(out))
    assert printed.code == 3
    assert printed.out == ""
    assert printed.err == f"ptxgen emit: error: {refused.value}\n"
    assert words in printed.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--head-dim is required"),
        (["--list-tiles"], "--head-dim is required"),
        (["--head-dim", "x"], "argument --head-dim: must be a number, got 'x'"),
        (["--head-dim"], "argument --head-dim: expected one argument"),
        ([*SMALL, "--tile", "big"], "argument --tile: must be a number, got 'big'"),
        ([*SMALL, "--head", "64"], "unrecognized arguments: --head 64; did you mean '--head-dim'?"),
        (["--hed-dim=64"], "unrecognized arguments: --hed-dim=64; did you mean '--head-dim'?"),
        (
            ["--list-targets", "--assemble"],
            "--assemble, --cubin, --prove and --stub need a kernel, and a list is not one",
        ),
        (
            [*SMALL, "--list-tiles", "--cubin", "a.cubin"],
            "--assemble, --cubin, --prove and --stub need a kernel, and a list is not one",
        ),
        ([*SMALL, "--cubin", "a", "-o", "a"], "--cubin and --output must be two files"),
        (
            [*SMALL, "--list-tiles", "--list-targets"],
            "argument --list-targets: not allowed with argument --list-tiles",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, call: Command) -> None:
    assert call.usage(*argv) == message


def test_a_wrong_mask_is_2_and_names_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main([*SMALL, "--causal", "left"])
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1].replace("'", "")  # Python 3.12 has no quotes
    assert last == (
        "ptxgen emit: error: argument --causal: invalid choice: left (choose from bottom_right, top_left)"
        "; did you mean top_left?"
    )


def test_help_shows_examples_that_work_and_the_exit_codes(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch, assembling: Callable[[Assembly], None]
) -> None:
    shown = call.help()
    for code in range(5):
        assert f"\n  {code}  " in shown
    examples = [
        line.split("   ")[0].split(">")[0].split()[2:]
        for line in shown.splitlines()
        if line.startswith("  ptxgen emit")
    ]
    assert len(examples) == 15
    monkeypatch.chdir(tmp_path)
    for argv in examples:
        if "--assemble" in argv or "--cubin" in argv:
            dims = AttentionConfig(192, 128, return_lse=True), AttentionConfig(64)
            assembling(fake_assembly(dims["--cubin" in argv]))
        assert tool.main(argv) == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    of_a_host = ["attention.h", "main.c"]
    kernels = ["causal.ptx", "fp8.ptx", "gpt.ptx", "mla.ptx", "mxfp8.ptx", "nvfp4.ptx", "packed.ptx"]
    assert written == sorted([*of_a_host, *kernels, "out.cubin", "out.ptx", "serving.ptx"])


# ------------------------------------------------------------------------------------ native


def test_native_without_a_gpu_is_4(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(why_unavailable=lambda: "no GPU here")
    monkeypatch.setattr(ptxgen.runtime.cuda, "cuda_backend", lambda: backend)
    assert call.error(*SMALL, "--target", "native") == (
        4,
        "--target native: no GPU here; name a target, such as sm_90",
    )


def test_native_is_the_target_of_the_current_gpu(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimpleNamespace(major=8, minor=0), SimpleNamespace(major=9, minor=0)]
    backend = SimpleNamespace(
        why_unavailable=lambda: "", current_device=lambda: 1, device_properties=devices.__getitem__
    )
    monkeypatch.setattr(ptxgen.runtime.cuda, "cuda_backend", lambda: backend)
    assert call.out(*SMALL, "--target", "native") == text_of(replace(SMALL_CONFIG, target="sm_90a"))


# ------------------------------------------------------------------------------------ assembling


def test_assemble_reports_on_standard_error(call: Command, assembling: Callable[[Assembly], None]) -> None:
    assembling(fake_assembly(SMALL_CONFIG))
    printed = call(*SMALL, "--assemble")
    assert printed.code == 0
    built = build(SMALL_CONFIG.kernel())
    threads, shared = built.kernel.threads, built.kernel.dynamic_shared_bytes
    ctas = TARGETS["sm_80"].blocks_per_sm_for(threads, 96, shared)
    assert printed.out == built.text
    assert printed.err == (
        "kernel     attention_forward_f32_d16_m16_n16\n"
        "assembler  ptxas 13.0.88, for sm_80\n"
        "registers  96 of 255 per thread\n"
        "spills     0 bytes stored, 0 loaded\n"
        "stack      0 bytes per thread\n"
        f"shared     {shared} of 166912 bytes per block\n"
        f"occupancy  {ctas} CTAs of {threads} threads per multiprocessor\n"
        "cubin      16 bytes\n"
    )


@pytest.mark.parametrize("wanted", ["--assemble", "--cubin"])
@pytest.mark.parametrize(
    ("spilled", "stack", "words"),
    [
        (8, 24, "24 bytes per thread in local memory (8 bytes of spill stores, 16 loads)"),
        (0, 40, "40 bytes per thread in local memory (0 bytes of spill stores, 0 loads)"),
    ],
)
def test_a_kernel_that_spills_is_1_and_nothing_is_written(
    tmp_path: Path,
    call: Command,
    assembling: Callable[[Assembly], None],
    wanted: str,
    spilled: int,
    stack: int,
    words: str,
) -> None:
    assembling(fake_assembly(SMALL_CONFIG, spilled=spilled, stack=stack))
    argv = [wanted, *([str(tmp_path / "out.cubin")] if wanted == "--cubin" else [])]
    printed = call(*SMALL, *argv)
    assert (printed.code, printed.out) == (1, "")
    assert printed.err.splitlines()[-1] == (
        f"ptxgen emit: error: attention_forward_f32_d16_m16_n16 would keep {words}; "
        "use a smaller tile or block_q"
    )
    assert list(tmp_path.iterdir()) == []


def test_cubin_writes_what_the_assembler_made(
    tmp_path: Path, call: Command, assembling: Callable[[Assembly], None]
) -> None:
    assembling(fake_assembly(SMALL_CONFIG))
    cubin = tmp_path / "out.cubin"
    assert call(*SMALL, "--cubin", str(cubin)) == (0, text_of(SMALL_CONFIG), "")
    assert cubin.read_bytes() == b"\x7fELF of 17 bytes"


@pytest.mark.ptxas
def test_the_real_assembler_takes_the_default_kernel(
    tmp_path: Path, call: Command, assembler: Assembler
) -> None:
    cubin = tmp_path / "out.cubin"
    printed = call(*SMALL, "--assemble", "--cubin", str(cubin))
    assert printed.code == 0
    assert f"assembler  {assembler.name} {assembler.version}, for sm_80\n" in printed.err
    assert "spills     0 bytes stored, 0 loaded\nstack      0 bytes per thread\n" in printed.err
    assert cubin.read_bytes().startswith(b"\x7fELF")


def test_no_assembler_is_1(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*, target: str) -> Assembler:
        raise BackendError(f"no assembler that knows {target}")

    monkeypatch.setattr(assembler_module, "find_assembler", none)
    assert call.error(*SMALL, "--assemble") == (1, "no assembler that knows sm_80")


def test_a_wrong_setting_is_2(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assembler_module._find.cache_clear()
    monkeypatch.setenv("PTXGEN_BACKEND", "maybe")
    printed = call(*SMALL, "--assemble")
    assert (printed.code, printed.out) == (2, "")
    assert printed.err.startswith("ptxgen emit: error: PTXGEN_BACKEND must be one of ")


# ------------------------------------------------------------------------------------ writing


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "out.ptx"
    path.write_bytes(b"old")
    return path


def test_output_replaces_the_file_and_prints_nothing(old: Path, call: Command) -> None:
    assert call(*SMALL, "-o", str(old)) == (0, "", "")
    assert old.read_text() == text_of(SMALL_CONFIG)
    assert list(old.parent.iterdir()) == [old]


def test_a_reader_of_the_old_file_keeps_the_old_bytes(old: Path) -> None:
    with old.open("rb") as file:
        assert tool.main([*SMALL, "-o", str(old)]) == 0
        assert file.read() == b"old"


def test_a_minus_is_standard_output(tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call.out(*SMALL, "-o", "-") == text_of(SMALL_CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("broken", [(os, "fsync"), (Path, "replace"), (Path, "chmod")])
def test_a_failure_while_writing_leaves_the_old_file_and_no_other(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broken: tuple[object, str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*broken, full)
    assert tool.main([*SMALL, "-o", str(old)]) == 1
    monkeypatch.undo()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"ptxgen emit: error: cannot write {old}: No space left on device\n"
    assert old.read_bytes() == b"old"
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_file_that_cannot_be_written_to_its_end_is_not_replaced(old: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "from flash.commands import emit; sys.exit(emit.main(sys.argv[1:]))"
    )
    done = run(["-B", "-c", code, *SMALL, "-o", str(old)], cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.decode() == f"ptxgen emit: error: cannot write {old}: File too large\n"
    assert old.read_bytes() == b"old"
    assert list(old.parent.iterdir()) == [old]


def test_an_interrupt_while_writing_leaves_the_old_file_and_no_other(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tool.main([*SMALL, "-o", str(old)])
    assert old.read_bytes() == b"old"
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_permissions_are_those_of_the_old_file_or_of_any_new_one(old: Path) -> None:
    old.chmod(0o640)
    new = old.with_name("new.ptx")
    other = old.with_name("other")
    other.touch()
    for path in (old, new):
        assert tool.main([*SMALL, "-o", str(path)]) == 0
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no links for everybody")
def test_a_link_stays_a_link(old: Path) -> None:
    link = old.with_name("link")
    link.symlink_to(old.name)
    assert tool.main([*SMALL, "-o", str(link)]) == 0
    assert link.is_symlink()
    assert old.read_text() == text_of(SMALL_CONFIG)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    try:
        assert tool.main([*SMALL, "-o", str(pipe)]) == 0
        assert pipe.is_fifo()
        assert reader.communicate()[0].decode() == text_of(SMALL_CONFIG)
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()


@pytest.mark.parametrize(
    ("name", "reason"), [("", "Is a directory"), ("missing/out.ptx", "No such file or directory")]
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other words for it")
def test_an_output_that_cannot_be_a_file_is_1(tmp_path: Path, call: Command, name: str, reason: str) -> None:
    out = tmp_path / name
    assert call.error(*SMALL, "-o", str(out)) == (1, f"cannot write {out}: {reason}")
    assert list(tmp_path.iterdir()) == []


# With more and with less text than a buffer holds.
@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("argv", [SMALL, ["--list-targets"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_1(argv: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, SCRIPT, *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"ptxgen emit: error: cannot write standard output: No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_standard_output_that_takes_only_a_part_is_1(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "from flash.commands import emit; sys.exit(emit.main(sys.argv[1:]))"
    )
    with (tmp_path / "out.ptx").open("wb") as out:
        command = [sys.executable, "-u", "-B", "-c", code, *SMALL]
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"ptxgen emit: error: cannot write standard output: File too large\n"


def test_a_closed_standard_output_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert tool.main(SMALL) == 1
    monkeypatch.undo()
    assert capsys.readouterr().err == ("ptxgen emit: error: standard output is closed; use -o FILE\n")
