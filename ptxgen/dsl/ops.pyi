# Generated from the instruction table by tools/gen_ops_stub.py; do not edit.
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

from ptxgen import ir
from ptxgen.dsl.values import Pointer, Scalar, Value, Var
from ptxgen.isa.spec import BoundOperand, Modifier, Op
from ptxgen.target import Target
from ptxgen.types import ScalarType

_Operand: TypeAlias = Scalar | Pointer | ir.Special | ir.Symbol | Sequence[Scalar]

class Plan:
    op: Op
    opcode: str
    dest_types: tuple[ScalarType, ...]
    simple_dest: ScalarType | None
    sources: tuple[BoundOperand, ...]
    whats: tuple[str, ...]
    def __init__(self, op: Op, dest_types: tuple[ScalarType, ...]) -> None: ...

def immediate(value: object, want: ScalarType | None, what: str) -> ir.IntImm | ir.FloatImm: ...
def plan_call(name: str, args: tuple[_Operand, ...], modifiers: Mapping[str, Modifier]) -> Plan: ...
def accepts(want: ScalarType, got: Value) -> bool: ...

class Ops:
    name: str
    target: Target
    _statements: list[ir.Statement]
    _counts: dict[str, int]
    _guard: ir.Guard | None
    _version: tuple[int, int]
    def __init__(self, name: str, target: Target) -> None: ...
    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None: ...
    def fresh(self, type: ScalarType) -> Value: ...
    def _register(self, type: ScalarType) -> ir.Reg: ...
    def _foreign(self, name: str, value: Value) -> Exception: ...
    @overload
    def emit(
        self,
        name: Literal[
            "bar_arrive",
            "bar_sync",
            "bar_warp_sync",
            "bra",
            "cp_async_ca",
            "cp_async_cg",
            "cp_async_commit_group",
            "cp_async_wait_all",
            "cp_async_wait_group",
            "exit",
            "fence",
            "membar",
            "prefetch",
            "red",
            "ret",
            "st",
            "st_generic",
            "trap",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: None = None,
    ) -> None: ...
    @overload
    def emit(
        self,
        name: Literal[
            "abs",
            "activemask",
            "add",
            "and_",
            "atom",
            "atom_cas",
            "ballot",
            "bfe",
            "bfi",
            "bfind",
            "brev",
            "clz",
            "copysign",
            "cos",
            "cvt",
            "cvt_tf32",
            "cvta",
            "cvta_to",
            "div",
            "div_approx",
            "ex2",
            "fma",
            "lg2",
            "lop3",
            "mad",
            "mad_wide",
            "max",
            "min",
            "mov",
            "mul",
            "mul_wide",
            "neg",
            "not_",
            "or_",
            "pack",
            "popc",
            "prmt",
            "rcp",
            "rcp_rn",
            "redux",
            "rem",
            "rsqrt",
            "selp",
            "setp",
            "setp_with",
            "shf",
            "shfl",
            "shl",
            "shr",
            "sin",
            "sqrt",
            "sqrt_rn",
            "sub",
            "tanh",
            "testp",
            "vote",
            "xor",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: Var | None = None,
    ) -> Value: ...
    @overload
    def emit(
        self,
        name: Literal[
            "ld",
            "ld_generic",
            "ld_nc",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: Var | None = None,
    ) -> Value | tuple[Value, ...]: ...
    @overload
    def emit(
        self,
        name: Literal[
            "unpack",
            "unpack_b16",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: None = None,
    ) -> tuple[Value, ...]: ...
    @overload
    def emit(
        self,
        name: Literal[
            "elect",
            "shfl_pred",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: None = None,
    ) -> tuple[Value, Value]: ...
    def abs(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = |a|. `abs{.ftz}.type d, a` type: f16, f16x2.

        d = |a|. `abs{.ftz}.f32 d, a`

        d = |a|. `abs.f64 d, a`

        d = |a|. `abs.type d, a` type: bf16, bf16x2.

        d = |a|; the most negative number is its own absolute value. `abs.type d, a` type: s32, s64, s16.
        """
    def activemask(
        self,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = one bit for each lane of the warp that executes this instruction. `activemask.b32 d`"""
    @overload
    def add(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
        sat: bool = False,
    ) -> Value:
        """d = a + b, rounded once. `add.rnd{.ftz}{.sat}.f32 d, a, b`

        d = a + b, rounded once. `add.rnd.f64 d, a, b`

        d = a + b, wrapping around, or with .sat clamped to the range of s32. `add{.sat}.s32 d, a, b`
        """
    @overload
    def add(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
        sat: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a + b, rounded once. `add.rnd{.ftz}{.sat}.type d, a, b` type: f16, f16x2.

        d = a + b, rounded once. `add.rnd.type d, a, b` type: bf16, bf16x2.

        d = a + b, wrapping around. `add.type d, a, b` type: u32, u64, s64, u16, s16.
        """
    def and_(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a & b, bit by bit. `and.type d, a, b` type: b32, b64, b16, pred."""
    def atom(
        self,
        addr: Pointer,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global", "shared"] = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch"] = "add",
        type: ScalarType = ...,
    ) -> Value:
        """d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: u32, s32, u64, f32, f64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: u32, s32, u64, s64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: u32.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: b32, b64.

        d = the old value at addr, which becomes old + b in one step (each half of a pair for itself). `atom{.sem}{.scope}.space.add.noftz.type d, [addr:u64], b` type: f16x2, f16, bf16, bf16x2.
        """
    def atom_cas(
        self,
        addr: Pointer,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global", "shared"] = ...,
        type: ScalarType = ...,
    ) -> Value:
        """d = the old value at addr, which becomes c in one step if it was b. `atom{.sem}{.scope}.space.cas.type d, [addr:u64], b, c` type: b32, b64, b16."""
    def ballot(
        self,
        a: Value,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = one bit for each lane: a, for the members. `vote.sync.ballot.b32 d, a:pred, membermask:u32`"""
    def bar_arrive(
        self,
        a: Scalar,
        b: Scalar,
        /,
    ) -> None:
        """Count as arrived at barrier a of b threads, without waiting. `bar.arrive a:u32, b:u32`"""
    def bar_sync(
        self,
        a: Scalar,
        b: Scalar = ...,
        /,
    ) -> None:
        """Wait at barrier a until b threads (all of the block, if left out) have arrived. `bar.sync a:u32{, b:u32}`"""
    def bar_warp_sync(
        self,
        membermask: Scalar,
        /,
    ) -> None:
        """Wait until all members have arrived; their memory accesses become visible to each other. `bar.warp.sync membermask:u32`"""
    def bfe(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the field of c bits of a that starts at bit b, zero- or sign-extended; b and c count modulo 256. `bfe.type d, a, b:u32, c:u32` type: u32, u64, s32, s64."""
    def bfi(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        e: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = b with the e bits from bit c on replaced by the lowest bits of a; c and e count modulo 256. `bfi.type d, a, b, c:u32, e:u32` type: b32, b64."""
    def bfind(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        shiftamt: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = the position of the highest bit that differs from the sign, or with .shiftamt how far to shift it to the top; all ones if there is none. `bfind{.shiftamt}.type d:u32, a` type: u32, u64, s32, s64."""
    def bra(
        self,
        target: ir.Symbol,
        /,
        *,
        uni: bool = False,
    ) -> None:
        """Continue at target; .uni promises that all active threads of the warp do. `bra{.uni} target:label`"""
    def brev(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the bits of a in reverse order. `brev.type d, a` type: b32, b64."""
    def clz(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = how many leading bits of a are zero. `clz.type d:u32, a` type: b32, b64."""
    def copysign(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = b with the sign of a. `copysign.type d, a, b` type: f32, f64."""
    def cos(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = the cosine of a radians, approximately. `cos.approx{.ftz}.f32 d, a`"""
    def cp_async_ca(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        src_size: Scalar = ...,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16) bytes from src to dst; those from src_size on become 0. `cp.async.ca.shared.global{.prefetch} [dst:u32], [src:u64], cp_size:imm{, src_size:u32}`"""
    def cp_async_cg(
        self,
        dst: Pointer,
        src: Pointer,
        src_size: Scalar = ...,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying 16 bytes from src to dst, not through L1; those from src_size on become 0. `cp.async.cg.shared.global{.prefetch} [dst:u32], [src:u64], 16{, src_size:u32}`"""
    def cp_async_commit_group(
        self,
    ) -> None:
        """Make one group of all copies that this thread started since the last one. `cp.async.commit_group`"""
    def cp_async_wait_all(
        self,
    ) -> None:
        """Wait for all copies of this thread, committed or not. `cp.async.wait_all`"""
    def cp_async_wait_group(
        self,
        n: int,
        /,
    ) -> None:
        """Wait until at most the n newest groups of this thread are still under way. `cp.async.wait_group n:imm`"""
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        sat: Literal[True] = True,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u32. atype: s32, u64, s64, s16, s8.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s32. atype: u32, u64, s64.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u64. atype: s32, s64, s16, s8.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s64. atype: u64.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u16. atype: u32, s32, u64, s64, s16, s8.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s16. atype: u32, s32, u64, s64, u16.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u8. atype: u32, s32, u64, s64, u16, s16, s8.

        d = a limited to the range of dtype; only where a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s8. atype: u32, s32, u64, s64, u16, s16, u8.

        d = a, cut off, or extended by zeros or the sign. `cvt.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16, u8, s8. atype: u32, s32, u64, s64, u16, s16, u8, s8.

        d = a, exactly. `cvt.dtype.atype d:dtype, a:atype` dtype: f64. atype: f16.

        d = a, exactly. `cvt.dtype.atype d:dtype, a:atype` dtype: f32. atype: bf16.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rni", "rzi", "rmi", "rpi", "rn", "rz", "rm", "rp"] = "rni",
        ftz: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a rounded to an integer and limited to the range of dtype; NaN gives 0, or only the top bit for 64 bits. `cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16, u8, s8. atype: f32.

        d = a, rounded once. `cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype` dtype: f16. atype: f32.

        d = a, rounded once. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: f32, f64, f16. atype: u32, s32, u64, s64, u16, s16, u8, s8.

        d = a rounded to an integer and limited to the range of dtype; NaN gives 0, or only the top bit for 64 bits or f64. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16, u8, s8. atype: f64, f16.

        d = a rounded to an integral value, still as a floating-point number. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: f64. atype: f64.

        d = a, rounded once. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: f16. atype: f64.

        d = a, exactly. `cvt{.ftz}.dtype.atype d:dtype, a:atype` dtype: f64. atype: f32.

        d = a, exactly; no f16 becomes a subnormal f32, so .ftz changes nothing. `cvt{.ftz}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f16.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rni", "rzi", "rmi", "rpi", "rn", "rz", "rm", "rp"] = "rni",
        ftz: bool = False,
        sat: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a rounded to an integral value, still as a floating-point number. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f32.

        d = a, rounded once. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f64.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz"] = "rn",
        relu: bool = True,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = max(a, 0), rounded once; NaN stays NaN. `cvt.rnd.relu.dtype.atype d:dtype, a:atype` dtype: f16. atype: f32.

        d = a, rounded once; with .relu max(d, 0), where NaN stays NaN. `cvt.rnd{.relu}.dtype.atype d:dtype, a:atype` dtype: bf16. atype: f32.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz"] = "rn",
        relu: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a in the upper and b in the lower half, each rounded once; with .relu max(d, 0), where NaN stays NaN. `cvt.rnd{.relu}.dtype.atype d:dtype, a:atype, b:atype` dtype: f16x2, bf16x2. atype: f32."""
    def cvt_tf32(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rna", "rn", "rz"] = "rna",
    ) -> Value:
        """d = a rounded once to 11 significant bits, as the bits of an f32; .rna rounds ties away from zero. `cvt.rnd.tf32.f32 d:b32, a:f32`"""
    def cvta(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "const", "local"] = "global",
    ) -> Value:
        """d = the generic address of the address a in space. `cvta.space.u64 d, a`"""
    def cvta_to(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "const", "local"] = "global",
    ) -> Value:
        """d = the address in space of the generic address a. `cvta.to.space.u64 d, a`"""
    @overload
    def div(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
    ) -> Value:
        """d = a / b, rounded once. `div.rnd{.ftz}.f32 d, a, b`

        d = a / b, rounded once. `div.rnd.f64 d, a, b`
        """
    @overload
    def div(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a / b, rounded towards zero; all ones when b is 0 (PTX leaves that value open). `div.type d, a, b` type: u32, s32, u64, s64, u16, s16."""
    def div_approx(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["approx", "full"] = "approx",
        ftz: bool = False,
    ) -> Value:
        """d = a / b, approximately; with .approx, b beyond 2^126 gives 0 for finite a and NaN for infinite a. `div.mode{.ftz}.f32 d, a, b`"""
    def elect(
        self,
        membermask: Scalar,
        /,
    ) -> tuple[Value, Value]:
        """d = the number of one member (here the lowest), p = whether this lane is that member. `elect.sync d:b32|p:pred, membermask:u32`"""
    def ex2(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = 2 to the power of a, approximately. `ex2.approx{.ftz}.f32 d, a`"""
    def exit(
        self,
    ) -> None:
        """The thread ends. `exit`"""
    def fence(
        self,
        *,
        sem: Literal["acq_rel", "sc"] = "acq_rel",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
    ) -> None:
        """Order this thread's memory accesses before it against those after it, for all threads of the scope. `fence.sem.scope`"""
    @overload
    def fma(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
        sat: bool = False,
    ) -> Value:
        """d = a * b + c, rounded once. `fma.rnd{.ftz}{.sat}.f32 d, a, b, c`

        d = a * b + c, rounded once. `fma.rnd.f64 d, a, b, c`
        """
    @overload
    def fma(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
        sat: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a * b + c, rounded once. `fma.rnd{.ftz}{.sat}.type d, a, b, c` type: f16, f16x2."""
    @overload
    def fma(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
        relu: Literal[True] = True,
        type: ScalarType = ...,
    ) -> Value:
        """d = max(a * b + c, 0), rounded once; NaN stays NaN. `fma.rnd{.ftz}.relu.type d, a, b, c` type: f16, f16x2."""
    @overload
    def fma(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        relu: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a * b + c, rounded once; with .relu max(d, 0), where NaN stays NaN. `fma.rnd{.relu}.type d, a, b, c` type: bf16, bf16x2."""
    @overload
    def ld(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "param", "const", "local"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld(
        self,
        addr: Pointer,
        /,
        *,
        space: Literal["global", "shared", "param", "const", "local"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_generic(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at the generic address addr. `ld{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at the generic address addr. `ld{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_generic(
        self,
        addr: Pointer,
        /,
        *,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at the generic address addr. `ld{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at the generic address addr. `ld{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        evict: Literal["L1::no_allocate"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which nobody writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which nobody writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc(
        self,
        addr: Pointer,
        /,
        *,
        evict: Literal["L1::no_allocate"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which nobody writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which nobody writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    def lg2(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = the logarithm of a to base 2, approximately; -inf for a zero, NaN below zero. `lg2.approx{.ftz}.f32 d, a`"""
    def lop3(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        lut: int,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = any function of three bits: bit 4a + 2b + c of lut, for each bit. `lop3.b32 d, a, b, c, lut:imm`"""
    def mad(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["lo", "hi"] = "lo",
        type: ScalarType = ...,
    ) -> Value:
        """d = the lower or the upper half of a * b, plus c, wrapping around. `mad.mode.type d, a, b, c` type: u32, s32, u64, s64, u16, s16."""
    def mad_wide(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a * b + c, twice as wide as its factors, wrapping around. `mad.wide.type d:wide, a, b, c:wide` type: u32, s32, u16, s16."""
    def max(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        NaN: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `max{.ftz}{.NaN}.type d, a, b` type: f16, f16x2.

        d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `max{.ftz}{.NaN}.f32 d, a, b`

        d = the larger of a and b (-0 < +0); a NaN is ignored. `max.f64 d, a, b`

        d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `max{.NaN}.type d, a, b` type: bf16, bf16x2.

        d = the larger of a and b. `max.type d, a, b` type: u32, s32, u64, s64, u16, s16.
        """
    def membar(
        self,
        *,
        level: Literal["cta", "gl", "sys"] = "cta",
    ) -> None:
        """Order this thread's memory accesses before it against those after it, for the block, the GPU (gl) or the system. `membar.level`"""
    def min(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        NaN: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `min{.ftz}{.NaN}.type d, a, b` type: f16, f16x2.

        d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `min{.ftz}{.NaN}.f32 d, a, b`

        d = the smaller of a and b (-0 < +0); a NaN is ignored. `min.f64 d, a, b`

        d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `min{.NaN}.type d, a, b` type: bf16, bf16x2.

        d = the smaller of a and b. `min.type d, a, b` type: u32, s32, u64, s64, u16, s16.
        """
    def mov(
        self,
        a: Scalar | ir.Special | ir.Symbol,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a: a register, a literal, a special register, or the address of a variable. `mov.type d, a` type: u32, s32, u64, s64, f32, f64, b32, b64, u16, s16, b16, pred."""
    @overload
    def mul(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
        sat: bool = False,
    ) -> Value:
        """d = a * b, rounded once. `mul.rnd{.ftz}{.sat}.f32 d, a, b`

        d = a * b, rounded once. `mul.rnd.f64 d, a, b`
        """
    @overload
    def mul(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
        sat: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a * b, rounded once. `mul.rnd{.ftz}{.sat}.type d, a, b` type: f16, f16x2.

        d = a * b, rounded once. `mul.rnd.type d, a, b` type: bf16, bf16x2.
        """
    @overload
    def mul(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["lo", "hi"] = "lo",
        type: ScalarType = ...,
    ) -> Value:
        """d = the lower or the upper half of a * b. `mul.mode.type d, a, b` type: u32, s32, u64, s64, u16, s16."""
    def mul_wide(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a * b, twice as wide as its factors. `mul.wide.type d:wide, a, b` type: u32, s32, u16, s16."""
    def neg(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = -a. `neg{.ftz}.type d, a` type: f16, f16x2.

        d = -a. `neg{.ftz}.f32 d, a`

        d = -a. `neg.f64 d, a`

        d = -a. `neg.type d, a` type: bf16, bf16x2.

        d = -a; the most negative number is its own negative. `neg.type d, a` type: s32, s64, s16.
        """
    def not_(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = ~a, bit by bit. `not.type d, a` type: b32, b64, b16, pred."""
    def or_(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a | b, bit by bit. `or.type d, a, b` type: b32, b64, b16, pred."""
    def pack(
        self,
        a: Sequence[Scalar],
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the elements of a side by side, the first in the lowest bits. `mov.b32 d, a:b16*2`

        d = the elements of a side by side, the first in the lowest bits. `mov.b64 d, a:b32*2`

        d = the elements of a side by side, the first in the lowest bits. `mov.b64 d, a:b16*4`
        """
    def popc(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = how many bits of a are one. `popc.type d:u32, a` type: b32, b64."""
    def prefetch(
        self,
        addr: Pointer,
        /,
        *,
        level: Literal["L1", "L2"] = "L1",
    ) -> None:
        """Bring the line at addr into the cache; changes no value. `prefetch.global.level [addr:u64]`"""
    def prmt(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] | None = None,
    ) -> Value:
        """d = four bytes picked from the eight of b:a, each by a nibble of c (whose top bit repeats the byte's sign) or by mode and c. `prmt.b32{.mode} d:b32, a:b32, b:b32, c:b32`"""
    def rcp(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = 1 / a, approximately. `rcp.approx{.ftz}.f32 d, a`"""
    def rcp_rn(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
    ) -> Value:
        """d = 1 / a, rounded once. `rcp.rnd{.ftz}.f32 d, a`

        d = 1 / a, rounded once. `rcp.rnd.f64 d, a`
        """
    def red(
        self,
        addr: Pointer,
        b: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global", "shared"] = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: u32, s32, u64, f32, f64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: u32, s32, u64, s64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: u32.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: b32, b64.

        The value at addr becomes old + b in one step (each half of a pair for itself). `red{.sem}{.scope}.space.add.noftz.type [addr:u64], b` type: f16x2, f16, bf16, bf16x2.
        """
    def redux(
        self,
        a: Scalar,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
        op: Literal["add", "min", "max", "and", "or", "xor"] = "add",
        type: ScalarType = ...,
    ) -> Value:
        """d = the sum (wrapping around), the smallest or the largest a of all members. `redux.sync.op.type d, a, membermask:u32` type: u32, s32.

        d = all members' a combined bit by bit. `redux.sync.op.type d, a, membermask:u32` type: b32.
        """
    def rem(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a - b * (a / b), which has the sign of a; a when b is 0 (PTX leaves that value open). `rem.type d, a, b` type: u32, s32, u64, s64, u16, s16."""
    def ret(
        self,
        *,
        uni: bool = False,
    ) -> None:
        """Return from the kernel: the thread ends. `ret{.uni}`"""
    def rsqrt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = 1 / the square root of a, approximately; an infinity of its sign for a zero, NaN below zero. `rsqrt.approx{.ftz}.f32 d, a`"""
    def selp(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a if c, else b. `selp.type d, a, b, c:pred` type: b32, b64, b16, u32, s32, u64, s64, u16, s16, f32, f64."""
    @overload
    def setp(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq",
        type: ScalarType = ...,
    ) -> Value:
        """p = a <cmp> b. `setp.cmp.type p:pred, a, b` type: u32, s32, u64, s64, u16, s16.

        p = a <cmp> b. `setp.cmp.type p:pred, a, b` type: b32, b64, b16.
        """
    @overload
    def setp(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        ftz: bool = False,
    ) -> Value:
        """p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true. `setp.cmp{.ftz}.f32 p:pred, a, b`

        p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true. `setp.cmp{.ftz}.f16 p:pred, a, b`

        p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true. `setp.cmp.f64 p:pred, a, b`

        p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true. `setp.cmp.bf16 p:pred, a, b`
        """
    @overload
    def setp_with(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> Value:
        """p = (a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred, a, b, c:pred` type: u32, s32, u64, s64, u16, s16."""
    @overload
    def setp_with(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        ftz: bool = False,
    ) -> Value:
        """p = (a <cmp> b) <combine> c; with a NaN the ordered comparisons are false, those ending in u true. `setp.cmp.combine{.ftz}.f32 p:pred, a, b, c:pred`"""
    def shf(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dir: Literal["l", "r"] = "l",
        mode: Literal["wrap", "clamp"] = "wrap",
    ) -> Value:
        """d = the upper (l) or lower (r) half of the 64 bits b:a shifted by c, which is wrapped to 0..31 or limited to 32. `shf.dir.mode.b32 d, a, b, c:u32`"""
    def shfl(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["bfly", "down", "up", "idx"] = "bfly",
    ) -> Value:
        """d = a of the lane that mode and b name, or of the own lane if that is outside the segment given by c. `shfl.sync.mode.b32 d, a, b:u32, c:u32, membermask:u32`"""
    def shfl_pred(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        membermask: Scalar,
        /,
        *,
        mode: Literal["bfly", "down", "up", "idx"] = "bfly",
    ) -> tuple[Value, Value]:
        """d as for shfl; p = whether the source lane was inside the segment. `shfl.sync.mode.b32 d|p:pred, a, b:u32, c:u32, membermask:u32`"""
    def shl(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a << b; zero when b is at least the width of a. `shl.type d, a, b:u32` type: b32, b64, b16."""
    def shr(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a >> b, filled with the sign bit for signed types, otherwise with zeros; b is limited to the width of a. `shr.type d, a, b:u32` type: u32, s32, u64, s64, u16, s16, b32, b64, b16."""
    def sin(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = the sine of a radians, approximately. `sin.approx{.ftz}.f32 d, a`"""
    def sqrt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = the square root of a, approximately; NaN below zero, and -0 for -0. `sqrt.approx{.ftz}.f32 d, a`"""
    def sqrt_rn(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
    ) -> Value:
        """d = the square root of a, rounded once; NaN below zero, and -0 for -0. `sqrt.rnd{.ftz}.f32 d, a`

        d = the square root of a, rounded once; NaN below zero, and -0 for -0. `sqrt.rnd.f64 d, a`
        """
    @overload
    def st(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        space: Literal["global", "shared", "local"] = ...,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .cop is a hint for the caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .cop is a hint for the caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        space: Literal["global", "shared", "local"] = ...,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .cop is a hint for the caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .cop is a hint for the caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_generic(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to the generic address addr on. `st{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to the generic address addr on. `st{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_generic(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to the generic address addr on. `st{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to the generic address addr on. `st{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def sub(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
        sat: bool = False,
    ) -> Value:
        """d = a - b, rounded once. `sub.rnd{.ftz}{.sat}.f32 d, a, b`

        d = a - b, rounded once. `sub.rnd.f64 d, a, b`

        d = a - b, wrapping around, or with .sat clamped to the range of s32. `sub{.sat}.s32 d, a, b`
        """
    @overload
    def sub(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn"] = "rn",
        ftz: bool = False,
        sat: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a - b, rounded once. `sub.rnd{.ftz}{.sat}.type d, a, b` type: f16, f16x2.

        d = a - b, rounded once. `sub.rnd.type d, a, b` type: bf16, bf16x2.

        d = a - b, wrapping around. `sub.type d, a, b` type: u32, u64, s64, u16, s16.
        """
    def tanh(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the hyperbolic tangent of a, approximately; subnormal results are kept. `tanh.approx.f32 d, a`"""
    def testp(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        op: Literal["finite", "infinite", "number", "notanumber", "normal", "subnormal"] = "finite",
        type: ScalarType = ...,
    ) -> Value:
        """p = whether a is of the kind that op names (zero counts as normal). `testp.op.type p:pred, a` type: f32, f64."""
    def trap(
        self,
    ) -> None:
        """Stop the kernel with an error. `trap`"""
    def unpack(
        self,
        a: Scalar,
        /,
    ) -> tuple[Value, ...]:
        """d = the parts of a, the lowest bits first. `mov.b32 d:b16*2, a`

        d = the parts of a, the lowest bits first. `mov.b64 d:b32*2, a`
        """
    def unpack_b16(
        self,
        a: Scalar,
        /,
    ) -> tuple[Value, ...]:
        """d = the parts of a, the lowest bits first. `mov.b64 d:b16*4, a`"""
    def vote(
        self,
        a: Value,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["any", "all", "uni"] = "any",
    ) -> Value:
        """p = whether a holds for any member, for all of them, or for all or none (uni). `vote.sync.mode.pred p:pred, a:pred, membermask:u32`"""
    def xor(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a ^ b, bit by bit. `xor.type d, a, b` type: b32, b64, b16, pred."""
