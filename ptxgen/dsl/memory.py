"""Loads, stores and asynchronous copies at pointers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, overload

from ptxgen.dsl.arithmetic import Arithmetic
from ptxgen.dsl.choice import check_value
from ptxgen.dsl.values import Pointer, Scalar, Value, Var, as_bits, is_int, moved_as
from ptxgen.errors import ConfigError, TypeMismatchError, shown

_COPY_SIZES: Final = (4, 8, 16)  # bytes (PTX ISA, "cp.async")


class Memory(Arithmetic):
    """Reads and writes memory; `P[i]` and `tile[row, column]` come here as well."""

    @overload
    def load(self, at: Pointer, count: Literal[1] = 1, *, into: Var | None = None) -> Value: ...
    @overload
    def load(
        self, at: Pointer, count: Literal[2, 4], *, into: Sequence[Var] | None = None
    ) -> tuple[Value, ...]: ...
    @overload
    def load(
        self, at: Pointer, count: int, *, into: Var | Sequence[Var] | None = None
    ) -> Value | tuple[Value, ...]: ...
    def load(
        self, at: Pointer, count: int = 1, *, into: Var | Sequence[Var] | None = None
    ) -> Value | tuple[Value, ...]:
        """Load the element at a pointer, or a tuple of `count` (2 or 4) consecutive elements.

        `into` names the variables that take the elements instead of new registers. Elements of 16
        bits or packed ones are loaded as they are; `k.cvt(element, dtype=f32)` converts one.
        """
        _require_pointer("load", at)
        vec = _vector("load", count)
        moved = moved_as(at.dtype)
        loaded = self.emit("ld", (at,), {"space": at.space, "vec": vec, "type": moved}, into=into)
        if moved is at.dtype or into is not None:
            return loaded
        if isinstance(loaded, Value):
            return loaded.as_(at.dtype)
        return tuple(element.as_(at.dtype) for element in loaded)

    def store(self, at: Pointer, values: Scalar | Sequence[Scalar]) -> None:
        """Write one element at a pointer, or 2 or 4 consecutive elements."""
        _require_pointer("store", at)
        elements = tuple(values) if isinstance(values, Sequence) else (values,)
        vec = _vector("store", len(elements))
        moved = moved_as(at.dtype)
        if moved is not at.dtype:  # the row of the bits would take any type of their size
            for value in elements:
                if isinstance(value, Value):
                    check_value("store: the element", at.dtype, value)
            elements = tuple([as_bits(value, at.dtype) for value in elements])
        source = elements if vec else elements[0]
        self.emit("st", (at, source), {"space": at.space, "vec": vec, "type": moved})

    def copy_async(
        self, to: Pointer, source: Pointer, nbytes: int, valid_bytes: Scalar | None = None
    ) -> None:
        """Start an asynchronous copy of 4, 8 or 16 bytes from global to shared memory.

        It needs sm_80 or later. Only the first `valid_bytes` bytes are read; the rest of the
        destination becomes zero (PTX ISA, "cp.async", `src-size`).
        """
        if not is_int(nbytes) or nbytes not in _COPY_SIZES:
            raise ConfigError(f"copy_async: nbytes must be 4, 8 or 16, got {shown(nbytes)}")
        if isinstance(valid_bytes, int) and not 0 <= valid_bytes <= nbytes:
            raise ConfigError(f"copy_async: valid_bytes must be 0..{nbytes}, got {shown(valid_bytes)}")
        tail = () if valid_bytes is None else (valid_bytes,)
        if nbytes == max(_COPY_SIZES):  # .cg: through L2 only, 16 bytes at a time
            self.emit("cp_async_cg", (to, source, *tail))
        else:
            self.emit("cp_async_ca", (to, source, nbytes, *tail))


def _require_pointer(caller: str, at: object) -> None:
    if not isinstance(at, Pointer):
        raise TypeMismatchError(f"{caller}: the first operand must be a Pointer, got {shown(at)}")


def _vector(caller: str, count: int) -> str | None:
    if not is_int(count) or count not in (1, 2, 4):
        raise ConfigError(f"{caller}: an access takes 1, 2 or 4 elements, got {shown(count)}")
    return None if count == 1 else f"v{count}"
