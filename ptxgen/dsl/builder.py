"""`KernelBuilder`: parameters, shared memory, loads and stores, and the finished kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgen import ir
from ptxgen.dsl.control import Control
from ptxgen.dsl.tiles import Fragment, SharedTile
from ptxgen.dsl.values import Pointer, Scalar, Value, Var
from ptxgen.errors import ConfigError, UnsupportedTargetError
from ptxgen.isa.spec import Gate, op_of
from ptxgen.isa.special import special
from ptxgen.target import Target
from ptxgen.types import REGISTER_PREFIX, ScalarType, f32, s32, u32, u64

DYNAMIC_SHARED = "smem"  # the one dynamic shared array of a kernel; tiles are regions of it
WARP_SIZE = 32


class KernelBuilder(Control):
    """Builds one kernel for one target.

    Every row of the instruction table is a method (`k.fma`, `k.shfl`, …); `docs/isa.md` lists them. `build` returns the module.
    """

    def __init__(self, name: str, *, target: Target, threads: int, min_ctas: int = 0) -> None:
        super().__init__()
        if not 1 <= threads <= target.threads_per_block:
            raise ConfigError(
                f"kernel {name!r}: threads must be 1..{target.threads_per_block} on {target.name}, got {threads}"
            )
        self.name = name
        self.target = target
        self.threads = threads
        self.min_ctas = min_ctas
        self._params: list[ir.Param] = []
        self._regions: list[ir.Region] = []
        self._shared_base: Value | None = None

    # ------------------------------------------------------------------------------------------ parameters

    def param(self, name: str, type: ScalarType) -> Value:
        """Declare a scalar parameter and load it."""
        self._params.append(ir.Param(name, type.name))
        return self.emit("ld", (Pointer(ir.Symbol(name), "param", type),), {"space": "param", "type": type})

    def pointer(self, name: str, dtype: ScalarType = f32) -> Pointer:
        """Declare a parameter that points to `dtype` elements in global memory, and load it."""
        return Pointer(self.emit("cvta_to", (self.param(name, u64),), {"space": "global"}), "global", dtype)

    # ------------------------------------------------------------------------------------------ who am I

    def special(self, name: str) -> Value:
        """The value of a special register, such as `tid.x`."""
        register = special(f"%{name}")
        return self.emit("mov", (ir.Special(f"%{name}"),), {"type": register.type})

    def thread_id(self) -> Value:
        """This thread's number in its CTA, u32."""
        return self.special("tid.x")

    def block_id(self) -> Value:
        """This CTA's number in the grid, u32."""
        return self.special("ctaid.x")

    # ------------------------------------------------------------------------------------------ shared memory

    def shared(
        self, name: str, shape: tuple[int, int], dtype: ScalarType = f32, *, pitch: int | None = None, align: int = 16
    ) -> SharedTile:
        """A tile of `shape` (rows, columns) in shared memory whose rows are `pitch` elements apart."""
        rows, columns = shape
        pitch = columns if pitch is None else pitch
        if rows <= 0 or columns <= 0 or pitch < columns:
            raise ConfigError(f"shared tile {name!r}: rows and columns must be positive and pitch >= columns, got {shape}, pitch {pitch}")
        if any(r.name == name for r in self._regions):
            raise ConfigError(f"shared tile {name!r} is declared twice in kernel {self.name!r}")
        end = max((r.offset + r.nbytes for r in self._regions), default=0)
        offset = -(-end // align) * align
        self._regions.append(ir.Region(name, offset, rows * pitch * dtype.nbytes, align))
        if self._shared_base is None:
            self._shared_base = self.emit("mov", (ir.Symbol(DYNAMIC_SHARED),), {"type": u32})
        return SharedTile(self, name, self._shared_base, offset, rows, columns, pitch, dtype)

    def fragment(self, rows: int, columns: int, dtype: ScalarType = f32, initial: float | None = 0.0) -> Fragment:
        """A register tile: `rows` x `columns` variables in each thread."""
        return Fragment(self, rows, columns, dtype, initial)

    # ------------------------------------------------------------------------------------------ memory

    def load(self, at: Pointer, count: int = 1) -> Any:
        """The element at a pointer, or a tuple of `count` (2 or 4) consecutive ones."""
        return self.emit("ld", (at,), {"space": at.space, "vec": _vector(count), "type": at.dtype})

    def store(self, at: Pointer, values: Value | Sequence[Scalar]) -> None:
        """Write one element, or 2 or 4 consecutive ones."""
        many = isinstance(values, Sequence)
        vec = _vector(len(values)) if isinstance(values, Sequence) else None
        source: Any = values if not many or vec else values[0]  # type: ignore[index]  # a sequence
        self.emit("st", (at, source), {"space": at.space, "vec": vec, "type": at.dtype})

    def copy_async(self, to: Pointer, source: Pointer, nbytes: int, valid_bytes: Scalar | None = None) -> None:
        """Start copying 4, 8 or 16 bytes from global to shared memory (sm_80 and later).

        Bytes from `valid_bytes` on become zero and are not read.
        """
        tail = () if valid_bytes is None else (valid_bytes,)
        if nbytes == 16:  # .cg: through L2 only, 16 bytes at a time
            self.emit("cp_async_cg", (to, source, *tail))
        else:
            self.emit("cp_async_ca", (to, source, nbytes, *tail))

    # ------------------------------------------------------------------------------------------ small algebra

    def accumulate(self, total: Var, a: Scalar, b: Scalar) -> None:
        """total += a * b, rounded once."""
        self.emit("fma", (a, b, total), into=total)

    def divide_up(self, value: Value, by: int) -> Value:
        """ceil(value / by) for a value >= 0 and a positive constant."""
        return (value + (by - 1)) // by

    def butterfly(self, value: Value, distance: int) -> Value:
        """The value of the lane whose number differs in the bit `distance` (1, 2, 4, 8 or 16)."""
        return self.emit("shfl", (value, distance, WARP_SIZE - 1, -1), {"mode": "bfly"})

    def signed(self, value: Value) -> Value:
        """A u32 known to be below 2**31 as s32."""
        return value.as_(s32)

    # ------------------------------------------------------------------------------------------ the end

    def note(self, text: str) -> None:
        """Name the next step of the algorithm; it is printed as a comment."""
        self._statements.append(ir.Note(text))

    def build(self, header: tuple[str, ...] = ()) -> ir.Module:
        """The module, with the lowest PTX version that has everything used.

        Raises `UnsupportedTargetError` if an instruction is newer than the target.
        """
        self.emit("ret", ())
        registers = tuple(
            ir.RegisterRange(prefix, declared, self._counts[declared])
            for declared, prefix in REGISTER_PREFIX.items()
            if self._counts.get(declared)
        )
        kernel = ir.Kernel(
            self.name, tuple(self._params), registers, tuple(self._statements), threads=self.threads,
            min_ctas=self.min_ctas, dynamic_shared=DYNAMIC_SHARED if self._regions else "", regions=tuple(self._regions),
        )  # fmt: skip
        return ir.Module(self._lowest_version(), self.target.name, (kernel,), header)

    def _lowest_version(self) -> tuple[int, int]:
        version = self.target.ptx
        for opcode in {s.opcode: s for s in self._statements if isinstance(s, ir.Instr)}.values():
            gate: Gate = op_of(opcode).gate
            if not gate.admits(self.target.name, self.target.sm):
                only = f" (only {', '.join(sorted(gate.only))})" if gate.only else ""
                raise UnsupportedTargetError(
                    f"{opcode.opcode} needs sm_{gate.sm}{only} / PTX {gate.ptx[0]}.{gate.ptx[1]}, but kernel {self.name!r} targets {self.target.name}"
                )
            version = max(version, gate.ptx)
        return version


def _vector(count: int) -> str | None:
    return None if count == 1 else f"v{count}"
