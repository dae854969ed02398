from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from command_line import Command, words
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDriver

import flash
from flash.cache.cache import KVCache
from ptxgen.runtime.cuda import CudaBackend
from tools import llama as tool
from tools.commands import llama_model as model

PROGRAM = "llama.py"

SCRIPT = str(Path(tool.__file__).resolve())
SMALL = words("--hidden 16 --head-dim 8 --intermediate 24 --vocab 40 --prompts 6,1,3 --tokens 7")
TOKENS = 3 * 7
SIZES = model.Sizes(
    layers=2, hidden=16, heads=4, kv_heads=2, head_dim=8, intermediate=24, vocab=40, tied=False
)

Attention = Callable[..., Any]


def run(argv: list[str], call: Command) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the runs by name."""
    code, out, _ = call(*SMALL, *argv, "--json")
    result = json.loads(out)
    assert result["passed"] == (code == 0)
    return code, {each["run"]: each for each in result["runs"]}


def prompts_of(lengths: list[int], seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.integers(SIZES.vocab, size=length) for length in lengths]


def silent(_: str) -> None:
    """Progress that nobody sees."""


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], None]:
    """Replaces the attention to caches by one whose arguments a test has changed."""
    right = flash.attention_with_kvcache

    def use(change: Callable[..., None]) -> None:
        def wrong(q: Any, cache: KVCache, k: Any, v: Any, **how: Any) -> Any:
            change(q, how)
            return right(q, cache, k, v, **how)

        monkeypatch.setattr(flash, "attention_with_kvcache", wrong)

    return use


# --------------------------------------------------------------------------------- when all is well


def test_the_table_says_how_close_each_run_is(call: Command) -> None:
    printed = call(*SMALL)
    assert printed.code == 0
    runs = run([], call)[1]
    own, padded = (
        "  ".join(f"{runs[n][key]:.1e}".rjust(width) for key, width in columns)
        for columns in [(("error", 10), ("allowed_error", 7), ("closest_choice", 14))]
        for n in ("own lengths", "left-padded")
    )
    assert printed.out == (
        "Llama of 2 layers, 4 heads, 2 of keys, head_dim 8; prompts of 6, 1, 3 tokens\n"
        "cache: f32, contiguous, on cpu\n"
        "\n"
        "             tokens  as float64  difference  allowed  closest choice\n"
        f"own lengths      21          21  {own}\n"
        f"left-padded      21          21  {padded}\n"
        "\n"
        "all checks passed\n"
    )
    assert printed.err.startswith("[1/16] own lengths, prompts\n")


def test_json_says_what_was_run(call: Command) -> None:
    result = call.document(*SMALL, "--page-size", "4", "--tied", "--seed", "3", "--json")
    runs = result.pop("runs")
    assert result == {
        "schema": 1,
        "passed": True,
        "model": {
            "layers": 2,
            "hidden": 16,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 8,
            "intermediate": 24,
            "vocab": 40,
            "tied": True,
        },
        "seed": 3,
        "prompts": [6, 1, 3],
        "cache": {"dtype": "f32", "page_size": 4, "backend": "cpu"},
    }
    assert [each["run"] for each in runs] == ["own lengths", "left-padded"]
    assert np.shape(runs[0]["tokens"]) == (3, 7)
    assert runs[0]["tokens"] == runs[1]["tokens"]


@pytest.mark.parametrize("page_size", [[], ["--page-size", "1"], ["--page-size", "5"]])
@pytest.mark.parametrize("seed", ["1", "2"])
def test_tokens_are_those_of_float64_in_either_layout(page_size: list[str], seed: str, call: Command) -> None:
    code, runs = run([*page_size, "--seed", seed], call)
    assert code == 0
    for each in runs.values():
        assert (each["equal"], each["failures"]) == (TOKENS, [])
        assert 0 < each["error"] <= each["allowed_error"] < 1e-4 < each["closest_choice"]


TINY = ["--layers", "1", "--prompts", "3,1", "--tokens", "3"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """That of a GPU on which the interpreter runs the kernels' text."""
    fake = interpreting(FakeDriver())
    backend = CudaBackend(fake)
    without_assembler(monkeypatch)
    monkeypatch.setattr("ptxgen.runtime.caller_arguments.cuda_backend", lambda: backend)
    return fake


@pytest.mark.slow
@pytest.mark.parametrize("layout", [[], ["--page-size", "2"]])
def test_the_kernels_write_what_float64_does(layout: list[str], call: Command) -> None:
    code, runs = run([*TINY, *layout, "--backend", "interpreter"], call)
    assert code == 0
    assert [each["equal"] for each in runs.values()] == [6, 6]


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("layout", [[], ["--page-size", "2"]])
def test_on_a_gpu_keys_and_values_stay_there(layout: list[str], driver: FakeDriver, call: Command) -> None:
    code, runs = run([*TINY, *layout, "--backend", "cuda"], call)
    assert code == 0
    assert [each["equal"] for each in runs.values()] == [6, 6]
    assert {launch.entry.split("_")[0] for launch in driver.launches} == {"attention"}
    assert all("append" in launch.entry.split("_") for launch in driver.launches)
    fetched = sum(call.arguments[2] for call in driver.calls if call.name == "cuMemcpyDtoHAsync")
    # Of each run the results alone: a row of 4 heads of 8 columns for each token that was read.
    read = [3 + 1 + 2 * 2, 3 + 3 + 2 * 2]  # of its own length, or padded; and then two more of both
    assert fetched == sum(read) * 4 * 8 * np.dtype(np.float32).itemsize


@pytest.mark.parametrize(("dtype", "least", "most"), [("f16", 1e-4, 1e-2), ("bf16", 1e-3, 1e-1)])
def test_a_cache_of_16_bits_is_judged_by_its_roundings(
    dtype: str, least: float, most: float, call: Command
) -> None:
    code, runs = run(["--dtype", dtype, "--page-size", "3"], call)
    assert code == 0
    for each in runs.values():
        assert least < each["error"] <= each["allowed_error"] < most


@pytest.mark.parametrize("argv", [["--tokens", "1"], ["--prompts", "2"], ["--heads", "2"]])
def test_the_least_of_everything_works(argv: list[str], call: Command) -> None:
    assert run(argv, call)[0] == 0


def test_what_padding_is_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, prompts = model.random_weights(SIZES, 0), prompts_of([2, 5])
    result = []
    for token in (0, 1):
        monkeypatch.setattr(tool, "PADDING", token)
        cache = KVCache(2, 2, 2, 8, capacity=8)
        result.append(tool.left_padded(weights, prompts, 4, cache, silent))
    assert result[0].tobytes() == result[1].tobytes()


def test_judging_what_was_written_is_to_write_it_in_float64() -> None:
    weights, prompts = model.random_weights(SIZES, 0), prompts_of([4, 2])
    logits = tool.unpadded(weights, prompts, 9, KVCache(2, 2, 2, 8, capacity=12), silent)
    result = tool.judged(weights, prompts, logits, "f32")
    for prompt, tokens in zip(prompts, result["tokens"], strict=True):
        text = list(prompt)
        for _ in range(9):
            read = np.array(text)[None]
            attend = model.dense_attention(np.float64, np.float64)
            text.append(model.forward(weights, read, attend, np.float64)[0, -1].argmax())
        assert tokens == text[len(prompt) :]


# -------------------------------------------------------------------------- when something is wrong


def shifted(q: Any, how: dict[str, Any]) -> None:
    if q.shape[2] == 1:  # tokens that are decoded, but not their prompts
        for name in ("rotary_cos", "rotary_sin"):
            how[name] = np.roll(how[name], -1, axis=0)


def unscaled(_: Any, how: dict[str, Any]) -> None:
    how["softmax_scale"] = 1.0


def blind(_: Any, how: dict[str, Any]) -> None:
    how["window"] = (3, 0)


@pytest.mark.parametrize("change", [shifted, unscaled, blind])
def test_another_attention_is_found_out(
    change: Callable[..., None], attention: Callable[[Callable[..., None]], None], call: Command
) -> None:
    attention(change)
    code, runs = run([], call)
    assert code == 1
    for each in runs.values():
        assert each["equal"] < TOKENS
        assert each["failures"] == [
            f"{TOKENS - each['equal']} of {TOKENS} tokens are not those of float64",
            f"the logits differ by more than {each['allowed_error']:.1e}",
        ]


def test_padding_that_is_seen_is_found_out(
    attention: Callable[[Callable[..., None]], None], call: Command
) -> None:
    attention(lambda _, how: how.update(leftpad=None))
    code, runs = run(["--dtype", "bf16"], call)
    allowed = runs["left-padded"]["allowed_error"]
    assert code == 1
    assert runs["own lengths"]["failures"] == []
    assert runs["left-padded"]["failures"] == [f"the logits differ by more than {allowed:.1e}"]


def test_the_table_names_what_failed(attention: Callable[[Callable[..., None]], None], call: Command) -> None:
    attention(lambda _, how: how.update(leftpad=None))
    printed = call.out(*SMALL, code=1)
    failures = run([], call)[1]["left-padded"]["failures"]
    assert printed.split("\n\n")[-1] == "".join(f"FAILED: left-padded: {why}\n" for why in failures)


def test_nan_is_a_failure() -> None:
    weights, prompts = model.random_weights(SIZES, 0), prompts_of([3])
    logits = np.zeros((1, 1, SIZES.vocab), np.float32)
    logits[0, 0, 5] = np.nan
    failures = tool.judged(weights, prompts, logits, "bf16")["failures"]
    assert len(failures) == 1
    assert failures[0].startswith("the logits differ by more than ")


def test_near_ties_are_excused_in_16_bits_only() -> None:
    weights = model.random_weights(SIZES, 0)
    attend = model.dense_attention(np.float64, np.float64)
    tie, exact = None, np.array(0)
    for seed in range(100):  # until the two likeliest tokens are as close as bf16 can tell
        prompts = prompts_of([4], seed)
        exact = model.forward(weights, prompts[0][None], attend, np.float64)[:, -1:]
        result = tool.judged(weights, prompts, exact, "bf16")
        if result["closest_choice"] < result["allowed_error"]:
            tie = prompts
            break
    assert tie is not None
    second = np.argsort(exact[0, 0])[-2]
    exact[0, 0, second] = np.nextafter(exact.max(), np.inf)
    judgement = {dtype: tool.judged(weights, tie, exact, dtype) for dtype in ("bf16", "f32")}
    assert [(each["equal"], len(each["failures"])) for each in judgement.values()] == [(0, 0), (0, 2)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--heads", "4", "--kv-heads", "3"], "--heads must be a multiple of --kv-heads, got 4 and 3"),
        (["--head-dim", "7"], "--head-dim must be even for rotary position embedding, got 7"),
        (["--prompts", "3,0"], "argument --prompts: must be a whole number of at least 1, got '0'"),
        (["--seed=-1"], "argument --seed: must be a whole number of at least 0, got '-1'"),
        (["--tokens", "x"], "argument --tokens: must be a whole number of at least 1, got 'x'"),
    ],
)
def test_wrong_usage_is_exit_code_2(argv: list[str], message: str, call: Command) -> None:
    assert call.usage(*argv) == message


def test_what_cannot_be_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([*SMALL, "--page-size", "257"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == (
        "llama.py: error: KVCache: page_size must be an integer from 1 to 256, got 257"
    )


def test_transformers_that_is_missing_is_exit_code_3(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.delitem(sys.modules, "tools.commands.llama_transformers", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert call.error(*SMALL, "--transformers") == (
        3,
        "--transformers needs torch and transformers, but: import of torch "
        "halted; None in sys.modules; pip install torch transformers",
    )


def test_no_gpu_is_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeDriver()
    fake.devices = ()
    monkeypatch.setattr("ptxgen.runtime.caller_arguments.cuda_backend", lambda: CudaBackend(fake))
    assert tool.main([*SMALL, "--backend", "cuda"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == (
        "llama.py: error: backend 'cuda' cannot be used: cannot open the GPU: the driver lists no "
        "device. Without a GPU, backend='interpreter' runs any kernel, and 'cpu' computes attention"
    )


def test_transformers_on_a_gpu_needs_a_torch_that_uses_one(torch: ModuleType, call: Command) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert call.error(*SMALL, "--transformers", "--backend", "cuda") == (
        3,
        "--transformers with --backend cuda needs a torch that uses a GPU, but "
        f"torch {torch.__version__} sees none",
    )


def test_any_other_error_is_exit_code_1(
    attention: Callable[[Callable[..., None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    attention(lambda _, how: how.update(layer=7))
    assert tool.main(SMALL) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "llama.py: error: attention_with_kvcache: layer must be an integer from 0 to 1, got 7"
    )


# -------------------------------------------------------------------------------- with transformers


@pytest.fixture
def bridge(transformers: ModuleType) -> Iterator[ModuleType]:
    """tools/commands/llama_transformers.py, with nothing registered afterwards."""
    from flash.adapters.transformers import NAME
    from tools.commands import llama_transformers

    yield llama_transformers
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        registry._global_mapping.pop(NAME, None)


@pytest.mark.sample(0, gate=1)
@pytest.mark.usefixtures("bridge")
@pytest.mark.parametrize("argv", [[], ["--page-size", "4", "--tied"]])
def test_transformers_writes_the_same_with_our_attention(argv: list[str], call: Command) -> None:
    code, runs = run([*argv, "--transformers"], call)
    assert code == 0
    assert list(runs) == ["own lengths", "left-padded", "transformers", "its eager"]
    assert runs["transformers"]["tokens"] == runs["its eager"]["tokens"]
    assert runs["its eager"]["tokens"] == runs["own lengths"]["tokens"]
    assert runs["transformers"]["error"] != runs["its eager"]["error"]


@pytest.mark.slow
@pytest.mark.usefixtures("bridge")
def test_transformers_may_keep_16_bits(call: Command) -> None:
    code, runs = run(["--transformers", "--dtype", "bf16"], call)
    assert code == 0
    assert runs["transformers"]["error"] > 1e-3 > 1e-5 > runs["its eager"]["error"]


@pytest.mark.slow
@pytest.mark.usefixtures("bridge")
def test_padding_that_transformers_sees_is_found_out(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setattr("flash.adapters.transformers.masks._shown", lambda *_: None)
    code, runs = run(["--transformers"], call)
    assert code == 1
    assert [name for name, each in runs.items() if each["failures"]] == ["transformers"]


@pytest.mark.slow
def test_positions_go_on_where_the_cache_ends(bridge: ModuleType, torch: ModuleType) -> None:
    """A caller that gives neither a mask nor positions leaves them to the length of the cache."""
    from flash.adapters.transformers import FlashCache, register

    weights, tokens = model.random_weights(SIZES, 0), torch.from_numpy(prompts_of([9])[0][None])
    dense = model.dense_attention(np.float64, np.float64)
    wanted = model.forward(weights, tokens.numpy(), dense, np.float64)
    llama = bridge.llama(weights)
    register(llama)
    past = FlashCache(KVCache(2, 1, 2, 8, capacity=9))
    with torch.inference_mode():
        result = [llama(tokens[:, begin:end], cache=past).logits for begin, end in ((0, 4), (4, 5), (5, 9))]
    assert past.get_seq_length() == 9
    assert np.abs(torch.cat(result, dim=1).numpy() - wanted).max() < 1e-5
