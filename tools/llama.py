"""Run a small random Llama over a KV cache and compare it with float64: `python tools/llama.py`."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

import numpy as np
from numpy.typing import NDArray

import flash
from flash.operands.dtypes import DTYPES
from ptxgen.commands.parts.exits import fail
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.progress import Progress, progress
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import BackendError, ConfigError, PtxGenError
from ptxgen.runtime.settings import BACKENDS
from tools.commands.llama_model import (
    CachedAttention,
    Sizes,
    Weights,
    dense_attention,
    forward,
    random_weights,
)

Array = NDArray[Any]

OK, FAILED, USAGE, UNSUPPORTED = range(4)

_fail: Final = functools.partial(fail, "llama.py")

SCHEMA: Final = 1  # version of the JSON; raised when a key changes its meaning
PADDING: Final = 0  # the token of padding; results must not depend on it
EAGER: Final = "its eager"  # run of transformers with its own attention, in f32

# The error of logits against float64 may be ERROR_FACTOR times that of the same model computed in
# f32 without a cache, with the same roundings to the cache's type, since the order of the sums is
# free. In any case it may be ERROR_FLOOR f32 epsilons of the largest logit.
ERROR_FACTOR: Final = 2
ERROR_FLOOR: Final = 4  # in f32 epsilons

_QUIET_S: Final = 1.0  # seconds between two lines of progress, without a bar

_EPILOG = """\
examples:
  python tools/llama.py                                three prompts, 32 tokens each
  python tools/llama.py --page-size 16 --dtype bf16    in pages, rounded to bf16
  python tools/llama.py --prompts 5 --tokens 4 --backend interpreter
  python tools/llama.py --backend cuda --dtype bf16    keys and values stay on the GPU
  python tools/llama.py --transformers                 also as an attention of transformers
  python tools/llama.py --layers 4 --hidden 256 --heads 8 --kv-heads 2 --json

What is run: the prompts are appended to the cache, then all sequences are decoded together, one
token each at a time, always the likeliest. Once with sequences of lengths of their own; and once as
a batch with padding on the left. With --transformers, a LlamaForCausalLM with the same weights
generates as well, with this attention over this cache, and for comparison with its own, "eager".

What is checked: float64, with no cache and each sequence alone, finds the same token likeliest
every time, so that it would have written the same text; for --dtype f16 and bf16, where near ties
may end otherwise, it is counted how often. And the logits differ from float64's by no more than
twice as much as those of f32 without a cache, with the same roundings to the cache's type.

exit codes: 0 all is equal, 1 a token or a logit is not, or a call failed, 2 wrong usage, 3 what is
asked for is not supported, or not there: a GPU, transformers
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the model in each way and print a table; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    try:
        result = _result(arguments)
    except (ConfigError, BackendError) as error:
        return _fail(UNSUPPORTED, error)
    except ImportError as error:
        return _fail(
            UNSUPPORTED,
            f"--transformers needs torch and transformers, but: {error}; pip install torch transformers",
        )
    except PtxGenError as error:
        return _fail(FAILED, error)
    tell(json.dumps(result, indent=2) if arguments.json else _report(result))
    return OK if result["passed"] else FAILED


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="llama.py",
        description="Run a small random Llama over a KV cache and compare it with float64.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    model = parser.add_argument_group("the model")
    for option, default, what in (
        ("--layers", 2, "layers"),
        ("--hidden", 64, "elements of a token's row"),
        ("--heads", 4, "heads of queries"),
        ("--kv-heads", 2, "heads of keys and values"),
        ("--head-dim", 16, "elements of a head's row, even"),
        ("--intermediate", 128, "elements of a row within SwiGLU"),
        ("--vocab", 256, "tokens that there are"),
    ):
        model.add_argument(
            option, type=whole(1), default=default, metavar="N", help=f"{what} (default: {default})"
        )
    model.add_argument("--tied", action="store_true", help="make logits with the embedding")
    model.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="of weights and prompts (default: 0)"
    )
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--prompts",
        type=_lengths,
        default=[37, 11, 5],
        metavar="N,…",
        help="their lengths, a prompt for each (default: 37,11,5)",
    )
    run.add_argument(
        "--tokens", type=whole(1), default=32, metavar="N", help="to write for each (default: 32)"
    )
    run.add_argument("--dtype", choices=DTYPES, default="f32", help="of the cache (default: f32)")
    run.add_argument(
        "--page-size", type=whole(1), metavar="N", help="of a cache in pages (default: no pages)"
    )
    run.add_argument("--backend", choices=BACKENDS, default="cpu", help="default: cpu")
    run.add_argument("--transformers", action="store_true", help="run it with transformers, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.heads % arguments.kv_heads:
        parser.error(
            f"--heads must be a multiple of --kv-heads, got {arguments.heads} and {arguments.kv_heads}"
        )
    if arguments.head_dim % 2:
        parser.error(f"--head-dim must be even for rotary position embedding, got {arguments.head_dim}")
    return arguments


def _lengths(text: str) -> list[int]:
    return [*map(whole(1), text.split(","))]


# ---------------------------------------------------------------------------------------- the runs


def _result(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the model in each way; the model, its cache and the results, ready for JSON."""
    weights = random_weights(
        Sizes(
            arguments.layers,
            arguments.hidden,
            arguments.heads,
            arguments.kv_heads,
            arguments.head_dim,
            arguments.intermediate,
            arguments.vocab,
            arguments.tied,
        ),
        arguments.seed,
    )
    random = np.random.default_rng(arguments.seed)
    prompts = [random.integers(arguments.vocab, size=length) for length in arguments.prompts]
    ways = _ways(arguments, weights, prompts)
    runs = []
    with progress(len(ways) * (arguments.tokens + 1), _QUIET_S) as begin:
        for name, way in ways.items():
            logits = way(_of(name, begin))
            begin(f"{name}, float64")
            dtype = "f32" if name == EAGER else arguments.dtype
            runs.append({"run": name} | judged(weights, prompts, logits, dtype))
    return {
        "schema": SCHEMA,
        "passed": not any(run["failures"] for run in runs),
        "model": {name: getattr(weights.sizes, name) for name in Sizes.__dataclass_fields__},
        "seed": arguments.seed,
        "prompts": arguments.prompts,
        "cache": {"dtype": arguments.dtype, "page_size": arguments.page_size, "backend": arguments.backend},
        "runs": runs,
    }


def _ways(
    arguments: argparse.Namespace, weights: Weights, prompts: Sequence[Array]
) -> dict[str, Callable[[Progress], Array]]:
    """The ways to run the model, by name. Raises ImportError if transformers is asked for and not
    installed, `BackendError` if it must use a GPU and cannot.
    """
    tokens = arguments.tokens
    ways: dict[str, Callable[[Progress], Array]] = {
        "own lengths": lambda begin: unpadded(weights, prompts, tokens, _cache(arguments), begin),
        "left-padded": lambda begin: left_padded(weights, prompts, tokens, _cache(arguments), begin),
    }
    if arguments.transformers:
        if arguments.backend == "cuda":
            _require_torch_on_gpu()
        generated = importlib.import_module("tools.commands.llama_transformers").generated
        rows, leftpad = padded(prompts)
        ways["transformers"] = lambda begin: generated(
            weights, rows, leftpad, tokens, _cache(arguments), begin
        )
        ways[EAGER] = lambda begin: generated(weights, rows, leftpad, tokens, None, begin)
    return ways


def _require_torch_on_gpu() -> None:
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise BackendError(
            "--transformers with --backend cuda needs a torch that uses a GPU, but torch "
            f"{torch.__version__} sees none"
        )


def _of(name: str, begin: Progress) -> Progress:
    return lambda what: begin(f"{name}, {what}")


def _cache(arguments: argparse.Namespace) -> flash.KVCache:
    """An empty cache with room for all tokens but the last written one, which is not appended."""
    return flash.KVCache(
        arguments.layers,
        len(arguments.prompts),
        arguments.kv_heads,
        arguments.head_dim,
        max(arguments.prompts) + arguments.tokens - 1,
        dtype=arguments.dtype,
        page_size=arguments.page_size,
        backend=arguments.backend,
    )


def unpadded(
    weights: Weights, prompts: Sequence[Array], tokens: int, cache: flash.KVCache, begin: Progress
) -> Array:
    """Logits [prompts, tokens, vocab] of greedy decoding; sequences keep different lengths."""
    begin("prompts")
    first = [
        _last(weights, prompt[None], CachedAttention(cache, [number]))
        for number, prompt in enumerate(prompts)
    ]
    return _decoded(weights, np.concatenate(first), tokens, CachedAttention(cache), begin)


def left_padded(
    weights: Weights, prompts: Sequence[Array], tokens: int, cache: flash.KVCache, begin: Progress
) -> Array:
    """Logits [prompts, tokens, vocab] of greedy decoding of prompts that are padded on the left."""
    rows, leftpad = padded(prompts)
    attend = CachedAttention(cache, leftpad=leftpad)
    begin("prompts")
    return _decoded(weights, _last(weights, rows, attend), tokens, attend, begin)


def padded(prompts: Sequence[Array]) -> tuple[Array, list[int]]:
    """The prompts as [prompts, longest length], and the number of padding tokens left of each."""
    longest = max(map(len, prompts))
    leftpad = [longest - len(prompt) for prompt in prompts]
    rows = [
        np.pad(prompt, (n, 0), constant_values=PADDING) for prompt, n in zip(prompts, leftpad, strict=True)
    ]
    return np.stack(rows), leftpad


def _last(weights: Weights, tokens: Array, attend: CachedAttention) -> Array:
    """Logits of the last token of each item: [items, vocab]."""
    last: Array = forward(weights, tokens, attend, np.float32)[:, -1]
    return last


def _decoded(weights: Weights, first: Array, tokens: int, attend: CachedAttention, begin: Progress) -> Array:
    logits = [first]
    for number in range(1, tokens):
        begin(f"token {number + 1}")
        logits.append(_last(weights, logits[-1].argmax(axis=1)[:, None], attend))
    return np.stack(logits, axis=1)


# ------------------------------------------------------------------------------------- judging


def judged(weights: Weights, prompts: Sequence[Array], logits: Array, dtype: str) -> dict[str, Any]:
    """The errors of logits [prompts, tokens, vocab] against float64 logits of the same text, in
    which each token is the one with the largest logit; `failures` describes each failure in words.
    `dtype` is the type of keys and values.

    The float64 model reads the written text and writes none: up to the first token that it would
    not have chosen, its own text is the same.
    """
    written = logits.argmax(axis=2)
    exact = _whole(weights, prompts, written, np.float64, np.float64)
    rounded = _whole(weights, prompts, written, np.float32, DTYPES[dtype].numpy)
    allowed = ERROR_FACTOR * float(np.max(np.abs(rounded - exact)))
    allowed += ERROR_FLOOR * float(np.finfo(np.float32).eps) * float(np.max(np.abs(exact)))
    error = float(np.max(np.abs(logits - exact)))
    equal = int(np.sum(written == exact.argmax(axis=2)))
    best = np.sort(exact, axis=2)[..., -2:]
    other = written.size - equal
    checks = {
        f"{other} of {written.size} tokens are not those of float64": not other or dtype != "f32",
        f"the logits differ by more than {allowed:.1e}": error <= allowed,  # False for NaN
    }
    return {
        "tokens": written.tolist(),
        "equal": equal,
        "error": error,
        "allowed_error": allowed,
        "closest_choice": float(np.min(best[..., -1] - best[..., 0])),
        "failures": [words for words, passed in checks.items() if not passed],
    }


def _whole(weights: Weights, prompts: Sequence[Array], written: Array, dtype: Any, stored: Any) -> Array:
    """Logits of the written tokens, computed without a cache from each whole sequence alone."""
    written_logits = []
    for prompt, text in zip(prompts, written, strict=True):
        read = np.concatenate([prompt, text[:-1]])[None]
        logits = forward(weights, read, dense_attention(dtype, stored), dtype)
        written_logits.append(logits[0, len(prompt) - 1 :])
    return np.stack(written_logits)


# -------------------------------------------------------------------------------------- the report


def _report(result: Mapping[str, Any]) -> str:
    """The results as a table for a reader."""
    model, cache = result["model"], result["cache"]
    pages = "contiguous" if cache["page_size"] is None else f"pages of {cache['page_size']}"
    keys = ("error", "allowed_error", "closest_choice")
    rows = [
        ("", "tokens", "as float64", "difference", "allowed", "closest choice"),
        *(
            (
                run["run"],
                str(sum(map(len, run["tokens"]))),
                str(run["equal"]),
                *(f"{run[key]:.1e}" for key in keys),
            )
            for run in result["runs"]
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    failed = [f"FAILED: {run['run']}: {why}" for run in result["runs"] for why in run["failures"]]
    return "\n".join(
        [
            f"Llama of {model['layers']} layers, {model['heads']} heads, {model['kv_heads']} of "
            f"keys, head_dim {model['head_dim']}; prompts of "
            f"{', '.join(map(str, result['prompts']))} tokens",
            f"cache: {cache['dtype']}, {pages}, on {cache['backend']}",
            "",
            *table,
            "",
            *(failed or ["all checks passed"]),
        ]
    )


if __name__ == "__main__":
    sys.exit(quietly(main))
