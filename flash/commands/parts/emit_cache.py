"""The kernels for KV caches that `ptxgen emit` emits: attention to a cache, appending to a cache,
and the merge of partial results of splits.
"""

from __future__ import annotations

import argparse
from typing import Final

from flash import cache_kernels
from flash.cache_kernels import CacheConfig
from flash.commands.parts.emit_kernel import OUTPUTS, Kind
from flash.commands.parts.emit_options import OF_OUTPUTS, add_kernel_options, config_of
from flash.commands.parts.emit_output import NATIVE, find_target
from flash.contract.built_kernel import BuiltKernel
from flash.operands.blocks import CACHED_DTYPES
from flash.scores.features import SCORES
from flash.scores.options import number

_TARGET: Final = {
    "default": None,
    "help": f"such as sm_90, or {NATIVE} for this machine's GPU (default: sm_80, or sm_89 with "
    "--kv-dtype e4m3)",
}

# Settings of a config that are of packed sequences, and for a cache of the launch.
_OF_CACHE: Final = ("page_size", "splits", "rotary_dim", "rotary_interleaved")

_OUTPUTS: Final = f"{OUTPUTS}; docs/embedding.md has\nthe launches of a token."

_DECODE: Final = f"""\
examples:
  ptxgen emit decode --head-dim 128 --dtype bf16 --causal -o decode.ptx
  ptxgen emit decode --head-dim 128 --dtype bf16 --causal --group 8 --splits \\
      --page-size 64 -o paged.ptx
  ptxgen emit decode --head-dim 64 --dtype f16 --kv-dtype e4m3 --leftpad-k --json
  ptxgen emit decode --head-dim 128 --dtype bf16 --causal --group 8 --splits \\
      --page-size 64 --append --rotary-dim 128 -o token.ptx
  ptxgen emit decode --head-dim 256 --head-dim-v 192 --shared-kv --dtype bf16 --causal --group 128 \\
      --splits --page-size 64 --target sm_90a -o shared.ptx

The kernel takes any number of queries, of heads that share a head of K and V, and of sequences:
--seq-q and --group are what tiles are chosen for. A launch says how long each sequence is
(seqused_k). With --splits it also says into how many parts the keys are divided; O and LSE are then
parts, in f32, for the kernel of ptxgen emit merge.

With --append it writes up to 16 new rows of each sequence to the cache itself, where seqused_k
counts them already, and with --rotary-dim turns those of K, and the queries: no launch of
ptxgen emit append is needed. It then takes no more queries than a CTA has, the heads that share
a head of K together. With --rotary-dim alone it turns the queries only.

{_OUTPUTS}
"""
_APPEND: Final = f"""\
examples:
  ptxgen emit append --head-dim 128 --dtype bf16 -o append.ptx
  ptxgen emit append --head-dim 128 --dtype bf16 --page-size 64 --rotary-dim 128 --json
  ptxgen emit append --head-dim 64 --dtype f16 --kv-dtype e4m3 -o narrow.ptx

It writes the new rows of K and V of all sequences to their places, and with --rotary-dim turns
those of K, and queries, by their positions on the way. The lengths that it reads (seqused_k) count
the new rows already, as those for attention do.

{_OUTPUTS}
"""
_MERGE: Final = f"""\
examples:
  ptxgen emit merge --head-dim-v 128 --dtype bf16 -o merge.ptx
  ptxgen emit merge --head-dim-v 64 --parts f16 --return-lse --json

It merges attentions to parts of the keys, by their log-sum-exp: what ptxgen emit decode
--splits writes, or any others.

{_OUTPUTS}
"""


def _add_cache(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--page-size", type=number, metavar="N", help="rows of a page (default: no pages)")
    add("--kv-dtype", metavar="TYPE", help=f"of the cache: {' or '.join(CACHED_DTYPES)} (default: --dtype)")
    add("--leftpad-k", action="store_true", help="sequences may begin with padding")
    add("--cache-batch-idx", action="store_true", help="a launch says which sequences are meant")


def _add_rotary(group: argparse._ArgumentGroup) -> None:
    add_kernel_options(
        group,
        ("--rotary-dim", "--rotary-interleaved"),
        rotary_dim={"help": "columns of rotary embedding, even (default: 0)"},
        rotary_interleaved={"help": "of neighbours, not of halves"},
    )


def _cache(arguments: argparse.Namespace) -> CacheConfig:
    return CacheConfig(
        arguments.page_size, arguments.kv_dtype, arguments.leftpad_k, arguments.cache_batch_idx
    )


def _target(arguments: argparse.Namespace) -> str | None:
    return None if arguments.target is None else find_target(arguments.target).name


def _add_decode(group: argparse._ArgumentGroup) -> None:
    add_kernel_options(
        group,
        (
            "--head-dim",
            "--head-dim-v",
            "--dtype",
            "--precision",
            "--tile",
            "--block-q",
            "--stages",
            "--causal",
            *(o for f in SCORES if f.in_cache for o in f.options),
            "--pack-gqa",
            "--shared-kv",
            *OF_OUTPUTS,
            "--alignment",
            "--target",
        ),
        causal={"choices": ["bottom_right"], "help": "the last query sees every key"},
        tile={"help": "keys per tile (default: auto)"},
        mask={"help": "a byte for each of the last keys of a sequence: 0 hides it"},
        target=_TARGET,
    )
    _add_cache(group)
    add = group.add_argument
    add("--splits", action="store_true", help="the keys are divided into parts")
    add("--append", action="store_true", help="it writes new rows of K and V to the cache first")
    _add_rotary(group)
    for option, what in (("--seq-q", "queries"), ("--group", "heads that share a head of K and V")):
        add(
            option, type=number, default=1, metavar="N", help=f"{what} that tiles are chosen for (default: 1)"
        )


def _decode(arguments: argparse.Namespace) -> BuiltKernel:
    config = config_of(arguments, _target(arguments), others=_OF_CACHE)
    return cache_kernels.decode(
        config,
        _cache(arguments),
        splits=arguments.splits,
        seq_q=arguments.seq_q,
        group=arguments.group,
        append=arguments.append,
        rotary_dim=arguments.rotary_dim,
        rotary_interleaved=arguments.rotary_interleaved,
    )


def _add_append(group: argparse._ArgumentGroup) -> None:
    add_kernel_options(
        group,
        ("--head-dim", "--head-dim-v", "--dtype", "--target"),
        head_dim={"help": "elements of a row of K, 1 to 576"},
        head_dim_v={"help": "of a row of V (default: --head-dim)"},
        dtype={"help": "element type of new rows: f32, f16 or bf16 (default: f32)"},
        target=_TARGET,
    )
    _add_cache(group)
    _add_rotary(group)
    group.add_argument(
        "--counts", action="store_true", help="each sequence has a number of new rows of its own"
    )


def _append(arguments: argparse.Namespace) -> BuiltKernel:
    return cache_kernels.append(
        arguments.head_dim,
        arguments.head_dim_v,
        cache=_cache(arguments),
        dtype=arguments.dtype,
        rotary_dim=arguments.rotary_dim,
        rotary_interleaved=arguments.rotary_interleaved,
        counts=arguments.counts,
        target=_target(arguments),
    )


def _add_merge(group: argparse._ArgumentGroup) -> None:
    add_kernel_options(
        group,
        ("--head-dim-v", "--dtype", "--return-lse", "--alignment", "--target"),
        head_dim_v={"help": "elements of a row of O, 1 to 512"},
        dtype={"help": "element type of O: f32, f16 or bf16 (default: f32)"},
        alignment={"help": "of O and its strides (default: what dense arrays have)"},
    )
    group.add_argument("--parts", default="f32", metavar="TYPE", help="of parts (default: f32)")


def _merge(arguments: argparse.Namespace) -> BuiltKernel:
    return cache_kernels.merge(
        arguments.head_dim_v,
        dtype=arguments.dtype,
        parts=arguments.parts,
        return_lse=arguments.return_lse,
        alignment=None if arguments.alignment == "auto" else arguments.alignment,
        target=_target(arguments),
    )


KINDS: Final = {
    "decode": Kind(
        "the PTX of attention to a KV cache, or its launch contract",
        _DECODE,
        ("--head-dim",),
        _add_decode,
        _decode,
    ),
    "append": Kind(
        "the PTX of the kernel that appends to a KV cache, or its launch contract",
        _APPEND,
        ("--head-dim",),
        _add_append,
        _append,
    ),
    "merge": Kind(
        "the PTX of the kernel that merges parts, or its launch contract",
        _MERGE,
        ("--head-dim-v",),
        _add_merge,
        _merge,
    ),
}
