"""NaN and infinity in V, which must not reach the rows that do not see their key.

A hidden key has weight 0, but 0 * NaN and 0 * infinity are NaN, and a tensor-core product takes all
keys of a tile. So NaN and infinity in the tiles of V that the mask cuts are set to 0 in shared
memory, and at the end they are added to the rows that do see their key. The first step costs a few
instructions in those tiles; the second only runs if anything was set to 0.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from flash.device.cta import Cta
from flash.device.fp8_scales import scale_of_key
from flash.device.panel_loader import SIGNS, PanelLoader
from flash.device.parameters import ScoreArray
from flash.device.team import WHOLE_CTA, Team
from flash.device.tiles import Matrix
from flash.operands.blocks import BlockType
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, Var, marked
from ptxgen.dsl.swizzle import CHUNK_BYTES
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, b16, b32, bf16, f16, f32, u8, u16, u32, u64

# Masks for the elements in a word: their exponent bits, and the lowest of these.
_EXPONENTS: Final = {bf16: 0x7F80_7F80, f16: 0x7C00_7C00, f32: 0x7F80_0000}
_LAST_BITS: Final = {bf16: 0x0080_0080, f16: 0x0400_0400, f32: 0x0080_0000}
_BITS: Final = {2: b16, 4: b32}


def hides_rows(config: KernelConfig) -> bool:
    """Whether a kernel with `wgmma` may find NaN or infinity in the values of a key that a row does not see.
    Without a mask, the only hidden keys are beyond the end, where a tile of V holds zeros, but with packed
    sequences rows of the next sequence, and in a cache anything. Gathered rows after the end are zeros, too.
    """
    shares = (config.features.varlen or config.features.cached) and not config.gathers
    return config.hides_keys or shares


class RestoredValues(ABC):
    """Restores in O the NaN and infinity that were set to 0 in tiles of V before the products."""

    def __init__(self, k: KernelBuilder, config: KernelConfig) -> None:
        self.k = k
        self.dtype = config.multiplied.scalar  # of V in the tile
        self.stored = config.element_of("V")
        self.output = config.output.scalar
        self.scale_block = config.features.scale_block

    @abstractmethod
    def has_nonfinite(self) -> Value:
        """Whether any element of V was set to 0, a predicate that is the same in all threads that restore."""

    def sync(self, team: Team) -> None:
        """Wait until all threads of the team have written O, and whether any element was set to 0."""
        team.sync(self.k)

    def _signs(self, word: Value) -> Value:
        return _signs(word, self.dtype)

    @marked("nonfinite: rows and columns")
    def restore(
        self,
        cta: Cta,
        block_q: int,
        cleared: Sequence[tuple[Value | int, Value]],
        team: Team = WHOLE_CTA,
        v_scale: ScoreArray | None = None,
    ) -> None:
        """Add the cleared elements of V, of the keys in these half-open ranges, times `v_scale` if V is of
        fp8, to the elements of O whose rows see their keys, by all threads of the team. This thread's part of
        O has been written.
        """
        k = self.k
        k.note("NaN and infinity of V, for the rows that see them")
        self.sync(team)
        with k.when(self.has_nonfinite()):
            thread = team.thread(k)
            warp, lane = k.signed(thread // WARP_SIZE), k.signed(thread % WARP_SIZE)
            last = k.min(cta.first_row + block_q, cta.O.rows)
            first = cta.O.written_from
            with k.loop(cta.first_row + warp, last, step=team.threads(k) // WARP_SIZE) as row:
                query = cta.query(row)
                begin = lane if first is None else first + lane
                with k.loop(begin, cta.O.columns, step=WARP_SIZE) as column:
                    self._restore_element(cta, row, query, column, cleared, v_scale)

    @marked("nonfinite: element of O")
    def _restore_element(
        self,
        cta: Cta,
        row: Value,
        query: Value,
        column: Value,
        cleared: Sequence[tuple[Value | int, Value]],
        v_scale: ScoreArray | None,
    ) -> None:
        k, mask = self.k, cta.mask
        there = k.load(self._element(cta.O, row, column, self.output))
        total, some = k.var(f32, self._number(there, self.output)), k.var(u32, 0)
        end_seen = mask.reach.last_key(k, query) + 1
        for begin, end in cleared:
            # 0 as a computed value, because the proof follows a loop from such a value to an end
            # that may be below it.
            start = k.min(cta.tiles, 0) if isinstance(begin, int) else begin
            first = start if mask.reach.left is None else k.max(mask.reach.first_key(k, query), start)
            all_in_one = len(cleared) == 1 and cta.part is None
            last = end_seen if all_in_one else k.min(end_seen, end)
            with k.loop(first, last) as key:
                is_nonfinite, number = self._value(cta, key, column)
                hidden = mask.hides(row, key)
                with k.when(is_nonfinite if hidden is None else is_nonfinite & ~hidden):
                    value = number()
                    if v_scale is not None:
                        value = value * scale_of_key(k, cta, v_scale, self.scale_block, key)
                    k.add(total, value, into=total)
                    some.set(1)
        with k.when(some != 0):
            rounded = total if self.output is f32 else k.cvt(total, dtype=self.output, rnd="rn")
            at = self._element(cta.O, row, column, self.output)
            k.store(at, rounded.as_(_BITS[self.output.nbytes]))

    def _value(self, cta: Cta, key: Value, column: Value) -> tuple[Value, Callable[[], Value]]:
        """Whether an element of V is NaN or infinite, and a function that emits it as f32."""
        k = self.k
        if not self.stored.is_narrow:
            bits = k.load(self._element(cta.V, key, column, self.dtype))
            return self._signs(self._word(bits)) != 0, lambda: self._number(bits, self.dtype)
        if isinstance(self.stored, BlockType):
            bits = self.stored.element(k, cta.V.row(k, key), column).as_(b16)
            return self._signs(self._word(bits)) != 0, lambda: self._number(bits, self.dtype)
        at = cta.V.row(k, key) + k.cvt(column, dtype=u64)
        code = k.cvt(k.load(Pointer(at, "global", u8)), dtype=u32)
        nonfinite = self.stored.nonfinite

        def scale() -> Value | None:
            scales = cta.token_scales
            return None if scales is None else k.load(Pointer(scales[1].row(k, key), "global", f32))

        return (code & nonfinite) == nonfinite, lambda: self.stored.nonfinite_number(k, code, scale)

    def _number(self, bits: Value, dtype: ScalarType) -> Value:
        """The f32 value of an element of a narrow type, converted from its bits."""
        number = bits.as_(dtype)
        return number if dtype is f32 else self.k.cvt(number, dtype=f32)

    def _word(self, bits: Value) -> Value:
        """The bits of one element of V, in the low bits of a 32-bit word."""
        return bits.as_(u32) if self.dtype is f32 else self.k.cvt(bits.as_(u16), dtype=u32)

    def _element(self, of: Matrix, row: Value, column: Value, dtype: ScalarType) -> Pointer:
        k = self.k
        offset = k.cvt(column * dtype.nbytes, dtype=u64)
        return Pointer(of.row(k, row) + offset, "global", _BITS[dtype.nbytes])


class NonFinite(RestoredValues):
    """Clears NaN and infinity in tiles of V, and restores them in O, all by the same threads. Whether any was
    cleared is a flag of the CTA, in shared memory because registers are short; or one of each thread, where
    tiles take all of the shared memory.
    """

    @marked("nonfinite: flag")
    def __init__(self, k: KernelBuilder, config: KernelConfig, *, in_register: bool = False) -> None:
        super().__init__(k, config)
        self._flag: TilePointer | Var
        if in_register:
            self._flag = k.var(u32, 0)
            return
        self._flag = k.shared("odd_flag", (1, 1), u32).pointer()
        with k.when(k.thread_id() == 0):
            k.store(self._flag, 0)

    def clear(self, loader: PanelLoader, stage: Value | None) -> None:
        """Set NaN and infinity to 0 in this thread's part of a tile of V, whose copies have arrived."""
        self.clear_chunks(loader.chunks(stage))

    def clear_chunks(self, chunks: Iterable[Pointer]) -> None:
        """Set NaN and infinity in these chunks of 16 bytes to 0."""
        clear_chunks(self.k, self.dtype, chunks, self.note_nonfinite)

    @marked("nonfinite: found")
    def note_nonfinite(self) -> None:
        """Set the flag which says that a thread has set a NaN or infinity to 0."""
        if isinstance(self._flag, Var):
            self._flag.set(1)
        else:
            self.k.store(self._flag, 1)

    def sync(self, team: Team) -> None:
        """See `RestoredValues`; where threads have flags of their own, `has_nonfinite` waits for all."""
        if not isinstance(self._flag, Var):
            super().sync(team)

    def has_nonfinite(self) -> Value:
        """See `RestoredValues`."""
        if isinstance(self._flag, Var):
            return self.k.bar_red(0, self._flag != 0, op="or")
        return self.k.load(self._flag) != 0


def clear(
    k: KernelBuilder,
    dtype: ScalarType,
    loader: PanelLoader,
    stage: Value | None,
    on_nonfinite: Callable[[], object] = lambda: None,
) -> None:
    """Set NaN and infinity in this thread's part of a tile of `dtype` to 0; its copies have arrived.
    `on_nonfinite` emits the code for threads that have set one to 0.
    """
    clear_chunks(k, dtype, loader.chunks(stage), on_nonfinite)


@marked("nonfinite: clear")
def clear_chunks(
    k: KernelBuilder,
    dtype: ScalarType,
    chunks: Iterable[Pointer],
    on_nonfinite: Callable[[], object] = lambda: None,
) -> None:
    """Set NaN and infinity in chunks of 16 bytes of a tile of `dtype` to 0; see `clear`."""
    for at in chunks:
        words = k.load(at, 4)
        signs = [_signs(word, dtype) for word in words]
        some = signs[0] | signs[1] | signs[2] | signs[3]
        with k.when(some != 0):
            k.store(at, [_cleared(word, sign, dtype) for word, sign in zip(words, signs, strict=True)])
            on_nonfinite()


@marked("nonfinite: clear")
def clear_together(
    k: KernelBuilder,
    dtype: ScalarType,
    chunks: Sequence[Pointer],
    on_nonfinite: Callable[[], object],
    signs: Callable[[Value], Value] | None = None,
) -> None:
    """Set NaN and infinity in some chunks of 16 bytes to 0, which a thread reads together. Where it finds any
    NaN or infinity, it reads the words again, one by one, so that none of them takes a register until then.
    `signs` gives a word with the sign bit set for each element of a word that is not finite; None: those of
    `dtype`, f32 or a type of 16 bits.
    """
    of = signs or functools.partial(_signs, dtype=dtype)
    some = functools.reduce(operator.or_, (of(word) for at in chunks for word in k.load(at, 4)))
    with k.when(some != 0):
        with k.loop(0, CHUNK_BYTES, step=u32.nbytes, type=u32) as down:
            for at in chunks:
                address = Pointer(at.value + down, at.space, u32, at.offset)
                word = k.load(address)
                k.store(address, _cleared(word, of(word), dtype))
        on_nonfinite()


def _cleared(word: Value, signs: Value, dtype: ScalarType) -> Value:
    """The 32-bit word with 0 in place of each element whose sign bit is set in `signs`."""
    return word & ~((signs >> (dtype.bits - 1)) * ((1 << dtype.bits) - 1))


def _signs(word: Value, dtype: ScalarType) -> Value:
    """A word with the sign bit set for each element whose exponent is all ones: adding 1 to such an
    exponent carries into the sign bit.
    """
    exponents = word & _EXPONENTS[dtype]
    return (exponents + _LAST_BITS[dtype]) & SIGNS[dtype.nbytes]
