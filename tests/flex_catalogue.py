"""Functions of scores as users write them for PyTorch's flex_attention: those of its tests and its page, and
those of attention-gym, written down from what they compute. Each closes over the tensors that it indexes.

`SCORE_MODS` and `MASK_MODS` are by name, for BATCH items, HEADS heads and SEQ queries and keys; `REFUSED` are
those that are not traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

BATCH: Final = 2
HEADS: Final = 4
SEQ: Final = 64

SCORE_MODS: Final[dict[str, Callable[..., Any]]] = {}
MASK_MODS: Final[dict[str, Callable[..., Any]]] = {}
REFUSED: Final[dict[str, Callable[..., Any]]] = {}

_RANDOM = torch.Generator().manual_seed(3)


def _normal(*shape: int) -> Any:
    return torch.randn(*shape, generator=_RANDOM)


def _integers(low: int, high: int, *shape: int) -> Any:
    return torch.randint(low, high, shape, generator=_RANDOM)


def _score(function: Callable[..., Any]) -> Callable[..., Any]:
    SCORE_MODS[function.__name__] = function
    return function


def _mask(function: Callable[..., Any]) -> Callable[..., Any]:
    MASK_MODS[function.__name__] = function
    return function


# ---- scores of PyTorch's tests


@_score
def identity(score, b, h, q, kv):
    return score


@_score
def causal_by_score(score, b, h, q, kv):
    return torch.where(q >= kv, score, float("-inf"))


@_score
def inverse_causal(score, b, h, q, kv):
    return torch.where(q <= kv, score, float("-inf"))


@_score
def relative_bias(score, b, h, q, kv):
    return score + (q - kv)


@_score
def relative_causal(score, b, h, q, kv):
    return torch.where(q >= kv, score + (q - kv), float("-inf"))


@_score
def times_two(score, b, h, q, kv):
    return score * 2


@_score
def squared(score, b, h, q, kv):
    return score * score


@_score
def trig(score, b, h, q, kv):
    return torch.sin(torch.cos(score)) + torch.tan(b)


@_score
def trig_of_a_branch(score, b, h, q, kv):
    cos, sin = torch.cos(score), torch.sin(score)
    return cos * sin + torch.tan(b)


@_score
def silu(score, b, h, q, kv):
    return functional.silu(score)


@_score
def composed(score, b, h, q, kv):
    return torch.log(squared(score, b, h, q, kv) + 1).exp() - times_two(score, b, h, q, kv)


def _alibi(heads: int) -> Callable[..., Any]:
    def alibi(score, b, h, q, kv):
        scale = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + (kv - q) * scale

    return alibi


SCORE_MODS["alibi"] = _alibi(HEADS)

HEAD_OFFSET = _normal(HEADS)
BATCH_SCALE, Q_SCALE, KV_SCALE = _normal(BATCH), _normal(SEQ), _normal(SEQ)


@_score
def head_offset(score, b, h, q, kv):
    return score * HEAD_OFFSET[h]


@_score
def buffers_of_all_axes(score, b, h, q, kv):
    score = score + HEAD_OFFSET[h]
    score = score + BATCH_SCALE[b]
    score = score + KV_SCALE[kv]
    return score + Q_SCALE[q]


SEQUENCE = torch.arange(SEQ) // 10


@_score
def sequence_masking(score, b, h, q, kv):
    return torch.where(SEQUENCE[q] == SEQUENCE[kv], score, float("-inf"))


BIAS_2D, BIAS_3D, BIAS_4D = _normal(SEQ, SEQ), _normal(BATCH, SEQ, SEQ), _normal(BATCH, HEADS, SEQ, SEQ)


@_score
def bias_of_sequences(score, b, h, q, kv):
    return score + BIAS_2D[q, kv]


@_score
def bias_of_batches(score, b, h, q, kv):
    return score + BIAS_3D[b, q, kv]


@_score
def bias_of_heads(score, b, h, q, kv):
    return score + BIAS_4D[b, h, q, kv]


def _of_half(bias: Any) -> Callable[..., Any]:
    def bias_in_half(score, b, h, q, kv):
        return score + bias[b, h, q, kv]

    return bias_in_half


SCORE_MODS["bias_in_half"] = _of_half(BIAS_4D.half())
SCORE_MODS["bias_in_bfloat16"] = _of_half(BIAS_4D.bfloat16())
SCORE_MODS["bias_of_a_view"] = _of_half(BIAS_4D.transpose(2, 3))


@_score
def bias_by_one_axis_after_the_other(score, b, h, q, kv):
    return score + BIAS_4D[b][h][q][kv]


STACKED = _normal(5, BATCH, HEADS, SEQ)
WHICH = torch.tensor(4)


@_score
def bias_of_a_constant_row(score, b, h, q, kv):
    return score + STACKED[4][b, h, q]


@_score
def bias_of_a_row_by_a_tensor(score, b, h, q, kv):
    return score + STACKED[WHICH][b, h, q]


RELATIVE = _normal(2 * SEQ)
OF_HEADS = _normal(HEADS, 2 * SEQ)


@_score
def table_of_distances(score, b, h, q, kv):
    return score + RELATIVE[q - kv + SEQ]


@_score
def table_of_absolute_distances(score, b, h, q, kv):
    return score + RELATIVE[torch.abs(q - kv)]


@_score
def table_of_heads_and_distances(score, b, h, q, kv):
    return score + OF_HEADS[h, q - kv + SEQ]


@_score
def table_of_clamped_distances(score, b, h, q, kv):
    return score + OF_HEADS[h, torch.clamp(q - kv, -8, 8) + 8]


@_score
def biases_of_queries_and_keys(score, b, h, q, kv):
    return score + Q_SCALE[q] * KV_SCALE[kv]


@_score
def local_window_of_a_table(score, b, h, q, kv):
    inside = (q - kv).abs() <= 4
    return torch.where(inside, score + RELATIVE[torch.where(inside, q - kv + 4, 0)], score)


@_score
def gated_by_heads(score, b, h, q, kv):
    return score * torch.sigmoid(HEAD_OFFSET[h])


@_score
def learned_tokens(score, b, h, q, kv):
    return torch.where(kv < 3, score + KV_SCALE[kv], score)


NUM_BIDIRECTIONAL = torch.tensor([5, 20])


@_score
def dependent_bidirectional(score, b, h, q, kv):
    limit = NUM_BIDIRECTIONAL[b]
    both = (q <= limit) & (kv <= limit)
    return torch.where(both | (q >= kv), score, -torch.inf)


@_score
def skipped_odd_keys(score, b, h, q, kv):
    return torch.where(kv % 2 == 0, score, float("-inf"))


@_score
def checkerboard(score, b, h, q, kv):
    score = torch.where(torch.abs(kv - q) % 2 == 1, score * 0.5, score)
    return torch.where(torch.abs(kv - q) % 2 == 0, score * 2.0, score)


SCALE = torch.tensor(0.75)


@_score
def captured_scale(score, b, h, q, kv):
    return score * SCALE


OFFSETS = torch.tensor([0, 20, 37, 64])
OF_TOKEN = torch.repeat_interleave(torch.arange(3), OFFSETS.diff())


@_score
def of_nested_tensors(score, b, h, q, kv):
    q_nested, kv_nested = q - OFFSETS[OF_TOKEN[q]], kv - OFFSETS[OF_TOKEN[kv]]
    inside = (OF_TOKEN[q] == OF_TOKEN[kv]) & (q_nested >= kv_nested)
    return torch.where(inside, score * 2, -float("inf"))


@_score
def by_finfo(score, b, h, q, kv):
    return torch.where(q >= kv, score, torch.finfo(score.dtype).min / 2)


@_score
def masked_fill(score, b, h, q, kv):
    return score.masked_fill(q < kv, float("-inf"))


# ---- scores of attention-gym and of models


def _softcap(cap: float) -> Callable[..., Any]:
    def softcap(score, b, h, q, kv):
        return cap * torch.tanh(score / cap)

    return softcap


SCORE_MODS["softcap"] = _softcap(20)


class _Softcap(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 20 * torch.tanh(x / 20)

    @staticmethod
    def setup_context(ctx, _inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (output,) = ctx.saved_tensors
        return gradient * (1 - (output / 20) ** 2)


@_score
def softcap_by_an_autograd_function(score, b, h, q, kv):
    return _Softcap.apply(score)


def _activated(activation: Callable[..., Any]) -> Callable[..., Any]:
    def activated(score, b, h, q, kv):
        return activation(score)

    return activated


for _name in ("relu", "gelu", "sigmoid", "softplus", "elu", "leaky_relu", "logsigmoid"):
    SCORE_MODS[_name] = _activated(getattr(functional, _name))
SCORE_MODS["gelu_by_tanh"] = _activated(lambda score: functional.gelu(score, approximate="tanh"))

DECAY = torch.log(1 - 2.0 ** (-5 - torch.arange(HEADS)))


@_score
def retention(score, b, h, q, kv):
    return torch.where(q >= kv, score + (q - kv) * DECAY[h], float("-inf"))


@_score
def decay_by_a_power(score, b, h, q, kv):
    return score * 2.0 ** (-(q - kv).abs() / 8)


@_score
def decay_by_heads(score, b, h, q, kv):
    return score - (2.0 ** (-(h + 1) * 2)) * (q - kv).abs().float() ** 0.5


FORGOTTEN = functional.logsigmoid(_normal(BATCH, HEADS, SEQ)).cumsum(-1)


@_score
def forgetting(score, b, h, q, kv):
    return score + FORGOTTEN[b, h, q] - FORGOTTEN[b, h, kv]


T5 = _normal(32, HEADS)


@_score
def buckets_of_t5(score, b, h, q, kv):
    distance = torch.clamp(q - kv, min=0)
    far = 16 + (torch.log(distance.float().clamp(min=1) / 15.9) / math.log(128 / 16) * 16).to(torch.long)
    bucket = torch.where(distance < 16, distance, torch.clamp(far, max=31))
    return score + T5[bucket, h]


@_score
def kerple_of_a_logarithm(score, b, h, q, kv):
    return score - 1.5 * torch.log1p(0.5 * (q - kv).abs())


@_score
def normalized_by_length(score, b, h, q, kv):
    return score * torch.log2(kv + 2.0) * torch.rsqrt(q + 1.0)


@_score
def rotated(score, b, h, q, kv):
    return score * torch.cos((q - kv) * 10000.0 ** (-h / 4))


@_score
def temperature(score, b, h, q, kv):
    return score / torch.div(q, 16, rounding_mode="floor").add(1).to(score.dtype).sqrt()


# ---- masks of PyTorch's page and tests


@_mask
def causal(b, h, q, kv):
    return q >= kv


MASK_MODS["noop"] = noop_mask


@_mask
def negated_causal(b, h, q, kv):
    return ~causal(b, h, q, kv)


def _sliding_window(size: int) -> Callable[..., Any]:
    def sliding_window(b, h, q, kv):
        return q - kv <= size

    return and_masks(sliding_window, causal)


def _prefix(length: int) -> Callable[..., Any]:
    def prefix(b, h, q, kv):
        return kv < length

    return or_masks(prefix, causal)


MASK_MODS["sliding_window"] = _sliding_window(9)
MASK_MODS["prefix"] = _prefix(7)
PREFIXES = torch.tensor([5, 30])
LENGTHS = torch.tensor([11, 60])


@_mask
def prefixes_of_items(b, h, q, kv):
    return (kv <= PREFIXES[b]) | (q >= kv)


@_mask
def padding(b, h, q, kv):
    return (kv < LENGTHS[b]) & (q < LENGTHS[b])


@_mask
def documents(b, h, q, kv):
    return OF_TOKEN[q] == OF_TOKEN[kv]


DOCUMENTS = torch.sort(_integers(0, 5, BATCH, SEQ), dim=1).values


@_mask
def documents_of_items(b, h, q, kv):
    return DOCUMENTS[b][q] == DOCUMENTS[b][kv]


def _in_documents(inner: Callable[..., Any], offsets: Any) -> Callable[..., Any]:
    of_token = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())

    def in_documents(b, h, q, kv):
        same = of_token[q] == of_token[kv]
        return same & inner(b, h, q - offsets[of_token[q]], kv - offsets[of_token[kv]])

    return in_documents


MASK_MODS["causal_in_documents"] = _in_documents(causal, OFFSETS)
MASK_MODS["window_in_documents"] = _in_documents(_sliding_window(5), OFFSETS)


@_mask
def bits_of_a_table(b, h, q, kv):
    return BIAS_2D[q, kv] > 0


FLAGS = _integers(0, 2, HEADS, SEQ // 8, SEQ // 8).bool()


@_mask
def blocks_of_flags(b, h, q, kv):
    return FLAGS[h, q // 8, kv // 8]


@_mask
def equal_conditions(b, h, q, kv):
    return (q < 20) == (kv < 20)


# ---- masks of attention-gym and of models


def _dilated(window: int, dilation: int) -> Callable[..., Any]:
    def dilated(b, h, q, kv):
        diff = (q - kv).abs()
        return (diff <= window) & ((diff % dilation) == 0)

    return dilated


MASK_MODS["dilated_window"] = _dilated(12, 3)


def _natten(width: int, height: int, kernel_w: int, kernel_h: int) -> Callable[..., Any]:
    def coordinates(index):
        return index // width, index % width

    def natten(b, h, q, kv):
        q_x, q_y = coordinates(q)
        kv_x, kv_y = coordinates(kv)
        center_x = q_x.clamp(kernel_w // 2, (width - 1) - kernel_w // 2)
        center_y = q_y.clamp(kernel_h // 2, (height - 1) - kernel_h // 2)
        horizontal = (center_x - kv_x).abs() <= kernel_w // 2
        return horizontal & ((center_y - kv_y).abs() <= kernel_h // 2)

    return natten


def _tiled_natten(width: int, kernel: int, tile: int) -> Callable[..., Any]:
    def coordinates(index):
        tiles = width // tile
        t, inside = index // (tile * tile), index % (tile * tile)
        return (t // tiles) * tile + inside // tile, (t % tiles) * tile + inside % tile

    def tiled(b, h, q, kv):
        q_x, q_y = coordinates(q)
        kv_x, kv_y = coordinates(kv)
        center_x = q_x.clamp(kernel // 2, width - 1 - kernel // 2)
        center_y = q_y.clamp(kernel // 2, width - 1 - kernel // 2)
        return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)

    return tiled


def _morton_natten(width: int, kernel: int) -> Callable[..., Any]:
    def even_bits(x):
        x = x & 0x55555555
        x = (x | (x >> 1)) & 0x33333333
        x = (x | (x >> 2)) & 0x0F0F0F0F
        x = (x | (x >> 4)) & 0x00FF00FF
        return (x | (x >> 8)) & 0x0000FFFF

    def morton(b, h, q, kv):
        q_x, q_y = even_bits(q >> 1), even_bits(q)
        kv_x, kv_y = even_bits(kv >> 1), even_bits(kv)
        center_x = q_x.clamp(kernel // 2, width - 1 - kernel // 2)
        center_y = q_y.clamp(kernel // 2, width - 1 - kernel // 2)
        return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)

    return morton


MASK_MODS["natten"] = _natten(8, 8, 3, 5)
MASK_MODS["natten_in_tiles"] = _tiled_natten(8, 3, 4)
MASK_MODS["natten_in_morton_order"] = _morton_natten(8, 3)


def _sliding_tiles(
    canvas: tuple[int, ...], kernel: tuple[int, ...], tile: tuple[int, ...]
) -> Callable[..., Any]:
    counts = [c // t for c, t in zip(canvas, tile, strict=True)]

    def tiles_of(index):
        index = index // math.prod(tile)
        result = []
        for count in reversed(counts):
            result.append(index % count)
            index = index // count
        return result[::-1]

    def sliding_tiles(b, h, q, kv):
        shown = q == q
        for count, size, of_q, of_kv in zip(counts, kernel, tiles_of(q), tiles_of(kv), strict=True):
            center = of_q.clamp(size // 2, (count - 1) - size // 2)
            shown = shown & ((center - of_kv).abs() <= size // 2)
        return shown

    return sliding_tiles


MASK_MODS["sliding_tiles_2d"] = _sliding_tiles((8, 8), (3, 1), (2, 2))
MASK_MODS["sliding_tiles_3d"] = _sliding_tiles((4, 4, 4), (1, 1, 1), (2, 2, 2))


def _transfusion(spans: Any) -> Callable[..., Any]:
    def in_modality(b, h, q, kv):
        starts, ends = spans[b, 0, 0], spans[b, 0, 0] + spans[b, 0, 1]
        return (q >= starts) & (kv < ends) & (kv >= starts) & (q < ends)

    return or_masks(causal, in_modality)


MASK_MODS["transfusion"] = _transfusion(torch.tensor([[[4, 9]], [[30, 20]]]))

IMAGES = torch.sort(_integers(0, 4, BATCH, SEQ), dim=1).values


@_mask
def flamingo(b, h, q, kv):
    return IMAGES[b, q] == torch.div(kv, 16, rounding_mode="trunc")


@_mask
def streaming(b, h, q, kv):
    return (q >= kv) & ((q - kv < 12) | (kv < 4))


@_mask
def strided(b, h, q, kv):
    return (q >= kv) & ((q - kv < 8) | ((q - kv) % 8 == 0))


@_mask
def causal_in_blocks(b, h, q, kv):
    return torch.div(q, 8, rounding_mode="floor") >= torch.floor_divide(kv, 8)


@_mask
def chunks(b, h, q, kv):
    return (q // 16 == kv // 16) & (q >= kv)


@_mask
def by_negative_divisors(b, h, q, kv):
    return (q // -8 <= kv // -8) & ((q - kv) % -3 <= 0)


@_mask
def exclusive_or(b, h, q, kv):
    return torch.logical_xor(q % 2 == 0, kv % 3 == 0) | torch.eq(q, kv)


@_mask
def power_of_two_distances(b, h, q, kv):
    distance = q - kv
    return (distance >= 0) & ((distance & (distance - 1)) == 0)


ANCESTORS = (1 << torch.arange(SEQ) % 16) | _integers(0, 2**15, SEQ)


@_mask
def tree_of_bits(b, h, q, kv):
    return ((ANCESTORS[q] >> (kv % 16)) & 1) == 1


@_mask
def heads_of_two_kinds(b, h, q, kv):
    return torch.where(h < 2, q >= kv, (q - kv).abs() < 6)


@_mask
def random_by_a_hash(b, h, q, kv):
    return ((q * 7919 + kv * 104729 + h * 31) % 97).to(torch.float32) / 97.0 < 0.5


PAGES = SimpleNamespace(
    size=8, logical=torch.stack([torch.randperm(8, generator=_RANDOM) for _ in range(BATCH)])
)
PAGES.logical[1, 3] = -1


def _over_pages(inner: Callable[..., Any], pages: Any) -> Callable[..., Any]:
    def over_pages(b, h, q, physical):
        block, offset = physical // pages.size, physical % pages.size
        logical = pages.logical[b, block]
        return torch.where(logical >= 0, inner(b, h, q, logical * pages.size + offset), False)

    return over_pages


MASK_MODS["causal_over_pages"] = _over_pages(causal, PAGES)


def _of_request(inner: Callable[..., Any], offset: Any) -> Callable[..., Any]:
    def of_request(b, h, q, kv):
        return inner(b, h, q + offset[b], kv)

    return of_request


MASK_MODS["offset_of_a_request"] = _of_request(causal, torch.tensor([3, 17]))
MASK_MODS["union_of_three"] = or_masks(_sliding_window(3), documents, and_masks(causal, equal_conditions))

# ---- what is not traced

OF_QUERIES, OF_KEYS = _normal(BATCH, HEADS, SEQ, 8), _normal(BATCH, 1, SEQ, 8)


def latent_rotary(score, b, h, q, kv):
    """A product of rows."""
    return score + torch.dot(OF_QUERIES[b, h, q], OF_KEYS[b, h // HEADS, kv])


@torch.library.custom_op("flex_catalogue::tanh", mutates_args=())
def _approximate(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def softcap_by_an_operator_of_its_own(score, b, h, q, kv):
    """An operator of a library: its name does not say what it computes."""
    return 20 * _approximate(score / 20)


REFUSED.update({f.__name__: f for f in (latent_rotary, softcap_by_an_operator_of_its_own)})
