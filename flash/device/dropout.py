"""Dropout of softmax weights in a kernel; `flash/problem/philox.py` says which weights are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from flash.device.score_plane import ScorePlaces
from flash.problem.philox import KEY_STEPS, KEYS_PER_BLOCK, MULTIPLIERS, ROUNDS, STEPS
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.types import f32, u32

_HALF_BITS: Final = 16
OCTET: Final = 8  # keys whose random numbers are the same word of different Philox calls


@dataclass(frozen=True)
class Dropout:
    """Which weights of one head are kept: those whose random number, of 65536, is below
    `threshold`. `head` is batch * heads + head; for packed rows, that of the first head of the
    group.
    """

    k: KernelBuilder
    threshold: Value  # u32
    seed: Value  # u64
    head: Value

    @cached_property
    def scale(self) -> Value:
        """The factor of the kept weights: the inverse of the probability that a weight is kept."""
        k = self.k
        return k.rcp_rn(k.cvt(self.threshold, rnd="rn", dtype=f32)) * float(STEPS)

    def apply(self, P: Fragment, places: ScorePlaces) -> None:
        """Set the weights that are not kept to 0. A thread's keys are `places.lane` plus distances
        that have no bit in common with it; tiles begin at multiples of 16.
        """
        k = self.k
        lane, half = places.lane, places.lane & 1
        limit = self.threshold << _HALF_BITS
        first_block = (places.first_key >> (KEYS_PER_BLOCK.bit_length() - 1)).as_(u32)
        # The octet, within its block of 32 keys, of the lane's key at distance 0; None is octet 0.
        octet = None
        if not places.begins_block:
            octet = ((places.first_key.as_(u32) + lane) >> 3) & 3
        pair = (lane & (OCTET - 1)) >> 1
        for i in range(len(places.rows)):
            query = places.query(i)
            head = self.head if places.packing is None else self.head + places.head(i, query)
            calls: dict[tuple[int, int], list[Value]] = {}
            for j, key in enumerate(places.keys):
                block, rest = divmod(key, KEYS_PER_BLOCK)
                words = calls.get((block, rest % OCTET // 2))
                if words is None:
                    at = (first_block + block) * 4 + (pair + rest % OCTET // 2)
                    words = calls[block, rest % OCTET // 2] = self._call(at, query, head)
                word = self._pick(words, octet, rest // OCTET)
                upper = (half + rest % 2) * _HALF_BITS
                number = (word >> upper) << _HALF_BITS
                with k.only_if(number >= limit):
                    P[i, j].set(0.0)

    def _pick(self, words: list[Value], octet: Value | None, further: int) -> Value:
        """Word (octet + further) % 4 of four words."""
        k = self.k
        if octet is None:
            return words[further]
        one, two = (octet & 1) != 0, (octet & 2) != 0
        a, b, c, d = (words[(further + n) % 4] for n in range(4))
        return k.selp(k.selp(d, c, one), k.selp(b, a, one), two)

    def _call(self, at: Value, query: Value, head: Value) -> list[Value]:
        """The four words that Philox makes of the counter (at, query, head, 0)."""
        k = self.k
        words = [at, query.as_(u32), head.as_(u32), k.mov(0, type=u32)]
        key = [k.cvt(self.seed, dtype=u32), k.cvt(self.seed >> 32, dtype=u32)]
        for turn in range(ROUNDS):
            high = [k.mul(w, m, mode="hi") for w, m in zip(words[::2], MULTIPLIERS, strict=True)]
            low = [w * m for w, m in zip(words[::2], MULTIPLIERS, strict=True)]
            keys = [
                part + (turn * step & 0xFFFF_FFFF)
                for part, step in zip(key, KEY_STEPS, strict=True)
            ]
            words = [high[1] ^ words[1] ^ keys[0], low[1], high[0] ^ words[3] ^ keys[1], low[0]]
        return words
