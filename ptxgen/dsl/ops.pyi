# Generated from the instruction table by tools/gen_ops_stub.py; do not edit.
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias, overload

from ptxgen import ir
from ptxgen.dsl.values import Pointer, Scalar, Value, Var
from ptxgen.isa.spec import Modifier
from ptxgen.target import Target
from ptxgen.types import ScalarType

_Operand: TypeAlias = Scalar | Pointer | ir.Special | ir.Symbol | Sequence[Scalar]

class Ops:
    name: str
    target: Target
    _statements: list[ir.Statement]
    _counts: dict[str, int]
    _guard: ir.Guard | None
    _version: tuple[int, int]
    def __init__(self, name: str, target: Target) -> None: ...
    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None: ...
    def origin(self, depth: int = 1) -> ir.Origin: ...
    def placed(self) -> AbstractContextManager[None]: ...
    def fresh(self, type: ScalarType) -> Value: ...
    def _foreign(self, name: str, value: Value) -> Exception: ...
    @overload
    def emit(
        self,
        name: Literal[
            "applypriority",
            "bar_arrive",
            "bar_cta_arrive",
            "bar_cta_sync",
            "bar_sync",
            "bar_warp_sync",
            "barrier_arrive",
            "barrier_cluster_arrive",
            "barrier_cluster_wait",
            "barrier_sync",
            "bra",
            "brkpt",
            "brx",
            "clusterlaunchcontrol_try_cancel",
            "clusterlaunchcontrol_try_cancel_multicast",
            "cp_async_bulk_commit_group",
            "cp_async_bulk_load",
            "cp_async_bulk_load_hint",
            "cp_async_bulk_load_multicast",
            "cp_async_bulk_load_multicast_hint",
            "cp_async_bulk_prefetch",
            "cp_async_bulk_prefetch_hint",
            "cp_async_bulk_prefetch_tensor",
            "cp_async_bulk_prefetch_tensor_gather4",
            "cp_async_bulk_prefetch_tensor_gather4_hint",
            "cp_async_bulk_prefetch_tensor_hint",
            "cp_async_bulk_prefetch_tensor_im2col",
            "cp_async_bulk_prefetch_tensor_im2col_hint",
            "cp_async_bulk_send",
            "cp_async_bulk_store",
            "cp_async_bulk_store_hint",
            "cp_async_bulk_tensor_gather4",
            "cp_async_bulk_tensor_gather4_hint",
            "cp_async_bulk_tensor_gather4_multicast",
            "cp_async_bulk_tensor_gather4_multicast_hint",
            "cp_async_bulk_tensor_im2col",
            "cp_async_bulk_tensor_im2col_hint",
            "cp_async_bulk_tensor_im2col_multicast",
            "cp_async_bulk_tensor_im2col_multicast_hint",
            "cp_async_bulk_tensor_im2col_store",
            "cp_async_bulk_tensor_im2col_store_hint",
            "cp_async_bulk_tensor_load",
            "cp_async_bulk_tensor_load_hint",
            "cp_async_bulk_tensor_load_multicast",
            "cp_async_bulk_tensor_load_multicast_hint",
            "cp_async_bulk_tensor_scatter4",
            "cp_async_bulk_tensor_scatter4_hint",
            "cp_async_bulk_tensor_store",
            "cp_async_bulk_tensor_store_hint",
            "cp_async_bulk_wait_group",
            "cp_async_ca",
            "cp_async_ca_cta",
            "cp_async_ca_cta_policy",
            "cp_async_ca_cta_unless",
            "cp_async_ca_cta_unless_policy",
            "cp_async_ca_policy",
            "cp_async_ca_unless",
            "cp_async_ca_unless_policy",
            "cp_async_cg",
            "cp_async_cg_cta",
            "cp_async_cg_cta_policy",
            "cp_async_cg_cta_unless",
            "cp_async_cg_cta_unless_policy",
            "cp_async_cg_policy",
            "cp_async_cg_unless",
            "cp_async_cg_unless_policy",
            "cp_async_commit_group",
            "cp_async_mbarrier_arrive",
            "cp_async_wait_all",
            "cp_async_wait_group",
            "cp_reduce_async_bulk_add",
            "cp_reduce_async_bulk_add_hint",
            "cp_reduce_async_bulk_add_noftz",
            "cp_reduce_async_bulk_add_noftz_hint",
            "cp_reduce_async_bulk_and",
            "cp_reduce_async_bulk_and_hint",
            "cp_reduce_async_bulk_inc",
            "cp_reduce_async_bulk_inc_hint",
            "cp_reduce_async_bulk_min",
            "cp_reduce_async_bulk_min_hint",
            "cp_reduce_async_bulk_send_add",
            "cp_reduce_async_bulk_send_and",
            "cp_reduce_async_bulk_send_inc",
            "cp_reduce_async_bulk_send_min",
            "cp_reduce_async_bulk_tensor",
            "cp_reduce_async_bulk_tensor_hint",
            "cp_reduce_async_bulk_tensor_im2col",
            "cp_reduce_async_bulk_tensor_im2col_hint",
            "discard",
            "exit",
            "fence",
            "fence_acquire_restricted",
            "fence_mbarrier_init",
            "fence_proxy",
            "fence_proxy_async",
            "fence_proxy_async_acquire",
            "fence_proxy_async_release",
            "fence_proxy_tensormap_acquire",
            "fence_proxy_tensormap_release",
            "fence_release_restricted",
            "griddepcontrol_launch_dependents",
            "griddepcontrol_wait",
            "mbarrier_complete_tx",
            "mbarrier_complete_tx_ordered",
            "mbarrier_expect_tx",
            "mbarrier_expect_tx_ordered",
            "mbarrier_init",
            "mbarrier_inval",
            "membar",
            "nanosleep",
            "pmevent",
            "pmevent_mask",
            "prefetch",
            "prefetch_generic",
            "prefetch_local",
            "prefetch_tensormap",
            "prefetchu",
            "red",
            "red_async_add",
            "red_async_and",
            "red_async_inc",
            "red_async_min",
            "ret",
            "setmaxnreg",
            "st",
            "st_async",
            "st_bulk",
            "st_evict",
            "st_generic",
            "st_large",
            "st_mmio",
            "st_ordered",
            "st_policy",
            "st_volatile",
            "st_weak",
            "stmatrix",
            "stmatrix_shape_last",
            "sust_1d",
            "sust_2d",
            "sust_3d",
            "sust_a1d",
            "sust_a2d",
            "tcgen05_alloc",
            "tcgen05_commit",
            "tcgen05_commit_multicast",
            "tcgen05_cp",
            "tcgen05_cp_unpacked",
            "tcgen05_dealloc",
            "tcgen05_fence_after",
            "tcgen05_fence_before",
            "tcgen05_mma",
            "tcgen05_mma_block_scale",
            "tcgen05_mma_block_scale_sp",
            "tcgen05_mma_block_scale_sp_tmem",
            "tcgen05_mma_block_scale_tmem",
            "tcgen05_mma_sp",
            "tcgen05_mma_sp_tmem",
            "tcgen05_mma_sp_tmem_ashift",
            "tcgen05_mma_tmem",
            "tcgen05_mma_tmem_ashift",
            "tcgen05_mma_ws",
            "tcgen05_mma_ws_sp",
            "tcgen05_mma_ws_sp_tmem",
            "tcgen05_mma_ws_tmem",
            "tcgen05_relinquish_alloc_permit",
            "tcgen05_shift",
            "tcgen05_st",
            "tcgen05_st_halves",
            "tcgen05_wait_ld",
            "tcgen05_wait_st",
            "tensormap_cp_fenceproxy",
            "tensormap_replace_address",
            "tensormap_replace_dim",
            "tensormap_replace_mode",
            "tensormap_replace_rank",
            "tensormap_replace_stride",
            "trap",
            "wgmma_commit_group",
            "wgmma_fence",
            "wgmma_wait_group",
            "wmma_store",
            "wmma_store_f16",
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
            "call",
            "call_indirect",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: Var | None = None,
    ) -> None | Value: ...
    @overload
    def emit(
        self,
        name: Literal[
            "abs",
            "activemask",
            "add",
            "add_cc",
            "add_f32x2",
            "add_mixed",
            "add_pair",
            "addc",
            "and_",
            "atom_cas",
            "ballot",
            "bar_red",
            "bar_red_popc",
            "bfe",
            "bfi",
            "bfind",
            "bmsk",
            "brev",
            "clusterlaunchcontrol_get_first_ctaid_x",
            "clusterlaunchcontrol_get_first_ctaid_y",
            "clusterlaunchcontrol_get_first_ctaid_z",
            "clusterlaunchcontrol_is_canceled",
            "clz",
            "cnot",
            "copysign",
            "cos",
            "createpolicy_cvt",
            "createpolicy_fractional",
            "createpolicy_range",
            "cvt",
            "cvt_fp4",
            "cvt_from_fp4",
            "cvt_from_fp4_bf16",
            "cvt_from_ue8m0",
            "cvt_narrow",
            "cvt_pack",
            "cvt_rs",
            "cvt_rs_e2m1x4",
            "cvt_rs_four",
            "cvt_tf32",
            "cvt_ue8m0",
            "cvt_widen",
            "cvt_widen_bf16",
            "cvta",
            "cvta_to",
            "div",
            "div_approx",
            "dp2a",
            "dp4a",
            "ex2",
            "fma",
            "fma_f32x2",
            "fma_mixed",
            "fns",
            "getctarank",
            "isspacep",
            "ld_mmio",
            "lg2",
            "lop3",
            "mad",
            "mad24",
            "mad24_sat",
            "mad_cc",
            "mad_sat",
            "mad_wide",
            "madc",
            "mapa",
            "match_all",
            "match_any",
            "max",
            "max_relu",
            "max_s16x2",
            "max_s16x2_relu",
            "max_u16x2",
            "mbarrier_arrive",
            "mbarrier_arrive_count",
            "mbarrier_arrive_count_ordered",
            "mbarrier_arrive_drop",
            "mbarrier_arrive_drop_count",
            "mbarrier_arrive_drop_count_ordered",
            "mbarrier_arrive_drop_expect_tx",
            "mbarrier_arrive_drop_expect_tx_ordered",
            "mbarrier_arrive_drop_noComplete",
            "mbarrier_arrive_drop_noComplete_ordered",
            "mbarrier_arrive_drop_ordered",
            "mbarrier_arrive_expect_tx",
            "mbarrier_arrive_expect_tx_ordered",
            "mbarrier_arrive_noComplete",
            "mbarrier_arrive_noComplete_ordered",
            "mbarrier_arrive_ordered",
            "mbarrier_pending_count",
            "mbarrier_test_wait",
            "mbarrier_test_wait_ordered",
            "mbarrier_test_wait_parity",
            "mbarrier_test_wait_parity_ordered",
            "mbarrier_try_wait",
            "mbarrier_try_wait_ordered",
            "mbarrier_try_wait_parity",
            "mbarrier_try_wait_parity_ordered",
            "min",
            "min_relu",
            "min_s16x2",
            "min_s16x2_relu",
            "min_u16x2",
            "mov",
            "movmatrix",
            "mul",
            "mul24",
            "mul_f32x2",
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
            "sad",
            "selp",
            "set_",
            "set_with",
            "setp",
            "setp_with",
            "shf",
            "shfl",
            "shl",
            "shr",
            "sin",
            "slct",
            "sqrt",
            "sqrt_rn",
            "sub",
            "sub_cc",
            "sub_f32x2",
            "sub_mixed",
            "subc",
            "suq",
            "szext",
            "tanh",
            "testp",
            "txq",
            "vabsdiff2",
            "vabsdiff2_add",
            "vabsdiff4",
            "vabsdiff4_add",
            "vadd2",
            "vadd2_add",
            "vadd4",
            "vadd4_add",
            "vavrg2",
            "vavrg2_add",
            "vavrg4",
            "vavrg4_add",
            "vmax2",
            "vmax2_add",
            "vmax4",
            "vmax4_add",
            "vmin2",
            "vmin2_add",
            "vmin4",
            "vmin4_add",
            "vote",
            "vset2",
            "vset2_add",
            "vset4",
            "vset4_add",
            "vsub2",
            "vsub2_add",
            "vsub4",
            "vsub4_add",
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
            "atom",
            "ld",
            "ld_evict",
            "ld_generic",
            "ld_large",
            "ld_nc",
            "ld_nc_large",
            "ld_nc_policy",
            "ld_ordered",
            "ld_policy",
            "ld_prefetch",
            "ld_volatile",
            "ld_weak",
            "ldu",
            "mov_vector",
            "suld_1d",
            "suld_2d",
            "suld_3d",
            "suld_a1d",
            "suld_a2d",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: Sequence[Var] | Var | None = None,
    ) -> Value | tuple[Value, ...]: ...
    @overload
    def emit(
        self,
        name: Literal[
            "clusterlaunchcontrol_get_first_ctaid",
            "ldmatrix",
            "ldmatrix_shape_last",
            "mma_bits",
            "mma_block_scale_mxf4",
            "mma_block_scale_mxf4nvf4",
            "mma_block_scale_mxf8f6f4",
            "mma_f16_f16",
            "mma_f16_fp8",
            "mma_f32_bf16",
            "mma_f32_f16",
            "mma_f32_fp8",
            "mma_f32_tf32",
            "mma_f64",
            "mma_f8f6f4_f16",
            "mma_f8f6f4_f32",
            "mma_int4",
            "mma_int8",
            "mma_quad_f16",
            "mma_quad_f32",
            "mma_quad_f32_f16",
            "tcgen05_ld",
            "tcgen05_ld_halves",
            "tex_1d",
            "tex_2d",
            "tex_3d",
            "tex_a1d",
            "tex_a2d",
            "tex_acube",
            "tex_cube",
            "tex_grad_1d",
            "tex_grad_2d",
            "tex_grad_3d",
            "tex_grad_a1d",
            "tex_grad_a2d",
            "tex_grad_acube",
            "tex_grad_cube",
            "tex_level_1d",
            "tex_level_2d",
            "tex_level_3d",
            "tex_level_a1d",
            "tex_level_a2d",
            "tex_level_acube",
            "tex_level_cube",
            "tld4_2d",
            "tld4_a2d",
            "unpack",
            "unpack_b16",
            "unpack_byte",
            "wgmma_f16_f16",
            "wgmma_f16_f16_registers",
            "wgmma_f16_fp8",
            "wgmma_f16_fp8_registers",
            "wgmma_f32_bf16",
            "wgmma_f32_bf16_registers",
            "wgmma_f32_f16",
            "wgmma_f32_f16_registers",
            "wgmma_f32_fp8",
            "wgmma_f32_fp8_registers",
            "wgmma_f32_tf32",
            "wgmma_f32_tf32_registers",
            "wgmma_s32_s8",
            "wgmma_s32_s8_registers",
            "wgmma_s32_s8_u8",
            "wgmma_s32_s8_u8_registers",
            "wgmma_s32_u8",
            "wgmma_s32_u8_registers",
            "wgmma_s32_u8_s8",
            "wgmma_s32_u8_s8_registers",
            "wmma_bf16",
            "wmma_bits",
            "wmma_f16",
            "wmma_f16_f32",
            "wmma_f32",
            "wmma_f32_f16",
            "wmma_f64",
            "wmma_f64_rounding_last",
            "wmma_load_a",
            "wmma_load_a_bits",
            "wmma_load_a_int4",
            "wmma_load_b",
            "wmma_load_b_bits",
            "wmma_load_b_int4",
            "wmma_load_c",
            "wmma_load_c_f16",
            "wmma_load_f16",
            "wmma_load_f64",
            "wmma_load_tf32",
            "wmma_s4",
            "wmma_s8",
            "wmma_tf32",
            "wmma_u4",
            "wmma_u8",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: Sequence[Var] | None = None,
    ) -> tuple[Value, ...]: ...
    @overload
    def emit(
        self,
        name: Literal[
            "elect",
            "lop3_pred",
            "match_all_pred",
            "setp_pair",
            "setp_pair_with",
            "shfl_pred",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: None = None,
    ) -> tuple[Value, Value]: ...
    @overload
    def emit(
        self,
        name: Literal[
            "tcgen05_ld_red_f32",
            "tcgen05_ld_red_f32_halves",
            "tcgen05_ld_red_s32",
            "tcgen05_ld_red_s32_halves",
            "tcgen05_ld_red_u32",
            "tcgen05_ld_red_u32_halves",
        ],
        args: tuple[_Operand, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: None = None,
    ) -> tuple[tuple[Value, ...], Value]: ...
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

        d = |a|; the most negative number is its own absolute value. `abs.type d, a` type: s32, s64, s16.

        d = |a|. `abs.type d, a` type: bf16, bf16x2.

        d = |a|. `abs{.ftz}.f32 d, a`

        d = |a|. `abs.f64 d, a`
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

        d = a + b, wrapping around, or with .sat clamped to the range of s32. `add{.sat}.s32 d, a, b`

        d = a + b, rounded once. `add.rnd.f64 d, a, b`

        d = a + b, rounded once, to nearest. `add{.ftz}{.sat}.f32 d, a, b`

        d = a + b, rounded once, to nearest. `add.f64 d, a, b`
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

        d = a + b, wrapping around. `add.type d, a, b` type: u32, u64, s64, u16, s16.

        d = a + b, rounded once. `add.type d, a, b` type: bf16, bf16x2.

        d = a + b, rounded once. `add{.ftz}{.sat}.type d, a, b` type: f16, f16x2.

        d = a + b, rounded once. `add.rnd.type d, a, b` type: bf16, bf16x2.
        """
    def add_cc(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a + b, wrapping around; the carry flag says whether the unsigned result wrapped around. `add.cc.type d, a, b` type: u32, s32, u64, s64."""
    def add_f32x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = a + b in both halves, each rounded once, to nearest by default. `add{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64`"""
    def add_mixed(
        self,
        a: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
        sat: bool = False,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a + c, with a widened first; rounded once, to nearest by default. `add{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32` atype: f16, bf16."""
    def add_pair(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        pair: Literal["u16x2", "s16x2"] = "u16x2",
    ) -> Value:
        """d = a + b for each of the two 16-bit halves, wrapping around. `add.pair d:b32, a:b32, b:b32`"""
    def addc(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cc: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a + b + the carry flag, wrapping around; with .cc the carry flag is updated. `addc{.cc}.type d, a, b` type: u32, s32, u64, s64."""
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
    def applypriority(
        self,
        addr: Pointer,
        /,
        *,
        space: Literal["global"] | None = ...,
    ) -> None:
        """Give the 128 bytes at addr the normal eviction priority; changes no value. `applypriority{.space}.L2::evict_normal [addr:u64], 128`"""
    @overload
    def atom(
        self,
        addr: Pointer,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch"] = "add",
        type: ScalarType = ...,
    ) -> Value:
        """d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: u32, s32, u64, f32, f64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: u32, s32, u64, s64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: u32.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: b32, b64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.space.op.type d, [addr:u64], b` type: b128.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.op.type d, [addr:u64], b` type: u32, s32, u64, f32, f64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.op.type d, [addr:u64], b` type: u32, s32, u64, s64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.op.type d, [addr:u64], b` type: u32.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.op.type d, [addr:u64], b` type: b32, b64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}.op.type d, [addr:u64], b` type: b128.

        d = the old value at addr, which becomes old + b in one step (separately for each half of a pair). `atom{.sem}{.scope}.space.add.noftz.type d, [addr:u64], b` type: f16x2, f16, bf16, bf16x2.

        d = the old value at addr, which becomes old + b in one step (separately for each half of a pair). `atom{.sem}{.scope}.add.noftz.type d, [addr:u64], b` type: f16x2, f16, bf16, bf16x2.
        """
    @overload
    def atom(
        self,
        addr: Pointer,
        b: Scalar,
        policy: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch"] = "add",
        type: ScalarType = ...,
    ) -> Value:
        """d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}{.space}.op.L2::cache_hint.type d, [addr:u64], b, policy:b64` type: u32, s32, u64, f32, f64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}{.space}.op.L2::cache_hint.type d, [addr:u64], b, policy:b64` type: u32, s32, u64, s64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}{.space}.op.L2::cache_hint.type d, [addr:u64], b, policy:b64` type: u32.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}{.space}.op.L2::cache_hint.type d, [addr:u64], b, policy:b64` type: b32, b64.

        d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `atom{.sem}{.scope}{.space}.op.L2::cache_hint.type d, [addr:u64], b, policy:b64` type: b128.

        d = the old value at addr, which becomes old + b in one step (separately for each half of a pair). `atom{.sem}{.scope}{.space}.add.noftz.L2::cache_hint.type d, [addr:u64], b, policy:b64` type: f16x2, f16, bf16, bf16x2.
        """
    @overload
    def atom(
        self,
        addr: Pointer,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.vec.type d*vec, [addr:u64], b*vec` type: f32.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.vec.type d*vec, [addr:u64], b*vec` type: f16, bf16.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.vec.type d*vec, [addr:u64], b*vec` type: f16x2, bf16x2.
        """
    @overload
    def atom(
        self,
        addr: Pointer,
        b: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: Literal["v2", "v4", "v8"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.vec.type d*vec, [addr:u64], b*vec` type: f32.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.vec.type d*vec, [addr:u64], b*vec` type: f16, bf16.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.vec.type d*vec, [addr:u64], b*vec` type: f16x2, bf16x2.
        """
    @overload
    def atom(
        self,
        addr: Pointer,
        b: Scalar,
        policy: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.L2::cache_hint.vec.type d*vec, [addr:u64], b*vec, policy:b64` type: f32.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type d*vec, [addr:u64], b*vec, policy:b64` type: f16, bf16.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type d*vec, [addr:u64], b*vec, policy:b64` type: f16x2, bf16x2.
        """
    @overload
    def atom(
        self,
        addr: Pointer,
        b: Sequence[Scalar],
        policy: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: Literal["v2", "v4", "v8"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.L2::cache_hint.vec.type d*vec, [addr:u64], b*vec, policy:b64` type: f32.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type d*vec, [addr:u64], b*vec, policy:b64` type: f16, bf16.

        Each element: d = the old value at addr, which becomes op(old, b) in one step. `atom{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type d*vec, [addr:u64], b*vec, policy:b64` type: f16x2, bf16x2.
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
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] = ...,
        type: ScalarType = ...,
    ) -> Value:
        """d = the old value at addr, which becomes c in one step if it was b. `atom{.sem}{.scope}.space.cas.type d, [addr:u64], b, c` type: b32, b64, b16.

        d = the old value at addr, which becomes c in one step if it was b. `atom{.sem}{.scope}.space.cas.type d, [addr:u64], b, c` type: b128.

        d = the old value at addr, which becomes c in one step if it was b. `atom{.sem}{.scope}.cas.type d, [addr:u64], b, c` type: b32, b64, b16.

        d = the old value at addr, which becomes c in one step if it was b. `atom{.sem}{.scope}.cas.type d, [addr:u64], b, c` type: b128.
        """
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
    def bar_cta_arrive(
        self,
        a: Scalar,
        b: Scalar,
        /,
    ) -> None:
        """Count as arrived at barrier a of b threads, without waiting. `bar.cta.arrive a:u32, b:u32`"""
    def bar_cta_sync(
        self,
        a: Scalar,
        b: Scalar = ...,
        /,
    ) -> None:
        """Wait at barrier a until b threads (all of the block, if left out) have arrived. `bar.cta.sync a:u32{, b:u32}`"""
    @overload
    def bar_red(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cta: bool = False,
        op: Literal["and", "or"] = "and",
        aligned: bool = False,
    ) -> Value:
        """Wait at barrier a for b threads (all of the block, if left out); p = whether c holds for all of them (and), or for any (or). `barrier{.cta}.red.op{.aligned}.pred p:pred, a:u32, b:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); p = whether c holds for all of them (and), or for any (or). `bar.red.op.pred p:pred, a:u32, b:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); p = whether c holds for all of them (and), or for any (or). `bar.cta.red.op.pred p:pred, a:u32, b:u32, c:pred`
        """
    @overload
    def bar_red(
        self,
        a: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cta: bool = False,
        op: Literal["and", "or"] = "and",
        aligned: bool = False,
    ) -> Value:
        """Wait at barrier a for b threads (all of the block, if left out); p = whether c holds for all of them (and), or for any (or). `barrier{.cta}.red.op{.aligned}.pred p:pred, a:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); p = whether c holds for all of them (and), or for any (or). `bar.red.op.pred p:pred, a:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); p = whether c holds for all of them (and), or for any (or). `bar.cta.red.op.pred p:pred, a:u32, c:pred`
        """
    @overload
    def bar_red_popc(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cta: bool = False,
        aligned: bool = False,
    ) -> Value:
        """Wait at barrier a for b threads (all of the block, if left out); d = the number of them for which c holds. `barrier{.cta}.red.popc{.aligned}.u32 d, a:u32, b:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); d = the number of them for which c holds. `bar.red.popc.u32 d, a:u32, b:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); d = the number of them for which c holds. `bar.cta.red.popc.u32 d, a:u32, b:u32, c:pred`
        """
    @overload
    def bar_red_popc(
        self,
        a: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cta: bool = False,
        aligned: bool = False,
    ) -> Value:
        """Wait at barrier a for b threads (all of the block, if left out); d = the number of them for which c holds. `barrier{.cta}.red.popc{.aligned}.u32 d, a:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); d = the number of them for which c holds. `bar.red.popc.u32 d, a:u32, c:pred`

        Wait at barrier a for b threads (all of the block, if left out); d = the number of them for which c holds. `bar.cta.red.popc.u32 d, a:u32, c:pred`
        """
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
    def barrier_arrive(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        cta: bool = False,
        aligned: bool = False,
    ) -> None:
        """Count as arrived at barrier a of b threads, without waiting. `barrier{.cta}.arrive{.aligned} a:u32, b:u32`"""
    def barrier_cluster_arrive(
        self,
        *,
        sem: Literal["release", "relaxed"] | None = None,
        aligned: bool = False,
    ) -> None:
        """Arrive at the barrier of the cluster, without waiting. `barrier.cluster.arrive{.sem}{.aligned}`"""
    def barrier_cluster_wait(
        self,
        *,
        sem: Literal["acquire"] | None = None,
        aligned: bool = False,
    ) -> None:
        """Wait until all threads of the cluster have arrived at its barrier. `barrier.cluster.wait{.sem}{.aligned}`"""
    def barrier_sync(
        self,
        a: Scalar,
        b: Scalar = ...,
        /,
        *,
        cta: bool = False,
        aligned: bool = False,
    ) -> None:
        """Wait at barrier a until b threads (all of the block, if left out) have arrived. `barrier{.cta}.sync{.aligned} a:u32{, b:u32}`"""
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
        """d = the position of the highest bit that differs from the sign, or with .shiftamt the left shift that brings it to the top; all ones if there is none. `bfind{.shiftamt}.type d:u32, a` type: u32, u64, s32, s64."""
    def bmsk(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["clamp", "wrap"] = "clamp",
    ) -> Value:
        """d = b ones from bit a on; a and b count modulo 32 (wrap), or bits beyond 31 are cut off (clamp). `bmsk.mode.b32 d, a:u32, b:u32`"""
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
    def brkpt(
        self,
    ) -> None:
        """Stop for the debugger; there is none, so the kernel stops with an error. `brkpt`"""
    def brx(
        self,
        a: Scalar,
        target: ir.Symbol,
        /,
        *,
        uni: bool = False,
    ) -> None:
        """Continue at label number a, from 0 on, of the list of branch targets called target; an a beyond the list is undefined. .uni promises that all active threads have the same a. `brx.idx{.uni} a:u32, target:label`"""
    @overload
    def call(
        self,
        f: ir.Symbol,
        /,
        *,
        uni: bool = False,
    ) -> None:
        """Call the function f; .uni promises that all active threads of the warp do. `call{.uni} f:label`"""
    @overload
    def call(
        self,
        f: ir.Symbol,
        a: Scalar,
        /,
        *,
        uni: bool = False,
    ) -> None:
        """Call the function f with the arguments a, and get its results, if d names any; .uni promises that all active threads of the warp do. `call{.uni} f:label, a:args`"""
    @overload
    def call(
        self,
        f: ir.Symbol,
        /,
        *,
        into: Var | None = None,
        uni: bool = False,
    ) -> Value:
        """Call the function f; .uni promises that all active threads of the warp do. `call{.uni} d:args, f:label`"""
    @overload
    def call(
        self,
        f: ir.Symbol,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        uni: bool = False,
    ) -> Value:
        """Call the function f with the arguments a, and get its results, if d names any; .uni promises that all active threads of the warp do. `call{.uni} d:args, f:label, a:args`"""
    @overload
    def call_indirect(
        self,
        f: Scalar,
        t: ir.Symbol,
        /,
        *,
        uni: bool = False,
    ) -> None:
        """Call the function at the address f, which is one of the list t of call targets or has the prototype t; .uni promises that all active threads of the warp call the same. `call{.uni} f:u64, t:label`"""
    @overload
    def call_indirect(
        self,
        f: Scalar,
        a: Scalar,
        t: ir.Symbol,
        /,
        *,
        uni: bool = False,
    ) -> None:
        """Call the function at the address f, which is one of the list t of call targets or has the prototype t, with the arguments a, and get its results, if d names any; .uni promises that all active threads of the warp call the same. `call{.uni} f:u64, a:args, t:label`"""
    @overload
    def call_indirect(
        self,
        f: Scalar,
        t: ir.Symbol,
        /,
        *,
        into: Var | None = None,
        uni: bool = False,
    ) -> Value:
        """Call the function at the address f, which is one of the list t of call targets or has the prototype t; .uni promises that all active threads of the warp call the same. `call{.uni} d:args, f:u64, t:label`"""
    @overload
    def call_indirect(
        self,
        f: Scalar,
        a: Scalar,
        t: ir.Symbol,
        /,
        *,
        into: Var | None = None,
        uni: bool = False,
    ) -> Value:
        """Call the function at the address f, which is one of the list t of call targets or has the prototype t, with the arguments a, and get its results, if d names any; .uni promises that all active threads of the warp call the same. `call{.uni} d:args, f:u64, a:args, t:label`"""
    def clusterlaunchcontrol_get_first_ctaid(
        self,
        a: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
    ) -> tuple[Value, ...]:
        """d = the index (x, y, z) in the grid of the first CTA of the cluster that the response a says has been cancelled, and a number without a meaning. `clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 d:b32*4, a`"""
    def clusterlaunchcontrol_get_first_ctaid_x(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the x of the index in the grid of the first CTA of the cluster that the response a says has been cancelled. `clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 d:b32, a`"""
    def clusterlaunchcontrol_get_first_ctaid_y(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the y of the index in the grid of the first CTA of the cluster that the response a says has been cancelled. `clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 d:b32, a`"""
    def clusterlaunchcontrol_get_first_ctaid_z(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the z of the index in the grid of the first CTA of the cluster that the response a says has been cancelled. `clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 d:b32, a`"""
    def clusterlaunchcontrol_is_canceled(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """p = whether the response a says that a cluster has been cancelled. `clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p:pred, a`"""
    def clusterlaunchcontrol_try_cancel(
        self,
        addr: Pointer,
        mbar: Pointer,
        /,
        *,
        space: Literal["shared::cta"] | None = ...,
    ) -> None:
        """Start cancelling a cluster of the grid that has not begun, and writing the response to the 16 bytes at addr; the mbarrier at mbar in the same CTA counts them. `clusterlaunchcontrol.try_cancel.async{.space}.mbarrier::complete_tx::bytes.b128 [addr:u64], [mbar:u64]`"""
    def clusterlaunchcontrol_try_cancel_multicast(
        self,
        addr: Pointer,
        mbar: Pointer,
        /,
        *,
        space: Literal["shared::cta"] | None = ...,
    ) -> None:
        """Start cancelling a cluster of the grid that has not begun, and writing the response to the 16 bytes at addr, at this offset in each CTA of the cluster,; the mbarrier at mbar in the same CTA counts them. `clusterlaunchcontrol.try_cancel.async{.space}.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [addr:u64], [mbar:u64]`"""
    def clz(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the number of leading zero bits of a. `clz.type d:u32, a` type: b32, b64."""
    def cnot(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = 1 if a is 0, else 0. `cnot.type d, a` type: b32, b64, b16."""
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
    def cp_async_bulk_commit_group(
        self,
    ) -> None:
        """Make one bulk group of all bulk copies to global memory that this thread started since its last commit. `cp.async.bulk.commit_group`"""
    def cp_async_bulk_load(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        /,
        *,
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
    ) -> None:
        """Start copying size bytes from src to dst; the mbarrier at mbar in the same CTA counts them. `cp.async.bulk.to.global.mbarrier::complete_tx::bytes [dst:u32], [src:u64], size:u32, [mbar:u32]`"""
    def cp_async_bulk_load_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        policy: Scalar,
        /,
        *,
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
    ) -> None:
        """Start copying size bytes from src to dst; the mbarrier at mbar in the same CTA counts them. `cp.async.bulk.to.global.mbarrier::complete_tx::bytes.L2::cache_hint [dst:u32], [src:u64], size:u32, [mbar:u32], policy:u64`"""
    def cp_async_bulk_load_multicast(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        ctas: Scalar,
        /,
        *,
        to: Literal["shared::cluster"] = "shared::cluster",
    ) -> None:
        """Start copying size bytes from src to dst in each CTA of the cluster in the mask ctas; the mbarrier at mbar in the same CTA counts them. `cp.async.bulk.to.global.mbarrier::complete_tx::bytes.multicast::cluster [dst:u32], [src:u64], size:u32, [mbar:u32], ctas:u16`"""
    def cp_async_bulk_load_multicast_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        ctas: Scalar,
        policy: Scalar,
        /,
        *,
        to: Literal["shared::cluster"] = "shared::cluster",
    ) -> None:
        """Start copying size bytes from src to dst in each CTA of the cluster in the mask ctas; the mbarrier at mbar in the same CTA counts them. `cp.async.bulk.to.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [dst:u32], [src:u64], size:u32, [mbar:u32], ctas:u16, policy:u64`"""
    def cp_async_bulk_prefetch(
        self,
        src: Pointer,
        size: Scalar,
        /,
    ) -> None:
        """Have size bytes at src brought to the L2 cache: a hint. `cp.async.bulk.prefetch.L2.global [src:u64], size:u32`"""
    def cp_async_bulk_prefetch_hint(
        self,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
    ) -> None:
        """Have size bytes at src brought to the L2 cache: a hint. `cp.async.bulk.prefetch.L2.global.L2::cache_hint [src:u64], size:u32, policy:u64`"""
    def cp_async_bulk_prefetch_tensor(
        self,
        map: Pointer,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        tile: bool = False,
    ) -> None:
        """Have the box at the map's coordinates brought to the L2 cache: a hint. `cp.async.bulk.prefetch.tensor.dim.L2.global{.tile} [map:u64*dim]`"""
    def cp_async_bulk_prefetch_tensor_gather4(
        self,
        map: Pointer,
        /,
    ) -> None:
        """Have the boxes of one row at the column and at each of the four rows brought to the L2 cache: a hint. `cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [map:u64*5]`"""
    def cp_async_bulk_prefetch_tensor_gather4_hint(
        self,
        map: Pointer,
        policy: Scalar,
        /,
    ) -> None:
        """Have the boxes of one row at the column and at each of the four rows brought to the L2 cache: a hint. `cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4.L2::cache_hint [map:u64*5], policy:u64`"""
    def cp_async_bulk_prefetch_tensor_hint(
        self,
        map: Pointer,
        policy: Scalar,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        tile: bool = False,
    ) -> None:
        """Have the box at the map's coordinates brought to the L2 cache: a hint. `cp.async.bulk.prefetch.tensor.dim.L2.global{.tile}.L2::cache_hint [map:u64*dim], policy:u64`"""
    def cp_async_bulk_prefetch_tensor_im2col(
        self,
        map: Pointer,
        offsets: Sequence[Scalar],
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        mode: Literal["im2col", "im2col::w", "im2col::w::128"] = "im2col",
    ) -> None:
        """Have the pixels that the map and its coordinates, moved by the offsets, select brought to the L2 cache: a hint. `cp.async.bulk.prefetch.tensor.dim.L2.global.mode [map:u64*dim], offsets:u16*no`"""
    def cp_async_bulk_prefetch_tensor_im2col_hint(
        self,
        map: Pointer,
        offsets: Sequence[Scalar],
        policy: Scalar,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        mode: Literal["im2col", "im2col::w", "im2col::w::128"] = "im2col",
    ) -> None:
        """Have the pixels that the map and its coordinates, moved by the offsets, select brought to the L2 cache: a hint. `cp.async.bulk.prefetch.tensor.dim.L2.global.mode.L2::cache_hint [map:u64*dim], offsets:u16*no, policy:u64`"""
    def cp_async_bulk_send(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        /,
    ) -> None:
        """Start copying size bytes from src to dst in a CTA of the cluster; the mbarrier at mbar in that CTA counts them. `cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dst:u32], [src:u32], size:u32, [mbar:u32]`"""
    def cp_async_bulk_store(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        /,
    ) -> None:
        """Start copying size bytes from src to dst, in this thread's bulk group. `cp.async.bulk.global.shared::cta.bulk_group [dst:u64], [src:u32], size:u32`"""
    def cp_async_bulk_store_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
    ) -> None:
        """Start copying size bytes from src to dst, in this thread's bulk group. `cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [dst:u64], [src:u32], size:u32, policy:u64`"""
    def cp_async_bulk_tensor_gather4(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        /,
        *,
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the boxes of one row at the column and at each of the four rows, one after another, to dst; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.2d.to.global.tile::gather4.mbarrier::complete_tx::bytes{.group} [dst:u32], [map:u64*5], [mbar:u32]`"""
    def cp_async_bulk_tensor_gather4_hint(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        policy: Scalar,
        /,
        *,
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the boxes of one row at the column and at each of the four rows, one after another, to dst; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.2d.to.global.tile::gather4.mbarrier::complete_tx::bytes{.group}.L2::cache_hint [dst:u32], [map:u64*5], [mbar:u32], policy:u64`"""
    def cp_async_bulk_tensor_gather4_multicast(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        ctas: Scalar,
        /,
        *,
        to: Literal["shared::cluster"] = "shared::cluster",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the boxes of one row at the column and at each of the four rows, one after another, to dst in each CTA of the cluster in the mask ctas; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.2d.to.global.tile::gather4.mbarrier::complete_tx::bytes.multicast::cluster{.group} [dst:u32], [map:u64*5], [mbar:u32], ctas:u16`"""
    def cp_async_bulk_tensor_gather4_multicast_hint(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        ctas: Scalar,
        policy: Scalar,
        /,
        *,
        to: Literal["shared::cluster"] = "shared::cluster",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the boxes of one row at the column and at each of the four rows, one after another, to dst in each CTA of the cluster in the mask ctas; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.2d.to.global.tile::gather4.mbarrier::complete_tx::bytes.multicast::cluster{.group}.L2::cache_hint [dst:u32], [map:u64*5], [mbar:u32], ctas:u16, policy:u64`"""
    def cp_async_bulk_tensor_im2col(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        offsets: Sequence[Scalar],
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
        mode: Literal["im2col", "im2col::w", "im2col::w::128"] = "im2col",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the pixels that the map and its coordinates, moved by the offsets, select for one position of a filter to dst; the mbarrier at mbar counts the bytes. `cp.async.bulk.tensor.dim.to.global.mode.mbarrier::complete_tx::bytes{.group} [dst:u32], [map:u64*dim], [mbar:u32], offsets:u16*no`"""
    def cp_async_bulk_tensor_im2col_hint(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        offsets: Sequence[Scalar],
        policy: Scalar,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
        mode: Literal["im2col", "im2col::w", "im2col::w::128"] = "im2col",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the pixels that the map and its coordinates, moved by the offsets, select for one position of a filter to dst; the mbarrier at mbar counts the bytes. `cp.async.bulk.tensor.dim.to.global.mode.mbarrier::complete_tx::bytes{.group}.L2::cache_hint [dst:u32], [map:u64*dim], [mbar:u32], offsets:u16*no, policy:u64`"""
    def cp_async_bulk_tensor_im2col_multicast(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        offsets: Sequence[Scalar],
        ctas: Scalar,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        to: Literal["shared::cluster"] = "shared::cluster",
        mode: Literal["im2col", "im2col::w", "im2col::w::128"] = "im2col",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the pixels that the map and its coordinates, moved by the offsets, select for one position of a filter to dst; the mbarrier at mbar counts the bytes. `cp.async.bulk.tensor.dim.to.global.mode.mbarrier::complete_tx::bytes.multicast::cluster{.group} [dst:u32], [map:u64*dim], [mbar:u32], offsets:u16*no, ctas:u16`"""
    def cp_async_bulk_tensor_im2col_multicast_hint(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        offsets: Sequence[Scalar],
        ctas: Scalar,
        policy: Scalar,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        to: Literal["shared::cluster"] = "shared::cluster",
        mode: Literal["im2col", "im2col::w", "im2col::w::128"] = "im2col",
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the pixels that the map and its coordinates, moved by the offsets, select for one position of a filter to dst; the mbarrier at mbar counts the bytes. `cp.async.bulk.tensor.dim.to.global.mode.mbarrier::complete_tx::bytes.multicast::cluster{.group}.L2::cache_hint [dst:u32], [map:u64*dim], [mbar:u32], offsets:u16*no, ctas:u16, policy:u64`"""
    def cp_async_bulk_tensor_im2col_store(
        self,
        map: Pointer,
        src: Pointer,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
    ) -> None:
        """Start copying or combining from src to the pixels of a tensor that the map and its coordinates select, in this thread's bulk group. `cp.async.bulk.tensor.dim.global.shared::cta.im2col_no_offs.bulk_group [map:u64*dim], [src:u32]`"""
    def cp_async_bulk_tensor_im2col_store_hint(
        self,
        map: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
    ) -> None:
        """Start copying or combining from src to the pixels of a tensor that the map and its coordinates select, in this thread's bulk group. `cp.async.bulk.tensor.dim.global.shared::cta.im2col_no_offs.bulk_group.L2::cache_hint [map:u64*dim], [src:u32], policy:u64`"""
    def cp_async_bulk_tensor_load(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
        tile: bool = False,
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the box at the map's coordinates to dst; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.dim.to.global{.tile}.mbarrier::complete_tx::bytes{.group} [dst:u32], [map:u64*dim], [mbar:u32]`"""
    def cp_async_bulk_tensor_load_hint(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        policy: Scalar,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        to: Literal["shared::cluster", "shared::cta"] = "shared::cluster",
        tile: bool = False,
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the box at the map's coordinates to dst; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.dim.to.global{.tile}.mbarrier::complete_tx::bytes{.group}.L2::cache_hint [dst:u32], [map:u64*dim], [mbar:u32], policy:u64`"""
    def cp_async_bulk_tensor_load_multicast(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        ctas: Scalar,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        to: Literal["shared::cluster"] = "shared::cluster",
        tile: bool = False,
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the box at the map's coordinates to dst in each CTA of the cluster in the mask ctas; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.dim.to.global{.tile}.mbarrier::complete_tx::bytes.multicast::cluster{.group} [dst:u32], [map:u64*dim], [mbar:u32], ctas:u16`"""
    def cp_async_bulk_tensor_load_multicast_hint(
        self,
        dst: Pointer,
        map: Pointer,
        mbar: Pointer,
        ctas: Scalar,
        policy: Scalar,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        to: Literal["shared::cluster"] = "shared::cluster",
        tile: bool = False,
        group: Literal["cta_group::1", "cta_group::2"] | None = None,
    ) -> None:
        """Start copying the box at the map's coordinates to dst in each CTA of the cluster in the mask ctas; the mbarrier at mbar in the same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box. `cp.async.bulk.tensor.dim.to.global{.tile}.mbarrier::complete_tx::bytes.multicast::cluster{.group}.L2::cache_hint [dst:u32], [map:u64*dim], [mbar:u32], ctas:u16, policy:u64`"""
    def cp_async_bulk_tensor_scatter4(
        self,
        map: Pointer,
        src: Pointer,
        /,
    ) -> None:
        """Start copying from src, where they lie one after another, the boxes of one row at the column and at each of the four rows, in this thread's bulk group. `cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [map:u64*5], [src:u32]`"""
    def cp_async_bulk_tensor_scatter4_hint(
        self,
        map: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
    ) -> None:
        """Start copying from src, where they lie one after another, the boxes of one row at the column and at each of the four rows, in this thread's bulk group. `cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group.L2::cache_hint [map:u64*5], [src:u32], policy:u64`"""
    def cp_async_bulk_tensor_store(
        self,
        map: Pointer,
        src: Pointer,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        tile: bool = False,
    ) -> None:
        """Start copying from src the part of the box at the map's coordinates that is inside the tensor, in this thread's bulk group. `cp.async.bulk.tensor.dim.global.shared::cta{.tile}.bulk_group [map:u64*dim], [src:u32]`"""
    def cp_async_bulk_tensor_store_hint(
        self,
        map: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        tile: bool = False,
    ) -> None:
        """Start copying from src the part of the box at the map's coordinates that is inside the tensor, in this thread's bulk group. `cp.async.bulk.tensor.dim.global.shared::cta{.tile}.bulk_group.L2::cache_hint [map:u64*dim], [src:u32], policy:u64`"""
    def cp_async_bulk_wait_group(
        self,
        n: int,
        /,
        *,
        read: bool = False,
    ) -> None:
        """Wait until at most the n newest bulk groups of this thread are incomplete; with .read, only until all others have read their sources. `cp.async.bulk.wait_group{.read} n:imm`"""
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
    def cp_async_ca_cta(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        src_size: Scalar = ...,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; those from src_size on become 0. `cp.async.ca.shared::cta.global{.prefetch} [dst:u32], [src:u64], cp_size:imm{, src_size:u32}`"""
    @overload
    def cp_async_ca_cta_policy(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst. `cp.async.ca.shared::cta.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], cp_size:imm, policy:b64`"""
    @overload
    def cp_async_ca_cta_policy(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        src_size: Scalar,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; those from src_size on become 0. `cp.async.ca.shared::cta.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], cp_size:imm, src_size:u32, policy:b64`"""
    def cp_async_ca_cta_unless(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        ignore: Value,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.ca.shared::cta.global{.prefetch} [dst:u32], [src:u64], cp_size:imm, ignore:pred`"""
    def cp_async_ca_cta_unless_policy(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        ignore: Value,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.ca.shared::cta.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], cp_size:imm, ignore:pred, policy:b64`"""
    @overload
    def cp_async_ca_policy(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst. `cp.async.ca.shared.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], cp_size:imm, policy:b64`"""
    @overload
    def cp_async_ca_policy(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        src_size: Scalar,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; those from src_size on become 0. `cp.async.ca.shared.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], cp_size:imm, src_size:u32, policy:b64`"""
    def cp_async_ca_unless(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        ignore: Value,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.ca.shared.global{.prefetch} [dst:u32], [src:u64], cp_size:imm, ignore:pred`"""
    def cp_async_ca_unless_policy(
        self,
        dst: Pointer,
        src: Pointer,
        cp_size: int,
        ignore: Value,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.ca.shared.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], cp_size:imm, ignore:pred, policy:b64`"""
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
    def cp_async_cg_cta(
        self,
        dst: Pointer,
        src: Pointer,
        src_size: Scalar = ...,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; those from src_size on become 0. `cp.async.cg.shared::cta.global{.prefetch} [dst:u32], [src:u64], 16{, src_size:u32}`"""
    @overload
    def cp_async_cg_cta_policy(
        self,
        dst: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst. `cp.async.cg.shared::cta.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], 16, policy:b64`"""
    @overload
    def cp_async_cg_cta_policy(
        self,
        dst: Pointer,
        src: Pointer,
        src_size: Scalar,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; those from src_size on become 0. `cp.async.cg.shared::cta.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], 16, src_size:u32, policy:b64`"""
    def cp_async_cg_cta_unless(
        self,
        dst: Pointer,
        src: Pointer,
        ignore: Value,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.cg.shared::cta.global{.prefetch} [dst:u32], [src:u64], 16, ignore:pred`"""
    def cp_async_cg_cta_unless_policy(
        self,
        dst: Pointer,
        src: Pointer,
        ignore: Value,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.cg.shared::cta.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], 16, ignore:pred, policy:b64`"""
    @overload
    def cp_async_cg_policy(
        self,
        dst: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst. `cp.async.cg.shared.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], 16, policy:b64`"""
    @overload
    def cp_async_cg_policy(
        self,
        dst: Pointer,
        src: Pointer,
        src_size: Scalar,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; those from src_size on become 0. `cp.async.cg.shared.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], 16, src_size:u32, policy:b64`"""
    def cp_async_cg_unless(
        self,
        dst: Pointer,
        src: Pointer,
        ignore: Value,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.cg.shared.global{.prefetch} [dst:u32], [src:u64], 16, ignore:pred`"""
    def cp_async_cg_unless_policy(
        self,
        dst: Pointer,
        src: Pointer,
        ignore: Value,
        policy: Scalar,
        /,
        *,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
    ) -> None:
        """Start copying cp_size (4, 8, 16; .cg: 16) bytes from src to dst; if ignore holds, src is not read and they become 0. `cp.async.cg.shared.global.L2::cache_hint{.prefetch} [dst:u32], [src:u64], 16, ignore:pred, policy:b64`"""
    def cp_async_commit_group(
        self,
    ) -> None:
        """Make one group of all copies that this thread started since its last commit. `cp.async.commit_group`"""
    def cp_async_mbarrier_arrive(
        self,
        addr: Pointer,
        /,
        *,
        noinc: bool = False,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> None:
        """Arrive once all copies that this thread started with cp.async are complete; without .noinc, the phase waits for that arrival in addition. `cp.async.mbarrier.arrive{.noinc}{.space}.b64 [addr:u64]`"""
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
    def cp_reduce_async_bulk_add(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        /,
        *,
        op: Literal["add"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.op.type [dst:u64], [src:u32], size:u32` type: u32, s32, u64, f32, f64."""
    def cp_reduce_async_bulk_add_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
        *,
        op: Literal["add"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.op.type [dst:u64], [src:u32], size:u32, policy:u64` type: u32, s32, u64, f32, f64."""
    def cp_reduce_async_bulk_add_noftz(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        /,
        *,
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.type [dst:u64], [src:u32], size:u32` type: f16, bf16."""
    def cp_reduce_async_bulk_add_noftz_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
        *,
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.noftz.type [dst:u64], [src:u32], size:u32, policy:u64` type: f16, bf16."""
    def cp_reduce_async_bulk_and(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        /,
        *,
        op: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.op.type [dst:u64], [src:u32], size:u32` type: b32, b64."""
    def cp_reduce_async_bulk_and_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
        *,
        op: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.op.type [dst:u64], [src:u32], size:u32, policy:u64` type: b32, b64."""
    def cp_reduce_async_bulk_inc(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        /,
        *,
        op: Literal["inc", "dec"] = "inc",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.op.type [dst:u64], [src:u32], size:u32` type: u32."""
    def cp_reduce_async_bulk_inc_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
        *,
        op: Literal["inc", "dec"] = "inc",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.op.type [dst:u64], [src:u32], size:u32, policy:u64` type: u32."""
    def cp_reduce_async_bulk_min(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        /,
        *,
        op: Literal["min", "max"] = "min",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.op.type [dst:u64], [src:u32], size:u32` type: u32, s32, u64, s64, f16, bf16."""
    def cp_reduce_async_bulk_min_hint(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        policy: Scalar,
        /,
        *,
        op: Literal["min", "max"] = "min",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst with those at src, in this thread's bulk group. `cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.op.type [dst:u64], [src:u32], size:u32, policy:u64` type: u32, s32, u64, s64, f16, bf16."""
    def cp_reduce_async_bulk_send_add(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["add"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst, in a CTA of the cluster, with those at src; the mbarrier at mbar in that CTA counts them. `cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.op.type [dst:u32], [src:u32], size:u32, [mbar:u32]` type: u32, s32, u64."""
    def cp_reduce_async_bulk_send_and(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst, in a CTA of the cluster, with those at src; the mbarrier at mbar in that CTA counts them. `cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.op.type [dst:u32], [src:u32], size:u32, [mbar:u32]` type: b32."""
    def cp_reduce_async_bulk_send_inc(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["inc", "dec"] = "inc",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst, in a CTA of the cluster, with those at src; the mbarrier at mbar in that CTA counts them. `cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.op.type [dst:u32], [src:u32], size:u32, [mbar:u32]` type: u32."""
    def cp_reduce_async_bulk_send_min(
        self,
        dst: Pointer,
        src: Pointer,
        size: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["min", "max"] = "min",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the values in size bytes at dst, in a CTA of the cluster, with those at src; the mbarrier at mbar in that CTA counts them. `cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.op.type [dst:u32], [src:u32], size:u32, [mbar:u32]` type: u32, s32."""
    def cp_reduce_async_bulk_tensor(
        self,
        map: Pointer,
        src: Pointer,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
        tile: bool = False,
    ) -> None:
        """Start combining the box at the map's coordinates with the one at src, in this thread's bulk group. `cp.reduce.async.bulk.tensor.dim.global.shared::cta.op{.tile}.bulk_group [map:u64*dim], [src:u32]`"""
    def cp_reduce_async_bulk_tensor_hint(
        self,
        map: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
        *,
        dim: Literal["1d", "2d", "3d", "4d", "5d"] = "1d",
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
        tile: bool = False,
    ) -> None:
        """Start combining the box at the map's coordinates with the one at src, in this thread's bulk group. `cp.reduce.async.bulk.tensor.dim.global.shared::cta.op{.tile}.bulk_group.L2::cache_hint [map:u64*dim], [src:u32], policy:u64`"""
    def cp_reduce_async_bulk_tensor_im2col(
        self,
        map: Pointer,
        src: Pointer,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        operation: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
    ) -> None:
        """Start copying or combining from src to the pixels of a tensor that the map and its coordinates select, in this thread's bulk group. `cp.reduce.async.bulk.tensor.dim.global.shared::cta.operation.im2col_no_offs.bulk_group [map:u64*dim], [src:u32]`"""
    def cp_reduce_async_bulk_tensor_im2col_hint(
        self,
        map: Pointer,
        src: Pointer,
        policy: Scalar,
        /,
        *,
        dim: Literal["3d", "4d", "5d"] = "3d",
        operation: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
    ) -> None:
        """Start copying or combining from src to the pixels of a tensor that the map and its coordinates select, in this thread's bulk group. `cp.reduce.async.bulk.tensor.dim.global.shared::cta.operation.im2col_no_offs.bulk_group.L2::cache_hint [map:u64*dim], [src:u32], policy:u64`"""
    def createpolicy_cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the cache policy for the access property a of CUDA's API. Its bits are opaque; here they are those of a. `createpolicy.cvt.L2.b64 d, a`"""
    def createpolicy_fractional(
        self,
        fraction: Scalar = ...,
        /,
        *,
        into: Var | None = None,
        primary: Literal["L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"] = "L2::evict_last",
        secondary: Literal["L2::evict_first", "L2::evict_unchanged"] | None = None,
    ) -> Value:
        """d = a cache policy: the primary priority for a fraction of accesses, the secondary for the others. Its bits are opaque; here they are 0. `createpolicy.fractional.primary{.secondary}.b64 d{, fraction:f32}`"""
    def createpolicy_range(
        self,
        addr: Pointer,
        size: Scalar,
        total: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["global"] | None = ...,
        primary: Literal["L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"] = "L2::evict_last",
        secondary: Literal["L2::evict_first", "L2::evict_unchanged"] | None = None,
    ) -> Value:
        """d = a cache policy: the primary priority for the first size bytes at addr, the secondary for the rest of the total bytes around. Its bits are opaque; here they are 0. `createpolicy.range{.space}.primary{.secondary}.b64 d, [addr:u64], size:u32, total:u32`"""
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        sat: bool = True,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u32. atype: s32, u64, s64, s16, s8.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s32. atype: u32, u64, s64.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u64. atype: s32, s64, s16, s8.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s64. atype: u64.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u16. atype: u32, s32, u64, s64, s16, s8.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s16. atype: u32, s32, u64, s64, u16.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: u8. atype: u32, s32, u64, s64, u16, s16, s8.

        d = a limited to the range of dtype; legal only if a may lie outside it. `cvt.sat.dtype.atype d:dtype, a:atype` dtype: s8. atype: u32, s32, u64, s64, u16, s16, u8.

        d = a; with .sat limited to [0, 1]. `cvt{.sat}.dtype.atype d:dtype, a:atype` dtype: f64. atype: f64.

        d = a; with .sat limited to [0, 1]. `cvt{.sat}.dtype.atype d:dtype, a:atype` dtype: f16. atype: f16.

        d = a, exactly; with .sat limited to [0, 1]. `cvt{.sat}.dtype.atype d:dtype, a:atype` dtype: f64. atype: f16.

        d = a, truncated, or extended by zeros or the sign. `cvt.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16, u8, s8. atype: u32, s32, u64, s64, u16, s16, u8, s8.

        d = a. `cvt.dtype.atype d:dtype, a:atype` dtype: bf16. atype: bf16.

        d = a, rounded to nearest even: ptxas makes the instruction of `.rn` of it. `cvt.dtype.atype d:dtype, a:atype` dtype: bf16. atype: f16.

        d = a, rounded to nearest even: ptxas makes the instruction of `.rn` of it. `cvt.dtype.atype d:dtype, a:atype` dtype: f16. atype: bf16.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"] = "rn",
        ftz: bool = False,
        sat: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a, rounded once; .ftz changes nothing. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: u32, s32, u64, s64, u16, s16, u8, s8.

        d = a rounded to an integer and limited to the range of dtype, with or without .sat; NaN gives 0, or only the top bit for 64 bits. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16, u8, s8. atype: f32.

        d = a rounded to an integral value, still as a floating-point number. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f32.

        d = a, rounded once. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f64.

        d = a, rounded once. `cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f16. atype: f32.

        d = a, rounded once. `cvt.rnd{.sat}.dtype.atype d:dtype, a:atype` dtype: f64, f16. atype: u32, s32, u64, s64, u16, s16, u8, s8.

        d = a rounded to an integer and limited to the range of dtype, with or without .sat; NaN gives 0, or only the top bit for 64 bits or f64. `cvt.rnd{.sat}.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16, u8, s8. atype: f64, f16.

        d = a rounded to an integral value, still as a floating-point number. `cvt.rnd{.sat}.dtype.atype d:dtype, a:atype` dtype: f64. atype: f64.

        d = a rounded to an integral value, still as a floating-point number. `cvt.rnd{.sat}.dtype.atype d:dtype, a:atype` dtype: f16. atype: f16.

        d = a, rounded once. `cvt.rnd{.sat}.dtype.atype d:dtype, a:atype` dtype: f16. atype: f64.

        d = a; with .sat limited to [0, 1]. `cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f32.

        d = a, exactly; with .sat limited to [0, 1]. `cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f64. atype: f32.

        d = a, exactly; with .sat limited to [0, 1]. No f16 becomes a subnormal f32, so .ftz changes nothing. `cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype` dtype: f32. atype: f16.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"] | None = "rn",
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a, rounded once. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: bf16. atype: u32, s32, u64, s64, u16, s16.

        d = a rounded to an integer and limited to the range of dtype; NaN gives 0, or only the top bit for 64 bits. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: u32, s32, u64, s64, u16, s16. atype: bf16.

        d = a rounded to an integral value, still as a floating-point number. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: bf16. atype: bf16.

        d = a, exactly, whatever the rounding. `cvt{.rnd}.dtype.atype d:dtype, a:atype` dtype: f64. atype: bf16.

        d = a, rounded once. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: bf16. atype: f64.

        d = a, rounded once. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: bf16. atype: f16.

        d = a, rounded once. `cvt.rnd.dtype.atype d:dtype, a:atype` dtype: f16. atype: bf16.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
        ftz: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a, exactly, whatever the rounding. `cvt{.rnd}{.ftz}.dtype.atype d:dtype, a:atype` dtype: f32. atype: bf16.

        d = a, rounded once. `cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype` dtype: bf16. atype: f32.
        """
    @overload
    def cvt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz"] = "rn",
        relu: Literal[True] = True,
        satfinite: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = max(a, 0), rounded once; NaN stays NaN. With .satfinite infinity becomes the largest number. `cvt.rnd.relu{.satfinite}.dtype.atype d:dtype, a:atype` dtype: f16, bf16. atype: f32.

        d = max(a, 0), rounded once; NaN stays NaN, infinity becomes the largest number. `cvt.rnd.satfinite.relu.dtype.atype d:dtype, a:atype` dtype: f16, bf16. atype: f32.

        d = a, rounded once; an infinity becomes the largest number of its sign. `cvt.rnd.satfinite.dtype.atype d:dtype, a:atype` dtype: f16, bf16. atype: f32.
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
        satfinite: bool = False,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a in the upper and b in the lower half, each rounded once; with .relu max(d, 0), where NaN stays NaN. With .satfinite an infinity becomes the largest number of its sign. `cvt.rnd{.relu}{.satfinite}.dtype.atype d:dtype, a:atype, b:atype` dtype: f16x2, bf16x2. atype: f32.

        d = max(a, 0) in the upper and max(b, 0) in the lower half, each rounded once; NaN stays NaN, infinity becomes the largest number. `cvt.rnd.satfinite.relu.dtype.atype d:dtype, a:atype, b:atype` dtype: f16x2, bf16x2. atype: f32.
        """
    @overload
    def cvt_fp4(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        satfinite: Literal[True] = True,
        relu: bool = False,
    ) -> Value:
        """d = a in the upper and b in the lower 4 bits, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes the largest number. `cvt.rn.satfinite{.relu}.e2m1x2.f32 d:byte, a:f32, b:f32`

        d = a in the upper and b in the lower 4 bits, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes the largest number. `cvt.rn.relu.satfinite.e2m1x2.f32 d:byte, a:f32, b:f32`
        """
    @overload
    def cvt_fp4(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        satfinite: Literal[True] = True,
        relu: bool = False,
    ) -> Value:
        """d = the two f16 of a, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes the largest number. `cvt.rn.satfinite{.relu}.e2m1x2.f16x2 d:byte, a:f16x2`

        d = the two f16 of a, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes the largest number. `cvt.rn.relu.satfinite.e2m1x2.f16x2 d:byte, a:f16x2`
        """
    def cvt_from_fp4(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
    ) -> Value:
        """d = the two numbers of a, exactly; with .relu max(d, 0). `cvt.rn{.relu}.f16x2.e2m1x2 d:f16x2, a:byte`"""
    def cvt_from_fp4_bf16(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
    ) -> Value:
        """d = the two numbers of a, exactly; with .relu max(d, 0). `cvt.rn{.relu}.bf16x2.e2m1x2 d:bf16x2, a:byte`"""
    def cvt_from_ue8m0(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the two powers of two of a, exactly; 0xff becomes NaN. `cvt.rn.bf16x2.ue8m0x2 d:bf16x2, a:b16`"""
    @overload
    def cvt_narrow(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        satfinite: Literal[True] = True,
        relu: bool = False,
        dtype: Literal["e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"] = "e4m3x2",
    ) -> Value:
        """d = a in the upper and b in the lower byte, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes 0x7f in fp8 and the largest number in fp6. `cvt.rn.satfinite{.relu}.dtype.f32 d:b16, a:f32, b:f32`

        d = a in the upper and b in the lower byte, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes 0x7f in fp8 and the largest number in fp6. `cvt.rn.relu.satfinite.dtype.f32 d:b16, a:f32, b:f32`
        """
    @overload
    def cvt_narrow(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        satfinite: Literal[True] = True,
        relu: bool = False,
        dtype: Literal["e4m3x2", "e5m2x2"] = "e4m3x2",
    ) -> Value:
        """d = the two f16 of a, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes 0x7f. `cvt.rn.satfinite{.relu}.dtype.f16x2 d:b16, a:f16x2`

        d = the two f16 of a, each rounded once and limited to the largest number; with .relu max(d, 0). NaN becomes 0x7f. `cvt.rn.relu.satfinite.dtype.f16x2 d:b16, a:f16x2`
        """
    @overload
    def cvt_pack(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: Literal["u16", "s16"] = "u16",
    ) -> Value:
        """d = a in the upper and b in the lower half, each limited to the range of dtype. `cvt.pack.sat.dtype.s32 d:b32, a:s32, b:s32`"""
    @overload
    def cvt_pack(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: Literal["u8", "s8", "u4", "s4", "u2", "s2"] = "u8",
    ) -> Value:
        """d = b in the lowest bits and a above it, each limited to the range of dtype, and c shifted left above both. `cvt.pack.sat.dtype.s32.b32 d:b32, a:s32, b:s32, c:b32`"""
    def cvt_rs(
        self,
        a: Scalar,
        b: Scalar,
        random: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
        satfinite: bool = False,
        dtype: ScalarType = ...,
    ) -> Value:
        """d = a, in the upper half, and b, each rounded up or down by random bits. `cvt.rs{.relu}{.satfinite}.dtype.f32 d:dtype, a:f32, b:f32, random:b32` dtype: f16x2, bf16x2."""
    def cvt_rs_e2m1x4(
        self,
        a: Sequence[Scalar],
        random: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
    ) -> Value:
        """d = the elements of a, the first in the highest 4 bits, each rounded up or down by random bits. `cvt.rs{.relu}.satfinite.e2m1x4.f32 d:b16, a:f32*4, random:b32`"""
    def cvt_rs_four(
        self,
        a: Sequence[Scalar],
        random: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
        dtype: Literal["e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4"] = "e4m3x4",
    ) -> Value:
        """d = the elements of a, the first in the highest byte, each rounded up or down by random bits. `cvt.rs{.relu}.satfinite.dtype.f32 d:b32, a:f32*4, random:b32`"""
    @overload
    def cvt_tf32(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rna", "rn", "rz"] = "rna",
    ) -> Value:
        """d = a rounded once to 11 significant bits, as the bits of an f32; .rna rounds ties away from zero, and only clears the lower bits of a NaN, which may leave an infinity. `cvt.rnd.tf32.f32 d:b32, a:f32`"""
    @overload
    def cvt_tf32(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rna: Literal["rna"] = "rna",
        satfinite: Literal[True] = True,
    ) -> Value:
        """d = a rounded once to 11 significant bits, ties away from zero, as the bits of an f32; an infinity becomes the largest number of its sign, and a NaN the tf32 before it, which may be a number. `cvt.rna.satfinite.tf32.f32 d:b32, a:f32`"""
    @overload
    def cvt_tf32(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz"] = "rn",
        satfinite: Literal[True] = True,
        relu: bool = False,
    ) -> Value:
        """d = a rounded once to 11 significant bits, as the bits of an f32; an infinity becomes the largest number of its sign; with .relu max(d, 0), where NaN stays NaN. `cvt.rnd.satfinite{.relu}.tf32.f32 d:b32, a:f32`

        d = max(a, 0) rounded once to 11 significant bits, as the bits of an f32; NaN stays NaN. `cvt.rnd.relu.tf32.f32 d:b32, a:f32`

        d = max(a, 0) rounded once to 11 significant bits, as the bits of an f32; NaN stays NaN, infinity becomes the largest number. `cvt.rnd.relu.satfinite.tf32.f32 d:b32, a:f32`
        """
    @overload
    def cvt_ue8m0(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rz", "rp"] = "rz",
        satfinite: bool = False,
    ) -> Value:
        """d = the magnitudes of a, in the upper byte, and b, rounded to powers of two. `cvt.rnd{.satfinite}.ue8m0x2.f32 d:b16, a:f32, b:f32`"""
    @overload
    def cvt_ue8m0(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rz", "rp"] = "rz",
        satfinite: bool = False,
    ) -> Value:
        """d = the magnitudes of the two bf16 of a, rounded to powers of two. `cvt.rnd{.satfinite}.ue8m0x2.bf16x2 d:b16, a:bf16x2`"""
    def cvt_widen(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
        atype: Literal["e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"] = "e4m3x2",
    ) -> Value:
        """d = the two numbers of a, exactly; with .relu max(d, 0), where NaN stays NaN. `cvt.rn{.relu}.f16x2.atype d:f16x2, a:b16`"""
    def cvt_widen_bf16(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
        atype: Literal["e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"] = "e4m3x2",
    ) -> Value:
        """d = the two numbers of a, exactly; with .relu max(d, 0), where NaN stays NaN. `cvt.rn{.relu}.bf16x2.atype d:bf16x2, a:b16`"""
    def cvta(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "const", "local", "param", "param::entry", "shared::cta", "shared::cluster"] = "global",
    ) -> Value:
        """d = the generic address of the address a in space. `cvta.space.u64 d, a`"""
    def cvta_to(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "const", "local", "param", "param::entry", "shared::cta", "shared::cluster"] = "global",
    ) -> Value:
        """d = the address in space of the generic address a. `cvta.to.space.u64 d, a`"""
    def discard(
        self,
        addr: Pointer,
        /,
        *,
        space: Literal["global"] | None = ...,
    ) -> None:
        """The contents of the 128 bytes at addr may be lost: they are undefined from now on (here they stay). `discard{.space}.L2 [addr:u64], 128`"""
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
        """d = a / b, rounded towards zero; all ones when b is 0 (PTX does not define that value; the assembler's code gives it for every width). `div.type d, a, b` type: u32, s32, u64, s64, u16, s16."""
    @overload
    def div(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
    ) -> Value:
        """d = a / b, rounded once. `div.rnd{.ftz}.f32 d, a, b`

        d = a / b, rounded once. `div.rnd.f64 d, a, b`
        """
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
        """d = a / b, approximately; with .approx, a b beyond 2^126 in magnitude gives 0 for finite a and NaN for infinite a. `div.mode{.ftz}.f32 d, a, b`"""
    def dp2a(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["lo", "hi"] = "lo",
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the products of the two halves of a and the two lower (lo) or upper (hi) bytes of b, wrapping around. `dp2a.mode.s32.btype d:s32, a:s32, b:btype, c:s32` btype: s32, u32.

        d = c + the sum of the products of the two halves of a and the two lower (lo) or upper (hi) bytes of b, wrapping around. `dp2a.mode.u32.u32 d:u32, a:u32, b:u32, c:u32`

        d = c + the sum of the products of the two halves of a and the two lower (lo) or upper (hi) bytes of b, wrapping around. `dp2a.mode.u32.s32 d:s32, a:u32, b:s32, c:s32`
        """
    def dp4a(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the products of the four bytes of a and b, wrapping around. `dp4a.s32.btype d:s32, a:s32, b:btype, c:s32` btype: s32, u32.

        d = c + the sum of the products of the four bytes of a and b, wrapping around. `dp4a.u32.u32 d:u32, a:u32, b:u32, c:u32`

        d = c + the sum of the products of the four bytes of a and b, wrapping around. `dp4a.u32.s32 d:s32, a:u32, b:s32, c:s32`
        """
    def elect(
        self,
        membermask: Scalar,
        /,
    ) -> tuple[Value, Value]:
        """d = the lane number of one member (here the lowest); p = whether this lane is that member. `elect.sync d:b32|p:pred, membermask:u32`"""
    @overload
    def ex2(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = 2 to the power of a, approximately. `ex2.approx{.ftz}.f32 d, a`"""
    @overload
    def ex2(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: Literal[True] = True,
        type: ScalarType = ...,
    ) -> Value:
        """d = 2 to the power of a, approximately; subnormal numbers become zero. `ex2.approx.ftz.type d, a` type: bf16, bf16x2.

        d = 2 to the power of a, approximately; subnormal numbers are kept. `ex2.approx.type d, a` type: f16, f16x2.
        """
    def exit(
        self,
    ) -> None:
        """The thread ends. `exit`"""
    def fence(
        self,
        *,
        sem: Literal["acq_rel", "sc", "acquire", "release"] = "acq_rel",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
    ) -> None:
        """Order this thread's memory accesses before the instruction before those after it, for all threads of the scope. `fence.sem.scope`

        Order this thread's memory accesses before the instruction before those after it, for all threads of the scope. `fence.scope`
        """
    def fence_acquire_restricted(
        self,
    ) -> None:
        """Order this thread's accesses before the instruction to the shared memory that the modifier names before those after it, for all threads of the cluster. `fence.acquire.sync_restrict::shared::cluster.cluster`"""
    def fence_mbarrier_init(
        self,
    ) -> None:
        """Make the initialisation of this thread's mbarriers visible to the cluster, after its next barrier. `fence.mbarrier_init.release.cluster`"""
    def fence_proxy(
        self,
        *,
        kind: Literal["alias", "async"] = "alias",
    ) -> None:
        """Order accesses by ordinary instructions and accesses through the proxy. `fence.proxy.kind`"""
    def fence_proxy_async(
        self,
        *,
        space: Literal["global", "shared::cta", "shared::cluster"] = "global",
    ) -> None:
        """Order accesses to the space by ordinary instructions and by asynchronous ones. `fence.proxy.async.space`"""
    def fence_proxy_async_acquire(
        self,
    ) -> None:
        """fence.proxy.async, restricted to accesses that mbarriers of the cluster order: for the threads that wait. `fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster`"""
    def fence_proxy_async_release(
        self,
    ) -> None:
        """fence.proxy.async, restricted to accesses that mbarriers of the cluster order: for the threads that arrive. `fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster`"""
    def fence_proxy_tensormap_acquire(
        self,
        addr: Pointer,
        /,
        *,
        scope: Literal["cta", "cluster", "gpu", "sys"] = "cta",
    ) -> None:
        """Make writes of the tensor map at addr visible to this thread, if a release in the scope came after them. `fence.proxy.tensormap::generic.acquire.scope [addr:u64], 128`"""
    def fence_proxy_tensormap_release(
        self,
        *,
        scope: Literal["cta", "cluster", "gpu", "sys"] = "cta",
    ) -> None:
        """Make this thread's writes of tensor maps visible in the scope, to threads that acquire the maps there. `fence.proxy.tensormap::generic.release.scope`"""
    def fence_release_restricted(
        self,
    ) -> None:
        """Order this thread's accesses before the instruction to the shared memory that the modifier names before those after it, for all threads of the cluster. `fence.release.sync_restrict::shared::cta.cluster`"""
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
        oob: Literal[True] = True,
        relu: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a * b + c, rounded once, but +0 where a or b is 0x7ff7, the NaN that TMA writes outside a tensor, or 0xfff7; with .relu max(d, 0), where NaN stays NaN. `fma.rnd.oob{.relu}.type d, a, b, c` type: f16, f16x2, bf16, bf16x2.

        d = a * b + c, rounded once; with .relu max(d, 0), where NaN stays NaN. `fma.rnd{.relu}.type d, a, b, c` type: bf16, bf16x2.
        """
    def fma_f32x2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
    ) -> Value:
        """d = a * b + c in both halves, each rounded once. `fma.rnd{.ftz}.f32x2 d:b64, a:b64, b:b64, c:b64`"""
    def fma_mixed(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        sat: bool = False,
        abtype: ScalarType = ...,
    ) -> Value:
        """d = a * b + c, with a and b widened first; rounded once. `fma.rnd{.sat}.f32.abtype d:f32, a:abtype, b:abtype, c:f32` abtype: f16, bf16."""
    def fns(
        self,
        mask: Scalar,
        base: Scalar,
        offset: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the position of the |offset|-th one bit of mask, counted from bit base upwards, or downwards if offset is negative; bit base itself counts as the first, and must be one if offset is 0. All ones if there is none, or if base is above 31 (PTX does not define that case). `fns.b32 d, mask, base, offset:s32`"""
    def getctarank(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared::cluster"] | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the rank in the cluster of the CTA whose shared memory a points to; without .shared::cluster, a is a generic address. `getctarank{.space}.type d:u32, a` type: u32, u64."""
    def griddepcontrol_launch_dependents(
        self,
    ) -> None:
        """Let the grids that depend on this one begin, once all its CTAs have executed this instruction or are complete. `griddepcontrol.launch_dependents`"""
    def griddepcontrol_wait(
        self,
    ) -> None:
        """Wait until the grids that this one depends on are complete, and their writes are visible. `griddepcontrol.wait`"""
    def isspacep(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "const", "local", "param", "param::entry", "shared::cta", "shared::cluster"] = "global",
    ) -> Value:
        """p = whether the generic address a points into space. `isspacep.space p:pred, a:u64`"""
    @overload
    def ld(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "param", "const", "local", "shared::cta", "shared::cluster", "param::entry", "param::func"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr; .cop is a hint for caches. `ld.space{.cop}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "param", "const", "local", "shared::cta", "shared::cluster", "param::entry", "param::func"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches. `ld.space{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_evict(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr; .evict and .prefetch are hints for caches. `ld{.weak}{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .evict and .prefetch are hints for caches. `ld{.weak}{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr; .evict and .prefetch are hints for caches. `ld{.weak}{.space}.evict{.prefetch}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_evict(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr; .evict and .prefetch are hints for caches. `ld{.weak}{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .evict and .prefetch are hints for caches. `ld{.weak}{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_generic(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at the generic address addr; .cop is a hint for caches. `ld{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at the generic address addr; .cop is a hint for caches. `ld{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at the generic address addr; .cop is a hint for caches. `ld{.cop}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_generic(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at the generic address addr; .cop is a hint for caches. `ld{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at the generic address addr; .cop is a hint for caches. `ld{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_large(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] = "ca",
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the vector of 32 bytes at addr; .cop is a hint for caches. `ld{.weak}{.space}.cop.vec.type d*vec, [addr:u64]` type: f32, b32, u32, s32.

        d = the vector of 32 bytes at addr; .cop is a hint for caches. `ld{.weak}{.space}.cop.vec.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_large(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] = "ca",
        vec: Literal["v8", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the vector of 32 bytes at addr; .cop is a hint for caches. `ld{.weak}{.space}.cop.vec.type d*vec, [addr:u64]` type: f32, b32, u32, s32.

        d = the vector of 32 bytes at addr; .cop is a hint for caches. `ld{.weak}{.space}.cop.vec.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_large(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        level2: Literal["L2::evict_normal", "L2::evict_first", "L2::evict_last"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the vector of 32 bytes at addr; .evict and .level2 are hints for caches. `ld{.weak}{.space}{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: f32, b32, u32, s32.

        d = the vector of 32 bytes at addr; .evict and .level2 are hints for caches. `ld{.weak}{.space}{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_large(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        level2: Literal["L2::evict_normal", "L2::evict_first", "L2::evict_last"] | None = None,
        vec: Literal["v8", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the vector of 32 bytes at addr; .evict and .level2 are hints for caches. `ld{.weak}{.space}{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: f32, b32, u32, s32.

        d = the vector of 32 bytes at addr; .evict and .level2 are hints for caches. `ld{.weak}{.space}{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    def ld_mmio(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global"] | None = ...,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value at addr, a device's register, which is read exactly once. `ld.mmio.relaxed.sys{.space}.type d, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8, b64, u64, s64, f64, b128."""
    @overload
    def ld_nc(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_nc(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs"] = "ca",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, which no thread writes while the kernel runs. `ld.global.cop.nc{.prefetch}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_nc(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs"] = "ca",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc_large(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        level2: Literal["L2::evict_normal", "L2::evict_first", "L2::evict_last"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the vector of 32 bytes at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: f32, b32, u32, s32.

        d = the vector of 32 bytes at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc_large(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        level2: Literal["L2::evict_normal", "L2::evict_first", "L2::evict_last"] | None = None,
        vec: Literal["v8", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the vector of 32 bytes at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: f32, b32, u32, s32.

        d = the vector of 32 bytes at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}{.level2}.vec.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc_policy(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Var | None = None,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.

        d = the value at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}.L2::cache_hint{.prefetch}.type d, [addr:u64], policy:b64` type: b128.
        """
    @overload
    def ld_nc_policy(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.nc{.evict}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.
        """
    @overload
    def ld_nc_policy(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs"] = "ca",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.

        d = the value at addr, which no thread writes while the kernel runs. `ld.global.cop.nc.L2::cache_hint{.prefetch}.type d, [addr:u64], policy:b64` type: b128.
        """
    @overload
    def ld_nc_policy(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs"] = "ca",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which no thread writes while the kernel runs. `ld.global.cop.nc.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.
        """
    @overload
    def ld_ordered(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; accesses after an .acquire come later. `ld.sem.scope{.space}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; accesses after an .acquire come later. `ld.sem.scope{.space}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, as an access that may race with others of the threads of the scope; accesses after an .acquire come later. `ld.sem.scope{.space}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_ordered(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        sem: Literal["relaxed", "acquire"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; accesses after an .acquire come later. `ld.sem.scope{.space}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; accesses after an .acquire come later. `ld.sem.scope{.space}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_ordered(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and .prefetch are hints for caches. `ld.sem.scope{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and .prefetch are hints for caches. `ld.sem.scope{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .prefetch is a hint for caches. `ld.sem.scope{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .prefetch is a hint for caches. `ld.sem.scope{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, as an access that may race with others of the threads of the scope; .evict and .prefetch are hints for caches. `ld.sem.scope{.space}.evict{.prefetch}.type d, [addr:u64]` type: b128.

        d = the value at addr, as an access that may race with others of the threads of the scope; .prefetch is a hint for caches. `ld.sem.scope{.space}.prefetch.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_ordered(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        sem: Literal["relaxed", "acquire"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and .prefetch are hints for caches. `ld.sem.scope{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and .prefetch are hints for caches. `ld.sem.scope{.space}.evict{.prefetch}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .prefetch is a hint for caches. `ld.sem.scope{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .prefetch is a hint for caches. `ld.sem.scope{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_ordered(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["relaxed", "acquire"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `ld.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `ld.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.

        d = the value at addr, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `ld.sem.scope{.space}{.evict}.L2::cache_hint.type d, [addr:u64], policy:b64` type: b128.
        """
    @overload
    def ld_ordered(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        sem: Literal["relaxed", "acquire"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `ld.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `ld.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.
        """
    @overload
    def ld_policy(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Var | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv", "L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr; .cop, .prefetch and the cache policy are hints for caches. `ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop, .prefetch and the cache policy are hints for caches. `ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.

        d = the value at addr; .cop, .prefetch and the cache policy are hints for caches. `ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}.type d, [addr:u64], policy:b64` type: b128.
        """
    @overload
    def ld_policy(
        self,
        addr: Pointer,
        policy: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv", "L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr; .cop, .prefetch and the cache policy are hints for caches. `ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop, .prefetch and the cache policy are hints for caches. `ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}{.vec}.type d*vec, [addr:u64], policy:b64` type: b64, u64, s64, f64.
        """
    @overload
    def ld_prefetch(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = "L2::64B",
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr; .cop and .prefetch are hints for caches. `ld{.weak}{.space}{.cop}.prefetch{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop and .prefetch are hints for caches. `ld{.weak}{.space}{.cop}.prefetch{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr; .cop and .prefetch are hints for caches. `ld{.weak}{.space}{.cop}.prefetch.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_prefetch(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = "L2::64B",
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr; .cop and .prefetch are hints for caches. `ld{.weak}{.space}{.cop}.prefetch{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; .cop and .prefetch are hints for caches. `ld{.weak}{.space}{.cop}.prefetch{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_volatile(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which is read each time. `ld.volatile{.space}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which is read each time. `ld.volatile{.space}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, which is read each time. `ld.volatile{.space}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_volatile(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which is read each time. `ld.volatile{.space}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which is read each time. `ld.volatile{.space}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_volatile(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global"] | None = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = "L2::64B",
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which is read each time; .prefetch is a hint for caches. `ld.volatile{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which is read each time; .prefetch is a hint for caches. `ld.volatile{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, which is read each time; .prefetch is a hint for caches. `ld.volatile{.space}.prefetch.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_volatile(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global"] | None = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = "L2::64B",
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which is read each time; .prefetch is a hint for caches. `ld.volatile{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which is read each time; .prefetch is a hint for caches. `ld.volatile{.space}.prefetch{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    @overload
    def ld_weak(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global", "shared", "param", "const", "local", "shared::cta", "shared::cluster", "param::entry", "param::func"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr; not ordered against other threads' accesses, just as without .weak. `ld.weak{.space}{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; not ordered against other threads' accesses, just as without .weak. `ld.weak{.space}{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr; not ordered against other threads' accesses, just as without .weak. `ld.weak{.space}{.cop}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ld_weak(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "param", "const", "local", "shared::cta", "shared::cluster", "param::entry", "param::func"] | None = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr; not ordered against other threads' accesses, just as without .weak. `ld.weak{.space}{.cop}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr; not ordered against other threads' accesses, just as without .weak. `ld.weak{.space}{.cop}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
        """
    def ldmatrix(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        num: Literal["x4", "x2", "x1"] = "x4",
        trans: bool = False,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = one, two or four matrices from shared memory, or their transposes. `ldmatrix.sync.aligned.m8n8.num{.trans}{.space}.b16 d:b32*num, [addr:u64]`"""
    def ldmatrix_shape_last(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        num: Literal["x4", "x2", "x1"] = "x4",
        trans: bool = False,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """As ldmatrix, in the other order of its modifiers. `ldmatrix.sync.aligned.num{.trans}.m8n8{.space}.b16 d:b32*num, [addr:u64]`"""
    @overload
    def ldu(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["global"] | None = ...,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the value, or the vector of consecutive values, at addr, which is the same for all threads of the warp and is only read. `ldu{.space}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which is the same for all threads of the warp and is only read. `ldu{.space}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.

        d = the value at addr, which is the same for all threads of the warp and is only read. `ldu{.space}.type d, [addr:u64]` type: b128.
        """
    @overload
    def ldu(
        self,
        addr: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global"] | None = ...,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the value, or the vector of consecutive values, at addr, which is the same for all threads of the warp and is only read. `ldu{.space}{.vec}.type d*vec, [addr:u64]` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        d = the value, or the vector of consecutive values, at addr, which is the same for all threads of the warp and is only read. `ldu{.space}{.vec}.type d*vec, [addr:u64]` type: b64, u64, s64, f64.
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
        """d = any function of three bits: for each bit position, bit 4a + 2b + c of lut. `lop3.b32 d, a, b, c, lut:imm`"""
    def lop3_pred(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        lut: int,
        e: Value,
        /,
        *,
        combine: Literal["or", "and"] = "or",
    ) -> tuple[Value, Value]:
        """d = the result of lop3; p = (d is not 0) <combine> e. `lop3.combine.b32 d|p:pred, a, b, c, lut:imm, e:pred`"""
    @overload
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
    @overload
    def mad(
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
        """d = a * b + c, rounded once: the same as fma. `mad.rnd{.ftz}{.sat}.f32 d, a, b, c`

        d = a * b + c, rounded once: the same as fma. `mad.rnd.f64 d, a, b, c`
        """
    def mad24(
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
        """d = the result of mul24 plus c, wrapping around. `mad24.mode.type d, a, b, c` type: u32, s32."""
    def mad24_sat(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the result of mul24.hi plus c, clamped to the range of s32. `mad24.hi.sat.s32 d, a, b, c`"""
    def mad_cc(
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
        """d = the lower or the upper half of a * b, plus c, wrapping around; the carry flag says whether the unsigned sum wrapped around. `mad.mode.cc.type d, a, b, c` type: u32, s32, u64, s64."""
    def mad_sat(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the upper half of a * b, plus c, clamped to the range of s32. `mad.hi.sat.s32 d, a, b, c`"""
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
    def madc(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["lo", "hi"] = "lo",
        cc: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = the lower or the upper half of a * b, plus c, plus the carry flag, wrapping around; with .cc the carry flag is updated. `madc.mode{.cc}.type d, a, b, c` type: u32, s32, u64, s64."""
    def mapa(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared::cluster"] | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the address, in the CTA of rank b of the cluster, of the byte of shared memory that a is the address of; without .shared::cluster, both are generic addresses. `mapa{.space}.type d, a, b:u32` type: u32, u64."""
    def match_all(
        self,
        a: Scalar,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = one bit for each member if all have the same a, else 0. `match.all.sync.type d:b32, a, membermask:u32` type: b32, b64."""
    def match_all_pred(
        self,
        a: Scalar,
        membermask: Scalar,
        /,
        *,
        type: ScalarType = ...,
    ) -> tuple[Value, Value]:
        """d = one bit for each member if all have the same a, else 0; p = whether all have the same a. `match.all.sync.type d:b32|p:pred, a, membermask:u32` type: b32, b64."""
    def match_any(
        self,
        a: Scalar,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = one bit for each member that has the same a as this lane. `match.any.sync.type d:b32, a, membermask:u32` type: b32, b64."""
    @overload
    def max(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        NaN: bool = False,
        abs: bool = False,
    ) -> Value:
        """d = the larger of a, b and c (-0 < +0), or with .abs of their magnitudes; a NaN is ignored, or with .NaN makes d NaN. `max{.ftz}{.NaN}{.abs}.f32 d, a, b, c`"""
    @overload
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

        d = the larger of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or with .NaN makes d NaN. `max{.ftz}{.NaN}.xorsign.abs.type d, a, b` type: f16, f16x2.

        d = the larger of a and b. `max.type d, a, b` type: u32, s32, u64, s64, u16, s16.

        d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `max{.ftz}{.NaN}.f32 d, a, b`

        d = the larger of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or with .NaN makes d NaN. `max{.ftz}{.NaN}.xorsign.abs.f32 d, a, b`

        d = the larger of a and b (-0 < +0); a NaN is ignored. `max.f64 d, a, b`

        d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `max{.NaN}.type d, a, b` type: bf16, bf16x2.

        d = the larger of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or with .NaN makes d NaN. `max{.NaN}.xorsign.abs.type d, a, b` type: bf16, bf16x2.
        """
    def max_relu(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the larger of a and b, at least 0. `max.relu.s32 d, a, b`

        d = the larger of a and b, at least 0. `max.s32.relu d:s32, a:s32, b:s32`
        """
    def max_s16x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
    ) -> Value:
        """d = the larger of a and b in each of the two 16-bit halves, with .relu at least 0. `max{.relu}.s16x2 d:b32, a:b32, b:b32`"""
    def max_s16x2_relu(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the larger of a and b in each of the two 16-bit halves, at least 0 (the other order of the modifiers, which CUDA's headers write). `max.s16x2.relu d:b32, a:b32, b:b32`"""
    def max_u16x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the larger of a and b in each of the two 16-bit halves. `max.u16x2 d:b32, a:b32, b:b32`"""
    def mbarrier_arrive(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive; d = the state before, for a later wait. `mbarrier.arrive{.space}.b64 d:b64, [addr:u64]`"""
    def mbarrier_arrive_count(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive count times; d = the state before, for a later wait. `mbarrier.arrive{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_count_ordered(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release", "relaxed"] = "release",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive count times; d = the state before, for a later wait. `mbarrier.arrive.sem.scope{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_drop(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive, for the last time; d = the state before, for a later wait. `mbarrier.arrive_drop{.space}.b64 d:b64, [addr:u64]`"""
    def mbarrier_arrive_drop_count(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive count times, for the last time; d = the state before, for a later wait. `mbarrier.arrive_drop{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_drop_count_ordered(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release", "relaxed"] = "release",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive count times, for the last time; d = the state before, for a later wait. `mbarrier.arrive_drop.sem.scope{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_drop_expect_tx(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Have the phase wait for tx more bytes and arrive, for the last time; d = the state before, for a later wait. `mbarrier.arrive_drop.expect_tx{.space}.b64 d:b64, [addr:u64], tx:u32`"""
    def mbarrier_arrive_drop_expect_tx_ordered(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release", "relaxed"] = "release",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Have the phase wait for tx more bytes and arrive, for the last time; d = the state before, for a later wait. `mbarrier.arrive_drop.expect_tx.sem.scope{.space}.b64 d:b64, [addr:u64], tx:u32`"""
    def mbarrier_arrive_drop_noComplete(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Arrive count times for the last time, which does not complete the phase; d = the state before, for a later wait. `mbarrier.arrive_drop.noComplete{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_drop_noComplete_ordered(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release"] = "release",
        scope: Literal["cta"] = "cta",
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Arrive count times for the last time, which does not complete the phase; d = the state before, for a later wait. `mbarrier.arrive_drop.noComplete.sem.scope{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_drop_ordered(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release", "relaxed"] = "release",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive, for the last time; d = the state before, for a later wait. `mbarrier.arrive_drop.sem.scope{.space}.b64 d:b64, [addr:u64]`"""
    def mbarrier_arrive_expect_tx(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Have the phase wait for tx more bytes and arrive; d = the state before, for a later wait. `mbarrier.arrive.expect_tx{.space}.b64 d:b64, [addr:u64], tx:u32`"""
    def mbarrier_arrive_expect_tx_ordered(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release", "relaxed"] = "release",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Have the phase wait for tx more bytes and arrive; d = the state before, for a later wait. `mbarrier.arrive.expect_tx.sem.scope{.space}.b64 d:b64, [addr:u64], tx:u32`"""
    def mbarrier_arrive_noComplete(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Arrive count times, which does not complete the phase; d = the state before, for a later wait. `mbarrier.arrive.noComplete{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_noComplete_ordered(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release"] = "release",
        scope: Literal["cta"] = "cta",
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Arrive count times, which does not complete the phase; d = the state before, for a later wait. `mbarrier.arrive.noComplete.sem.scope{.space}.b64 d:b64, [addr:u64], count:u32`"""
    def mbarrier_arrive_ordered(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        sem: Literal["release", "relaxed"] = "release",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> Value:
        """Arrive; d = the state before, for a later wait. `mbarrier.arrive.sem.scope{.space}.b64 d:b64, [addr:u64]`"""
    def mbarrier_complete_tx(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> None:
        """Count tx bytes as copied at an mbarrier, without copying any. `mbarrier.complete_tx{.space}.b64 [addr:u64], tx:u32`"""
    def mbarrier_complete_tx_ordered(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        sem: Literal["relaxed"] = "relaxed",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> None:
        """Count tx bytes as copied at an mbarrier, without copying any. `mbarrier.complete_tx.sem.scope{.space}.b64 [addr:u64], tx:u32`"""
    def mbarrier_expect_tx(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> None:
        """Have the phase wait for tx more bytes. `mbarrier.expect_tx{.space}.b64 [addr:u64], tx:u32`"""
    def mbarrier_expect_tx_ordered(
        self,
        addr: Pointer,
        tx: Scalar,
        /,
        *,
        sem: Literal["relaxed"] = "relaxed",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta", "shared::cluster"] | None = ...,
    ) -> None:
        """Have the phase wait for tx more bytes. `mbarrier.expect_tx.sem.scope{.space}.b64 [addr:u64], tx:u32`"""
    def mbarrier_init(
        self,
        addr: Pointer,
        count: Scalar,
        /,
        *,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> None:
        """Initialise an mbarrier whose phases each wait for count arrivals. `mbarrier.init{.space}.b64 [addr:u64], count:u32`"""
    def mbarrier_inval(
        self,
        addr: Pointer,
        /,
        *,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> None:
        """Invalidate an mbarrier, so that its memory may be used for other data. `mbarrier.inval{.space}.b64 [addr:u64]`"""
    def mbarrier_pending_count(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the number of arrivals that the phase waited for in the state a. `mbarrier.pending_count.b64 d:u32, a:b64`"""
    def mbarrier_test_wait(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """p = whether the phase that the state a belongs to is complete. `mbarrier.test_wait{.space}.b64 p:pred, [addr:u64], a:b64`"""
    def mbarrier_test_wait_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["acquire", "relaxed"] = "acquire",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """p = whether the phase that the state a belongs to is complete. `mbarrier.test_wait.sem.scope{.space}.b64 p:pred, [addr:u64], a:b64`"""
    def mbarrier_test_wait_parity(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """p = whether the phase of parity a is complete: the current one, or the one before. `mbarrier.test_wait.parity{.space}.b64 p:pred, [addr:u64], a:u32`"""
    def mbarrier_test_wait_parity_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        sem: Literal["acquire", "relaxed"] = "acquire",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """p = whether the phase of parity a is complete: the current one, or the one before. `mbarrier.test_wait.parity.sem.scope{.space}.b64 p:pred, [addr:u64], a:u32`"""
    def mbarrier_try_wait(
        self,
        addr: Pointer,
        a: Scalar,
        hint: Scalar = ...,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Wait until the phase that the state a belongs to is complete, at most for about hint nanoseconds; p = whether it is complete. `mbarrier.try_wait{.space}.b64 p:pred, [addr:u64], a:b64{, hint:u32}`"""
    def mbarrier_try_wait_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        hint: Scalar = ...,
        /,
        *,
        into: Var | None = None,
        sem: Literal["acquire", "relaxed"] = "acquire",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Wait until the phase that the state a belongs to is complete, at most for about hint nanoseconds; p = whether it is complete. `mbarrier.try_wait.sem.scope{.space}.b64 p:pred, [addr:u64], a:b64{, hint:u32}`"""
    def mbarrier_try_wait_parity(
        self,
        addr: Pointer,
        a: Scalar,
        hint: Scalar = ...,
        /,
        *,
        into: Var | None = None,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Wait until the phase of parity a (the current one, or the one before) is complete, at most for about hint nanoseconds; p = whether it is complete. `mbarrier.try_wait.parity{.space}.b64 p:pred, [addr:u64], a:u32{, hint:u32}`"""
    def mbarrier_try_wait_parity_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        hint: Scalar = ...,
        /,
        *,
        into: Var | None = None,
        sem: Literal["acquire", "relaxed"] = "acquire",
        scope: Literal["cta", "cluster"] = "cta",
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> Value:
        """Wait until the phase of parity a (the current one, or the one before) is complete, at most for about hint nanoseconds; p = whether it is complete. `mbarrier.try_wait.parity.sem.scope{.space}.b64 p:pred, [addr:u64], a:u32{, hint:u32}`"""
    def membar(
        self,
        *,
        level: Literal["cta", "gl", "sys"] = "cta",
    ) -> None:
        """Order this thread's memory accesses before the instruction before those after it, for the block, the GPU (gl) or the system. `membar.level`"""
    @overload
    def min(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        NaN: bool = False,
        abs: bool = False,
    ) -> Value:
        """d = the smaller of a, b and c (-0 < +0), or with .abs of their magnitudes; a NaN is ignored, or with .NaN makes d NaN. `min{.ftz}{.NaN}{.abs}.f32 d, a, b, c`"""
    @overload
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

        d = the smaller of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or with .NaN makes d NaN. `min{.ftz}{.NaN}.xorsign.abs.type d, a, b` type: f16, f16x2.

        d = the smaller of a and b. `min.type d, a, b` type: u32, s32, u64, s64, u16, s16.

        d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `min{.ftz}{.NaN}.f32 d, a, b`

        d = the smaller of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or with .NaN makes d NaN. `min{.ftz}{.NaN}.xorsign.abs.f32 d, a, b`

        d = the smaller of a and b (-0 < +0); a NaN is ignored. `min.f64 d, a, b`

        d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN. `min{.NaN}.type d, a, b` type: bf16, bf16x2.

        d = the smaller of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or with .NaN makes d NaN. `min{.NaN}.xorsign.abs.type d, a, b` type: bf16, bf16x2.
        """
    def min_relu(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the smaller of a and b, at least 0. `min.relu.s32 d, a, b`

        d = the smaller of a and b, at least 0. `min.s32.relu d:s32, a:s32, b:s32`
        """
    def min_s16x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        relu: bool = False,
    ) -> Value:
        """d = the smaller of a and b in each of the two 16-bit halves, with .relu at least 0. `min{.relu}.s16x2 d:b32, a:b32, b:b32`"""
    def min_s16x2_relu(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the smaller of a and b in each of the two 16-bit halves, at least 0 (the other order of the modifiers, which CUDA's headers write). `min.s16x2.relu d:b32, a:b32, b:b32`"""
    def min_u16x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the smaller of a and b in each of the two 16-bit halves. `min.u16x2 d:b32, a:b32, b:b32`"""
    def mma_bits(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k256", "m16n8k128", "m8n8k128"] = "m16n8k256",
        op: Literal["xor", "and"] = "xor",
    ) -> tuple[Value, ...]:
        """D = C + the number of ones in each row of A xor (and) each column of B, of a warp. `mma.sync.aligned.shape.row.col.s32.b1.b1.s32.op.popc d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc`"""
    def mma_block_scale_mxf4(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        scales_a: Scalar,
        from_a: Sequence[Scalar],
        scales_b: Scalar,
        from_b: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        vec: None = None,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, where scales in ue8m0 multiply blocks of A and B along K; from_a and from_b are the numbers of the byte and of the thread of each four that have the scales. `mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale{.vec}.f32.e2m1.e2m1.f32.ue8m0 d:f32*4, a:b32*4, b:b32*2, c:f32*4, scales_a:b32, from_a:u16*2, scales_b:b32, from_b:u16*2`"""
    def mma_block_scale_mxf4nvf4(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        scales_a: Scalar,
        from_a: Sequence[Scalar],
        scales_b: Scalar,
        from_b: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        vec: None = None,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, where scales in ue8m0 multiply blocks of A and B along K; from_a and from_b are the numbers of the byte and of the thread of each four that have the scales. `mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.vec.f32.e2m1.e2m1.f32.ue8m0 d:f32*4, a:b32*4, b:b32*2, c:f32*4, scales_a:b32, from_a:u16*2, scales_b:b32, from_b:u16*2`

        D = A * B + C of a warp, where scales in ue4m3 multiply blocks of A and B along K; from_a and from_b are the numbers of the byte and of the thread of each four that have the scales. `mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.vec.f32.e2m1.e2m1.f32.ue4m3 d:f32*4, a:b32*4, b:b32*2, c:f32*4, scales_a:b32, from_a:u16*2, scales_b:b32, from_b:u16*2`
        """
    def mma_block_scale_mxf8f6f4(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        scales_a: Scalar,
        from_a: Sequence[Scalar],
        scales_b: Scalar,
        from_b: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        vec: None = None,
        atype: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3",
        btype: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, where scales in ue8m0 multiply blocks of A and B along K; from_a and from_b are the numbers of the byte and of the thread of each four that have the scales. `mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale{.vec}.f32.atype.btype.f32.ue8m0 d:f32*4, a:b32*4, b:b32*2, c:f32*4, scales_a:b32, from_a:u16*2, scales_b:b32, from_b:u16*2`"""
    def mma_f16_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k16", "m16n8k8"] = "m16n8k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, all in f16. `mma.sync.aligned.shape.row.col.f16.f16.f16.f16 d:b32*nc, a:b32*na, b:b32*nb, c:b32*nc`"""
    def mma_f16_fp8(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k32", "m16n8k16"] = "m16n8k32",
        atype: Literal["e4m3", "e5m2"] = "e4m3",
        btype: Literal["e4m3", "e5m2"] = "e4m3",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in fp8, C and D in f16. `mma.sync.aligned.shape.row.col.f16.atype.btype.f16 d:b32*nc, a:b32*na, b:b32*nb, c:b32*nc`"""
    def mma_f32_bf16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k16", "m16n8k8"] = "m16n8k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in bf16, C and D in f32. `mma.sync.aligned.shape.row.col.f32.bf16.bf16.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc`"""
    def mma_f32_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k16", "m16n8k8"] = "m16n8k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in f16, C and D in f32. `mma.sync.aligned.shape.row.col.f32.f16.f16.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc`"""
    def mma_f32_fp8(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k32", "m16n8k16"] = "m16n8k32",
        atype: Literal["e4m3", "e5m2"] = "e4m3",
        btype: Literal["e4m3", "e5m2"] = "e4m3",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in fp8, C and D in f32. `mma.sync.aligned.shape.row.col.f32.atype.btype.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc`"""
    def mma_f32_tf32(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k8", "m16n8k4"] = "m16n8k8",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in tf32 (the low 13 bits are ignored), C and D in f32. `mma.sync.aligned.shape.row.col.f32.tf32.tf32.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc`"""
    def mma_f64(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"] = "m8n8k4",
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says. `mma.sync.aligned.shape.row.col{.rnd}.f64.f64.f64.f64 d:f64*nc, a:f64*na, b:f64*nb, c:f64*nc`"""
    def mma_f8f6f4_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        atype: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3",
        btype: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; each element of A and B is in a byte, C and D in f16. `mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16.atype.btype.f16 d:b32*2, a:b32*4, b:b32*2, c:b32*2`"""
    def mma_f8f6f4_f32(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        atype: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3",
        btype: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; each element of A and B is in a byte, C and D in f32. `mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.atype.btype.f32 d:f32*4, a:b32*4, b:b32*2, c:f32*4`"""
    def mma_int4(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k64", "m16n8k32", "m8n8k32"] = "m16n8k64",
        satfinite: bool = False,
        atype: Literal["s4", "u4"] = "s4",
        btype: Literal["s4", "u4"] = "s4",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in 4-bit integers, C and D in s32, which wraps around or saturates. `mma.sync.aligned.shape.row.col{.satfinite}.s32.atype.btype.s32 d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc`"""
    def mma_int8(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m16n8k32", "m16n8k16", "m8n8k16"] = "m16n8k32",
        satfinite: bool = False,
        atype: Literal["s8", "u8"] = "s8",
        btype: Literal["s8", "u8"] = "s8",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in 8-bit integers, C and D in s32, which wraps around or saturates. `mma.sync.aligned.shape.row.col{.satfinite}.s32.atype.btype.s32 d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc`"""
    def mma_quad_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
    ) -> tuple[Value, ...]:
        """D = A * B + C in each quarter of a warp, all in f16. `mma.sync.aligned.m8n8k4.alayout.blayout.f16.f16.f16.f16 d:b32*4, a:b32*2, b:b32*2, c:b32*4`"""
    def mma_quad_f32(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
    ) -> tuple[Value, ...]:
        """D = A * B + C in each quarter of a warp; A and B in f16, C and D in f32. `mma.sync.aligned.m8n8k4.alayout.blayout.f32.f16.f16.f32 d:f32*8, a:b32*2, b:b32*2, c:f32*8`"""
    def mma_quad_f32_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
    ) -> tuple[Value, ...]:
        """D = A * B + C in each quarter of a warp; A, B and C in f16, D in f32. `mma.sync.aligned.m8n8k4.alayout.blayout.f32.f16.f16.f16 d:f32*8, a:b32*2, b:b32*2, c:b32*4`"""
    def mov(
        self,
        a: Scalar | ir.Special | ir.Symbol,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a: a register, a literal, a special register, or the address of a variable. `mov.type d, a` type: u32, s32, u64, s64, f32, f64, b32, b64, u16, s16, b16, pred, b128."""
    @overload
    def mov_vector(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a: all elements of a vector. `mov.vec.type d*vec, a*vec` type: u32, s32, f32, b32, u16, s16, b16.

        d = a: all elements of a vector. `mov.vec.type d*vec, a*vec` type: u64, s64, f64, b64.
        """
    @overload
    def mov_vector(
        self,
        a: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a: all elements of a vector. `mov.vec.type d*vec, a*vec` type: u32, s32, f32, b32, u16, s16, b16.

        d = a: all elements of a vector. `mov.vec.type d*vec, a*vec` type: u64, s64, f64, b64.
        """
    def movmatrix(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
    ) -> Value:
        """d = the fragment of the transpose of the matrix whose fragment is a. `movmatrix.sync.aligned.m8n8.trans.b16 d:b32, a:b32`"""
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
        """d = the lower or the upper half of a * b. `mul.mode.type d, a, b` type: u32, s32, u64, s64, u16, s16.

        d = a * b, rounded once, to nearest. `mul.f64 d, a, b`

        d = a * b, rounded once. `mul.type d, a, b` type: bf16, bf16x2.
        """
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

        d = a * b, rounded once, to nearest. `mul{.ftz}{.sat}.f32 d, a, b`
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

        d = a * b, rounded once. `mul{.ftz}{.sat}.type d, a, b` type: f16, f16x2.

        d = a * b, rounded once. `mul.rnd.type d, a, b` type: bf16, bf16x2.
        """
    def mul24(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["lo", "hi"] = "lo",
        type: ScalarType = ...,
    ) -> Value:
        """d = the lower 32 (lo) or the upper 32 (hi) of the 48 bits of the product of the lowest 24 bits of a and of b; the upper eight bits of a and b are ignored. `mul24.mode.type d, a, b` type: u32, s32."""
    def mul_f32x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = a * b in both halves, each rounded once, to nearest by default. `mul{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64`"""
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
    def nanosleep(
        self,
        a: Scalar,
        /,
    ) -> None:
        """Suspend the thread for about a nanoseconds, at most twice as long; changes no value. `nanosleep.u32 a`"""
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

        d = -a; the most negative number is its own negative. `neg.type d, a` type: s32, s64, s16.

        d = -a. `neg.type d, a` type: bf16, bf16x2.

        d = -a. `neg{.ftz}.f32 d, a`

        d = -a. `neg.f64 d, a`
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
        """d = the concatenated elements of a, the first in the lowest bits. `mov.b32 d, a:b16*2`

        d = the concatenated elements of a, the first in the lowest bits. `mov.b64 d, a:b32*2`

        d = the concatenated elements of a, the first in the lowest bits. `mov.b64 d, a:b16*4`

        d = the concatenated elements of a, the first in the lowest bits. `mov.b32 d, a:byte*4`

        d = the concatenated elements of a, the first in the lowest bits. `mov.b16 d, a:byte*2`

        d = the concatenated elements of a, the first in the lowest bits. `mov.b128 d, a:b64*2`
        """
    def pmevent(
        self,
        n: int,
        /,
    ) -> None:
        """Count performance event n, 0 to 15; changes no value. `pmevent n:imm`"""
    def pmevent_mask(
        self,
        n: int,
        /,
    ) -> None:
        """Count the performance events whose bits are set in n, 16 bits; changes no value. `pmevent.mask n:imm`"""
    def popc(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the number of one bits of a. `popc.type d:u32, a` type: b32, b64."""
    def prefetch(
        self,
        addr: Pointer,
        /,
        *,
        level: Literal["L1", "L2", "L2::evict_last", "L2::evict_normal"] = "L1",
    ) -> None:
        """Bring the line at addr into the cache; changes no value. `prefetch.global.level [addr:u64]`"""
    def prefetch_generic(
        self,
        addr: Pointer,
        /,
        *,
        level: Literal["L1", "L2", "L2::evict_last", "L2::evict_normal"] = "L1",
    ) -> None:
        """Bring the line at the generic address addr into the cache; changes no value. `prefetch.level [addr:u64]`"""
    def prefetch_local(
        self,
        addr: Pointer,
        /,
        *,
        level: Literal["L1", "L2"] = "L1",
    ) -> None:
        """Bring the line at addr into the cache; changes no value. `prefetch.local.level [addr:u64]`"""
    def prefetch_tensormap(
        self,
        addr: Pointer,
        /,
        *,
        space: Literal["param", "const"] | None = ...,
    ) -> None:
        """Bring the tensor map at addr into a nearer cache: a hint. `prefetch{.space}.tensormap [addr:u64]`"""
    def prefetchu(
        self,
        addr: Pointer,
        /,
    ) -> None:
        """Bring the line at the generic address addr into the uniform cache; changes no value. `prefetchu.L1 [addr:u64]`"""
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
        """d = four bytes of the eight bytes b:a, each selected by a nibble of c (whose top bit replicates the byte's sign) or by mode and c. `prmt.b32{.mode} d:b32, a:b32, b:b32, c:b32`"""
    def rcp(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = 1 / a, approximately. `rcp.approx{.ftz}.f32 d, a`

        d = 1 / a, to the 21 bits of its upper word. `rcp.approx.ftz.f64 d, a`
        """
    def rcp_rn(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
        ftz: bool = False,
    ) -> Value:
        """d = 1 / a, rounded once. `rcp.rnd{.ftz}.f32 d, a`

        d = 1 / a, rounded once. `rcp.rnd.f64 d, a`
        """
    @overload
    def red(
        self,
        addr: Pointer,
        b: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: u32, s32, u64, f32, f64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: u32, s32, u64, s64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: u32.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.space.op.type [addr:u64], b` type: b32, b64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.op.type [addr:u64], b` type: u32, s32, u64, f32, f64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.op.type [addr:u64], b` type: u32, s32, u64, s64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.op.type [addr:u64], b` type: u32.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}.op.type [addr:u64], b` type: b32, b64.

        The value at addr becomes old + b in one step (separately for each half of a pair). `red{.sem}{.scope}.space.add.noftz.type [addr:u64], b` type: f16x2, f16, bf16, bf16x2.

        The value at addr becomes old + b in one step (separately for each half of a pair). `red{.sem}{.scope}.add.noftz.type [addr:u64], b` type: f16x2, f16, bf16, bf16x2.
        """
    @overload
    def red(
        self,
        addr: Pointer,
        b: Scalar,
        policy: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}{.space}.op.L2::cache_hint.type [addr:u64], b, policy:b64` type: u32, s32, u64, f32, f64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}{.space}.op.L2::cache_hint.type [addr:u64], b, policy:b64` type: u32, s32, u64, s64.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}{.space}.op.L2::cache_hint.type [addr:u64], b, policy:b64` type: u32.

        The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b). `red{.sem}{.scope}{.space}.op.L2::cache_hint.type [addr:u64], b, policy:b64` type: b32, b64.

        The value at addr becomes old + b in one step (separately for each half of a pair). `red{.sem}{.scope}{.space}.add.noftz.L2::cache_hint.type [addr:u64], b, policy:b64` type: f16x2, f16, bf16, bf16x2.
        """
    @overload
    def red(
        self,
        addr: Pointer,
        b: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.vec.type [addr:u64], b*vec` type: f32.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.vec.type [addr:u64], b*vec` type: f16, bf16.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.vec.type [addr:u64], b*vec` type: f16x2, bf16x2.
        """
    @overload
    def red(
        self,
        addr: Pointer,
        b: Sequence[Scalar],
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: Literal["v2", "v4", "v8"],
        type: ScalarType = ...,
    ) -> None:
        """Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.vec.type [addr:u64], b*vec` type: f32.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.vec.type [addr:u64], b*vec` type: f16, bf16.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.vec.type [addr:u64], b*vec` type: f16x2, bf16x2.
        """
    @overload
    def red(
        self,
        addr: Pointer,
        b: Scalar,
        policy: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64` type: f32.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64` type: f16, bf16.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64` type: f16x2, bf16x2.
        """
    @overload
    def red(
        self,
        addr: Pointer,
        b: Sequence[Scalar],
        policy: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] | None = None,
        scope: Literal["cta", "gpu", "sys", "cluster"] | None = None,
        space: Literal["global"] | None = ...,
        op: Literal["add", "min", "max"] = "add",
        vec: Literal["v2", "v4", "v8"],
        type: ScalarType = ...,
    ) -> None:
        """Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64` type: f32.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64` type: f16, bf16.

        Each element: The value at addr becomes op(old, b) in one step. `red{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64` type: f16x2, bf16x2.
        """
    def red_async_add(
        self,
        dst: Pointer,
        a: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["add"] = "add",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the value at dst, in a CTA of the cluster, with a; the mbarrier at mbar in that CTA counts the bytes. `red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type [dst:u32], a, [mbar:u32]` type: u32, s32, u64."""
    def red_async_and(
        self,
        dst: Pointer,
        a: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the value at dst, in a CTA of the cluster, with a; the mbarrier at mbar in that CTA counts the bytes. `red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type [dst:u32], a, [mbar:u32]` type: b32."""
    def red_async_inc(
        self,
        dst: Pointer,
        a: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["inc", "dec"] = "inc",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the value at dst, in a CTA of the cluster, with a; the mbarrier at mbar in that CTA counts the bytes. `red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type [dst:u32], a, [mbar:u32]` type: u32."""
    def red_async_min(
        self,
        dst: Pointer,
        a: Scalar,
        mbar: Pointer,
        /,
        *,
        op: Literal["min", "max"] = "min",
        type: ScalarType = ...,
    ) -> None:
        """Start combining the value at dst, in a CTA of the cluster, with a; the mbarrier at mbar in that CTA counts the bytes. `red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type [dst:u32], a, [mbar:u32]` type: u32, s32."""
    @overload
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

        d = the values of a of all members, combined bit by bit. `redux.sync.op.type d, a, membermask:u32` type: b32.
        """
    @overload
    def redux(
        self,
        a: Scalar,
        membermask: Scalar,
        /,
        *,
        into: Var | None = None,
        op: Literal["min", "max"] = "min",
        abs: bool = False,
        NaN: bool = False,
    ) -> Value:
        """d = the smallest or the largest a, or |a|, of all members; a NaN is ignored, or with .NaN makes d NaN. `redux.sync.op{.abs}{.NaN}.f32 d, a, membermask:u32`"""
    def rem(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a - b * (a / b), which has the sign of a; all ones when b is 0, as for div. `rem.type d, a, b` type: u32, s32, u64, s64, u16, s16."""
    def ret(
        self,
        *,
        uni: bool = False,
    ) -> None:
        """Return from the function to its caller; in a kernel the thread ends. `ret{.uni}`"""
    def rsqrt(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = 1 / the square root of a, approximately; a zero gives an infinity of its sign, a negative number NaN. `rsqrt.approx{.ftz}.f32 d, a`

        d = 1 / the square root of a, approximately; a zero gives an infinity of its sign, a negative number NaN. `rsqrt.approx.f64 d, a`

        d = 1 / the square root of a, to the 21 bits of its upper word. `rsqrt.approx.ftz.f64 d, a`
        """
    def sad(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = c + |a - b|, wrapping around. `sad.type d, a, b, c` type: u32, s32, u64, s64, u16, s16."""
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
    def set_(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        dtype: ScalarType = ...,
        stype: ScalarType = ...,
    ) -> Value:
        """d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: u32, s32, f32. stype: u32, s32, u64, s64, u16, s16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: u32, s32, f32. stype: u32, u64, u16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: u32, s32, f32. stype: b32, b64, b16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: f16. stype: u32, s32, u64, s64, u16, s16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: f16. stype: u32, u64, u16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: f16. stype: b32, b64, b16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: bf16. stype: u32, s32, u64, s64, u16, s16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: bf16. stype: u32, u64, u16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: bf16. stype: b32, b64, b16.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: u32, s32, f32. stype: f64.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: f16. stype: f64.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.stype d:dtype, a:stype, b:stype` dtype: bf16. stype: bf16, f16, f32, f64.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp.dtype.bf16 d:dtype, a:bf16, b:bf16` dtype: u16, s16, u32, s32.

        Each half of d = 1.0, or all ones of an integer type, if a <cmp> b in that half, else 0. `set.cmp.dtype.bf16x2 d:dtype, a:bf16x2, b:bf16x2` dtype: bf16x2, u32, s32.
        """
    @overload
    def set_(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        ftz: bool = False,
        dtype: ScalarType = ...,
        stype: ScalarType = ...,
    ) -> Value:
        """d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp{.ftz}.dtype.stype d:dtype, a:stype, b:stype` dtype: u32, s32, f32. stype: f32.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp{.ftz}.dtype.stype d:dtype, a:stype, b:stype` dtype: f16. stype: f16, f32.

        d = 1.0, or all ones of an integer type, if a <cmp> b, else 0. `set.cmp{.ftz}.dtype.f16 d:dtype, a:f16, b:f16` dtype: u16, s16, u32, s32.

        Each half of d = 1.0, or all ones of an integer type, if a <cmp> b in that half, else 0. `set.cmp{.ftz}.dtype.f16x2 d:dtype, a:f16x2, b:f16x2` dtype: f16x2, u32, s32.
        """
    @overload
    def set_with(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        dtype: ScalarType = ...,
        stype: ScalarType = ...,
    ) -> Value:
        """d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: u32, s32, f32. stype: u32, s32, u64, s64, u16, s16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: u32, s32, f32. stype: u32, u64, u16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: u32, s32, f32. stype: b32, b64, b16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: f16. stype: u32, s32, u64, s64, u16, s16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: f16. stype: u32, u64, u16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: f16. stype: b32, b64, b16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: bf16. stype: u32, s32, u64, s64, u16, s16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: bf16. stype: u32, u64, u16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: bf16. stype: b32, b64, b16.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: u32, s32, f32. stype: f64.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: f16. stype: f64.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: bf16. stype: bf16, f16, f32, f64.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine.dtype.bf16 d:dtype, a:bf16, b:bf16, c:pred` dtype: u16, s16, u32, s32.

        Each half of d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c in that half, else 0. `set.cmp.combine.dtype.bf16x2 d:dtype, a:bf16x2, b:bf16x2, c:pred` dtype: bf16x2, u32, s32.
        """
    @overload
    def set_with(
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
        dtype: ScalarType = ...,
        stype: ScalarType = ...,
    ) -> Value:
        """d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine{.ftz}.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: u32, s32, f32. stype: f32.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine{.ftz}.dtype.stype d:dtype, a:stype, b:stype, c:pred` dtype: f16. stype: f16, f32.

        d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0. `set.cmp.combine{.ftz}.dtype.f16 d:dtype, a:f16, b:f16, c:pred` dtype: u16, s16, u32, s32.

        Each half of d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c in that half, else 0. `set.cmp.combine{.ftz}.dtype.f16x2 d:dtype, a:f16x2, b:f16x2, c:pred` dtype: f16x2, u32, s32.
        """
    def setmaxnreg(
        self,
        count: int,
        /,
        *,
        action: Literal["inc", "dec"] = "inc",
    ) -> None:
        """Give each thread of this warp count registers: fewer than before, or more, once the block has enough free ones. `setmaxnreg.action.sync.aligned.u32 count:imm`"""
    @overload
    def setp(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"] = "eq",
        type: ScalarType = ...,
    ) -> Value:
        """p = a <cmp> b. `setp.cmp.type p:pred, a, b` type: u32, s32, u64, s64, u16, s16.

        p = a <cmp> b. `setp.cmp.type p:pred, a, b` type: u32, u64, u16.

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
        """p = a <cmp> b. `setp.cmp{.ftz}.f32 p:pred, a, b`

        p = a <cmp> b. `setp.cmp{.ftz}.f16 p:pred, a, b`

        p = a <cmp> b. `setp.cmp.f64 p:pred, a, b`

        p = a <cmp> b. `setp.cmp.bf16 p:pred, a, b`
        """
    @overload
    def setp_pair(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"] = "eq",
        type: ScalarType = ...,
    ) -> tuple[Value, Value]:
        """p = a <cmp> b; q = not p. `setp.cmp.type p:pred|q:pred, a, b` type: u32, s32, u64, s64, u16, s16.

        p = a <cmp> b; q = not p. `setp.cmp.type p:pred|q:pred, a, b` type: u32, u64, u16.

        p = a <cmp> b; q = not p. `setp.cmp.type p:pred|q:pred, a, b` type: b32, b64, b16.
        """
    @overload
    def setp_pair(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        ftz: bool = False,
    ) -> tuple[Value, Value]:
        """p = a <cmp> b; q = not p. `setp.cmp{.ftz}.f32 p:pred|q:pred, a, b`

        p = a <cmp> b for the lower halves; q = a <cmp> b for the upper halves. `setp.cmp{.ftz}.f16x2 p:pred|q:pred, a, b`

        p = a <cmp> b; q = not p. `setp.cmp.f64 p:pred|q:pred, a, b`

        p = a <cmp> b for the lower halves; q = a <cmp> b for the upper halves. `setp.cmp.bf16x2 p:pred|q:pred, a, b`
        """
    @overload
    def setp_pair_with(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> tuple[Value, Value]:
        """p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred|q:pred, a, b, c:pred` type: u32, s32, u64, s64, u16, s16.

        p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred|q:pred, a, b, c:pred` type: u32, u64, u16.

        p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred|q:pred, a, b, c:pred` type: b32, b64, b16.
        """
    @overload
    def setp_pair_with(
        self,
        a: Scalar,
        b: Scalar,
        c: Value,
        /,
        *,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        ftz: bool = False,
    ) -> tuple[Value, Value]:
        """p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c. `setp.cmp.combine{.ftz}.f32 p:pred|q:pred, a, b, c:pred`

        p = (a <cmp> b) <combine> c for the lower halves; q = (a <cmp> b) <combine> c for the upper halves. `setp.cmp.combine{.ftz}.f16x2 p:pred|q:pred, a, b, c:pred`

        p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c. `setp.cmp.combine.f64 p:pred|q:pred, a, b, c:pred`

        p = (a <cmp> b) <combine> c for the lower halves; q = (a <cmp> b) <combine> c for the upper halves. `setp.cmp.combine.bf16x2 p:pred|q:pred, a, b, c:pred`
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
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        type: ScalarType = ...,
    ) -> Value:
        """p = (a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred, a, b, c:pred` type: u32, s32, u64, s64, u16, s16.

        p = (a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred, a, b, c:pred` type: u32, u64, u16.

        p = (a <cmp> b) <combine> c. `setp.cmp.combine.type p:pred, a, b, c:pred` type: b32, b64, b16.
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
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] = "eq",
        combine: Literal["and", "or", "xor"] = "and",
        ftz: bool = False,
    ) -> Value:
        """p = (a <cmp> b) <combine> c. `setp.cmp.combine{.ftz}.f32 p:pred, a, b, c:pred`

        p = (a <cmp> b) <combine> c. `setp.cmp.combine{.ftz}.f16 p:pred, a, b, c:pred`

        p = (a <cmp> b) <combine> c. `setp.cmp.combine.f64 p:pred, a, b, c:pred`

        p = (a <cmp> b) <combine> c. `setp.cmp.combine.bf16 p:pred, a, b, c:pred`
        """
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
        """d = the value of a in the lane that mode and b select, or in the own lane if that lane is outside the segment given by c. `shfl.sync.mode.b32 d, a, b:u32, c:u32, membermask:u32`"""
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
        """d = the result of shfl; p = whether the source lane was inside the segment. `shfl.sync.mode.b32 d|p:pred, a, b:u32, c:u32, membermask:u32`"""
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
    def slct(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        ftz: bool = False,
        dtype: ScalarType = ...,
    ) -> Value:
        """d = a if c >= 0 (also for -0, and with .ftz for a subnormal c), else b, also for a NaN. `slct{.ftz}.dtype.f32 d:dtype, a:dtype, b:dtype, c:f32` dtype: b32, b64, b16, u32, s32, u64, s64, u16, s16, f32, f64.

        d = a if c >= 0, else b. `slct.dtype.s32 d:dtype, a:dtype, b:dtype, c:s32` dtype: b32, b64, b16, u32, s32, u64, s64, u16, s16, f32, f64.
        """
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
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
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
        space: Literal["global", "shared", "local", "shared::cta", "shared::cluster", "param", "param::func"] = ...,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .cop is a hint for caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .cop is a hint for caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to addr on; .cop is a hint for caches. `st.space{.cop}.type [addr:u64], a` type: b128.
        """
    @overload
    def st(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        space: Literal["global", "shared", "local", "shared::cta", "shared::cluster", "param", "param::func"] = ...,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .cop is a hint for caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .cop is a hint for caches. `st.space{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_async(
        self,
        dst: Pointer,
        a: Scalar,
        mbar: Pointer,
        /,
        *,
        weak: bool = False,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Start writing a to dst in a CTA of the cluster; the mbarrier at mbar in that CTA counts the bytes. `st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [dst:u32], a*vec, [mbar:u32]` type: b32, u32, s32, f32.

        Start writing a to dst in a CTA of the cluster; the mbarrier at mbar in that CTA counts the bytes. `st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [dst:u32], a*vec, [mbar:u32]` type: b64, u64, s64, f64.
        """
    @overload
    def st_async(
        self,
        dst: Pointer,
        a: Sequence[Scalar],
        mbar: Pointer,
        /,
        *,
        weak: bool = False,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Start writing a to dst in a CTA of the cluster; the mbarrier at mbar in that CTA counts the bytes. `st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [dst:u32], a*vec, [mbar:u32]` type: b32, u32, s32, f32.

        Start writing a to dst in a CTA of the cluster; the mbarrier at mbar in that CTA counts the bytes. `st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [dst:u32], a*vec, [mbar:u32]` type: b64, u64, s64, f64.
        """
    def st_bulk(
        self,
        addr: Pointer,
        size: Scalar,
        /,
        *,
        weak: bool = False,
        space: Literal["shared::cta"] | None = ...,
    ) -> None:
        """Write size bytes of zeros, a multiple of 8, to shared memory at addr on. `st.bulk{.weak}{.space} [addr:u64], size:u64, 0`"""
    @overload
    def st_evict(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .evict is a hint for caches. `st{.weak}{.space}.evict{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .evict is a hint for caches. `st{.weak}{.space}.evict{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to addr on; .evict is a hint for caches. `st{.weak}{.space}.evict.type [addr:u64], a` type: b128.
        """
    @overload
    def st_evict(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .evict is a hint for caches. `st{.weak}{.space}.evict{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .evict is a hint for caches. `st{.weak}{.space}.evict{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_generic(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to the generic address addr on; .cop is a hint for caches. `st{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to the generic address addr on; .cop is a hint for caches. `st{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to the generic address addr on; .cop is a hint for caches. `st{.cop}.type [addr:u64], a` type: b128.
        """
    @overload
    def st_generic(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to the generic address addr on; .cop is a hint for caches. `st{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to the generic address addr on; .cop is a hint for caches. `st{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_large(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["wb", "cg", "cs", "wt"] = "wb",
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write the vector a of 32 bytes to addr on; .cop is a hint for caches. `st{.weak}{.space}.cop.vec.type [addr:u64], a*vec` type: f32, b32, u32, s32.

        Write the vector a of 32 bytes to addr on; .cop is a hint for caches. `st{.weak}{.space}.cop.vec.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_large(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["wb", "cg", "cs", "wt"] = "wb",
        vec: Literal["v8", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write the vector a of 32 bytes to addr on; .cop is a hint for caches. `st{.weak}{.space}.cop.vec.type [addr:u64], a*vec` type: f32, b32, u32, s32.

        Write the vector a of 32 bytes to addr on; .cop is a hint for caches. `st{.weak}{.space}.cop.vec.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_large(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        level2: Literal["L2::evict_normal", "L2::evict_first", "L2::evict_last"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write the vector a of 32 bytes to addr on; .evict and .level2 are hints for caches. `st{.weak}{.space}{.evict}{.level2}.vec.type [addr:u64], a*vec` type: f32, b32, u32, s32.

        Write the vector a of 32 bytes to addr on; .evict and .level2 are hints for caches. `st{.weak}{.space}{.evict}{.level2}.vec.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_large(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        level2: Literal["L2::evict_normal", "L2::evict_first", "L2::evict_last"] | None = None,
        vec: Literal["v8", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write the vector a of 32 bytes to addr on; .evict and .level2 are hints for caches. `st{.weak}{.space}{.evict}{.level2}.vec.type [addr:u64], a*vec` type: f32, b32, u32, s32.

        Write the vector a of 32 bytes to addr on; .evict and .level2 are hints for caches. `st{.weak}{.space}{.evict}{.level2}.vec.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    def st_mmio(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        space: Literal["global"] | None = ...,
        type: ScalarType = ...,
    ) -> None:
        """Write a to addr, a device's register, exactly once. `st.mmio.relaxed.sys{.space}.type [addr:u64], a` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8, b64, u64, s64, f64, b128."""
    @overload
    def st_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; accesses before a .release come earlier. `st.sem.scope{.space}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; accesses before a .release come earlier. `st.sem.scope{.space}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to addr on, as an access that may race with others of the threads of the scope; accesses before a .release come earlier. `st.sem.scope{.space}.type [addr:u64], a` type: b128.
        """
    @overload
    def st_ordered(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        sem: Literal["relaxed", "release"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; accesses before a .release come earlier. `st.sem.scope{.space}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; accesses before a .release come earlier. `st.sem.scope{.space}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict is a hint for caches. `st.sem.scope{.space}.evict{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict is a hint for caches. `st.sem.scope{.space}.evict{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to addr on, as an access that may race with others of the threads of the scope; .evict is a hint for caches. `st.sem.scope{.space}.evict.type [addr:u64], a` type: b128.
        """
    @overload
    def st_ordered(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        sem: Literal["relaxed", "release"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] = "L1::no_allocate",
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict is a hint for caches. `st.sem.scope{.space}.evict{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict is a hint for caches. `st.sem.scope{.space}.evict{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_ordered(
        self,
        addr: Pointer,
        a: Scalar,
        policy: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `st.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `st.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: b64, u64, s64, f64.

        Write a to addr on, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `st.sem.scope{.space}{.evict}.L2::cache_hint.type [addr:u64], a, policy:b64` type: b128.
        """
    @overload
    def st_ordered(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        policy: Scalar,
        /,
        *,
        sem: Literal["relaxed", "release"] = "relaxed",
        scope: Literal["cta", "gpu", "sys", "cluster"] = "cta",
        space: Literal["global"] | None = ...,
        evict: Literal["L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `st.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, as an access that may race with others of the threads of the scope; .evict and the cache policy are hints for caches. `st.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: b64, u64, s64, f64.
        """
    @overload
    def st_policy(
        self,
        addr: Pointer,
        a: Scalar,
        policy: Scalar,
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["wb", "cg", "cs", "wt", "L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .cop and the cache policy are hints for caches. `st{.weak}{.space}{.cop}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .cop and the cache policy are hints for caches. `st{.weak}{.space}{.cop}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: b64, u64, s64, f64.

        Write a to addr on; .cop and the cache policy are hints for caches. `st{.weak}{.space}{.cop}.L2::cache_hint.type [addr:u64], a, policy:b64` type: b128.
        """
    @overload
    def st_policy(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        policy: Scalar,
        /,
        *,
        weak: bool = False,
        space: Literal["global"] | None = ...,
        cop: Literal["wb", "cg", "cs", "wt", "L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; .cop and the cache policy are hints for caches. `st{.weak}{.space}{.cop}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; .cop and the cache policy are hints for caches. `st{.weak}{.space}{.cop}.L2::cache_hint{.vec}.type [addr:u64], a*vec, policy:b64` type: b64, u64, s64, f64.
        """
    @overload
    def st_volatile(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, which is written each time. `st.volatile{.space}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, which is written each time. `st.volatile{.space}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to addr on, which is written each time. `st.volatile{.space}.type [addr:u64], a` type: b128.
        """
    @overload
    def st_volatile(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        space: Literal["global", "shared", "shared::cta", "shared::cluster"] | None = ...,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on, which is written each time. `st.volatile{.space}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on, which is written each time. `st.volatile{.space}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    @overload
    def st_weak(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        space: Literal["global", "shared", "local", "shared::cta", "shared::cluster", "param", "param::func"] | None = ...,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; not ordered against other threads' accesses, just as without .weak. `st.weak{.space}{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; not ordered against other threads' accesses, just as without .weak. `st.weak{.space}{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.

        Write a to addr on; not ordered against other threads' accesses, just as without .weak. `st.weak{.space}{.cop}.type [addr:u64], a` type: b128.
        """
    @overload
    def st_weak(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        space: Literal["global", "shared", "local", "shared::cta", "shared::cluster", "param", "param::func"] | None = ...,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
    ) -> None:
        """Write a, or the elements of the vector a, to addr on; not ordered against other threads' accesses, just as without .weak. `st.weak{.space}{.cop}{.vec}.type [addr:u64], a*vec` type: f32, b32, u32, s32, b16, u16, s16, b8, u8, s8.

        Write a, or the elements of the vector a, to addr on; not ordered against other threads' accesses, just as without .weak. `st.weak{.space}{.cop}{.vec}.type [addr:u64], a*vec` type: b64, u64, s64, f64.
        """
    def stmatrix(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        num: Literal["x4", "x2", "x1"] = "x4",
        trans: bool = False,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> None:
        """Write one, two or four matrices, or their transposes, to shared memory. `stmatrix.sync.aligned.m8n8.num{.trans}{.space}.b16 [addr:u64], a:b32*num`"""
    def stmatrix_shape_last(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        num: Literal["x4", "x2", "x1"] = "x4",
        trans: bool = False,
        space: Literal["shared", "shared::cta"] | None = ...,
    ) -> None:
        """As stmatrix, in the other order of its modifiers. `stmatrix.sync.aligned.num{.trans}.m8n8{.space}.b16 [addr:u64], a:b32*num`"""
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

        d = a - b, wrapping around, or with .sat clamped to the range of s32. `sub{.sat}.s32 d, a, b`

        d = a - b, rounded once. `sub.rnd.f64 d, a, b`

        d = a - b, rounded once, to nearest. `sub{.ftz}{.sat}.f32 d, a, b`

        d = a - b, rounded once, to nearest. `sub.f64 d, a, b`
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

        d = a - b, wrapping around. `sub.type d, a, b` type: u32, u64, s64, u16, s16.

        d = a - b, rounded once. `sub.type d, a, b` type: bf16, bf16x2.

        d = a - b, rounded once. `sub{.ftz}{.sat}.type d, a, b` type: f16, f16x2.

        d = a - b, rounded once. `sub.rnd.type d, a, b` type: bf16, bf16x2.
        """
    def sub_cc(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = a - b, wrapping around; the carry flag says whether the unsigned result wrapped around. `sub.cc.type d, a, b` type: u32, s32, u64, s64."""
    def sub_f32x2(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
        ftz: bool = False,
    ) -> Value:
        """d = a - b in both halves, each rounded once, to nearest by default. `sub{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64`"""
    def sub_mixed(
        self,
        a: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
        sat: bool = False,
        atype: ScalarType = ...,
    ) -> Value:
        """d = a - c, with a widened first; rounded once, to nearest by default. `sub{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32` atype: f16, bf16."""
    def subc(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        cc: bool = False,
        type: ScalarType = ...,
    ) -> Value:
        """d = a - b - the carry flag, wrapping around; with .cc the carry flag is updated. `subc{.cc}.type d, a, b` type: u32, s32, u64, s64."""
    @overload
    def suld_1d(
        self,
        surf: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> Value:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.1d{.cop}{.vec}.type.mode d*vec, [surf:u64*1/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.1d{.cop}{.vec}.type.mode d*vec, [surf:u64*1/s32]` type: b64.
        """
    @overload
    def suld_1d(
        self,
        surf: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> tuple[Value, ...]:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.1d{.cop}{.vec}.type.mode d*vec, [surf:u64*1/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.1d{.cop}{.vec}.type.mode d*vec, [surf:u64*1/s32]` type: b64.
        """
    @overload
    def suld_2d(
        self,
        surf: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> Value:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.2d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.2d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b64.
        """
    @overload
    def suld_2d(
        self,
        surf: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> tuple[Value, ...]:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.2d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.2d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b64.
        """
    @overload
    def suld_3d(
        self,
        surf: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> Value:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.3d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.3d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b64.
        """
    @overload
    def suld_3d(
        self,
        surf: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> tuple[Value, ...]:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.3d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.3d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b64.
        """
    @overload
    def suld_a1d(
        self,
        surf: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> Value:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a1d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a1d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b64.
        """
    @overload
    def suld_a1d(
        self,
        surf: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> tuple[Value, ...]:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a1d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a1d{.cop}{.vec}.type.mode d*vec, [surf:u64*2/s32]` type: b64.
        """
    @overload
    def suld_a2d(
        self,
        surf: Pointer,
        /,
        *,
        into: Var | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> Value:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a2d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a2d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b64.
        """
    @overload
    def suld_a2d(
        self,
        surf: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        cop: Literal["ca", "cg", "cs", "cv"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> tuple[Value, ...]:
        """d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a2d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b32, b8, b16.

        d = the elements of the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero d = 0. `suld.b.a2d{.cop}{.vec}.type.mode d*vec, [surf:u64*4/s32]` type: b64.
        """
    def suq(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        query: Literal["width", "height", "depth", "array_size"] = "width",
    ) -> Value:
        """d = a property of the surface whose handle is the address. `suq.query.b32 d, [addr:u64]`"""
    @overload
    def sust_1d(
        self,
        surf: Pointer,
        a: Scalar,
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.1d{.cop}{.vec}.type.mode [surf:u64*1/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.1d{.cop}{.vec}.type.mode [surf:u64*1/s32], a*vec` type: b64.
        """
    @overload
    def sust_1d(
        self,
        surf: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.1d{.cop}{.vec}.type.mode [surf:u64*1/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.1d{.cop}{.vec}.type.mode [surf:u64*1/s32], a*vec` type: b64.
        """
    @overload
    def sust_2d(
        self,
        surf: Pointer,
        a: Scalar,
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.2d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.2d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b64.
        """
    @overload
    def sust_2d(
        self,
        surf: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.2d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.2d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b64.
        """
    @overload
    def sust_3d(
        self,
        surf: Pointer,
        a: Scalar,
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.3d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.3d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b64.
        """
    @overload
    def sust_3d(
        self,
        surf: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.3d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.3d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b64.
        """
    @overload
    def sust_a1d(
        self,
        surf: Pointer,
        a: Scalar,
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a1d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a1d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b64.
        """
    @overload
    def sust_a1d(
        self,
        surf: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a1d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a1d{.cop}{.vec}.type.mode [surf:u64*2/s32], a*vec` type: b64.
        """
    @overload
    def sust_a2d(
        self,
        surf: Pointer,
        a: Scalar,
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: None = None,
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a2d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a2d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b64.
        """
    @overload
    def sust_a2d(
        self,
        surf: Pointer,
        a: Sequence[Scalar],
        /,
        *,
        cop: Literal["wb", "cg", "cs", "wt"] | None = None,
        vec: Literal["v2", "v4"],
        type: ScalarType = ...,
        mode: Literal["trap", "clamp", "zero"] = "trap",
    ) -> None:
        """Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a2d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b32, b8, b16.

        Write a to the surface at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes the nearest element, and with .zero nothing is written. `sust.b.a2d{.cop}{.vec}.type.mode [surf:u64*4/s32], a*vec` type: b64.
        """
    def szext(
        self,
        a: Scalar,
        b: Scalar,
        /,
        *,
        into: Var | None = None,
        mode: Literal["clamp", "wrap"] = "clamp",
        type: ScalarType = ...,
    ) -> Value:
        """d = the lowest b bits of a, zero- or sign-extended; b counts modulo 32 (wrap), or a b from 32 on leaves a unchanged (clamp). `szext.mode.type d, a, b:u32` type: u32, s32."""
    def tanh(
        self,
        a: Scalar,
        /,
        *,
        into: Var | None = None,
        type: ScalarType = ...,
    ) -> Value:
        """d = the hyperbolic tangent of a, approximately; subnormal numbers are kept. `tanh.approx.type d, a` type: f16, f16x2, bf16, bf16x2.

        d = the hyperbolic tangent of a, approximately; subnormal results are kept. `tanh.approx.f32 d, a`
        """
    def tcgen05_alloc(
        self,
        dst: Pointer,
        n: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        space: Literal["shared::cta"] | None = ...,
    ) -> None:
        """Allocate n columns of tensor memory, once there is room, and write their address to shared memory. `tcgen05.alloc.group.sync.aligned{.space}.b32 [dst:u64], n:u32`"""
    def tcgen05_commit(
        self,
        mbar: Pointer,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        space: Literal["shared::cluster"] | None = ...,
    ) -> None:
        """Arrive at the mbarrier once this thread's earlier products, copies and shifts are complete. `tcgen05.commit.group.mbarrier::arrive::one{.space}.b64 [mbar:u64]`"""
    def tcgen05_commit_multicast(
        self,
        mbar: Pointer,
        ctas: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        space: Literal["shared::cluster"] | None = ...,
    ) -> None:
        """Arrive at the mbarrier, at this offset in each CTA of the mask in the register ctas, once this thread's earlier products, copies and shifts are complete. `tcgen05.commit.group.mbarrier::arrive::one{.space}.multicast::cluster.b64 [mbar:u64], ctas:u16`"""
    @overload
    def tcgen05_cp(
        self,
        d: Pointer,
        b: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        shape: Literal["128x256b", "4x256b", "128x128b"] = "128x256b",
    ) -> None:
        """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d. `tcgen05.cp.group.shape [d:u32], b:u64`"""
    @overload
    def tcgen05_cp(
        self,
        d: Pointer,
        b: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        shape: Literal["64x128b", "32x128b"] = "64x128b",
        warps: Literal["warpx2::02_13", "warpx2::01_23", "warpx4"] = "warpx2::02_13",
    ) -> None:
        """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d. `tcgen05.cp.group.shape.warps [d:u32], b:u64`"""
    @overload
    def tcgen05_cp_unpacked(
        self,
        d: Pointer,
        b: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        shape: Literal["128x256b", "4x256b", "128x128b"] = "128x256b",
        source: Literal["b6x16_p32", "b4x16_p64"] = "b6x16_p32",
    ) -> None:
        """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d, its 4- or 6-bit elements each in 8 bits. `tcgen05.cp.group.shape.b8x16.source [d:u32], b:u64`"""
    @overload
    def tcgen05_cp_unpacked(
        self,
        d: Pointer,
        b: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        shape: Literal["64x128b", "32x128b"] = "64x128b",
        warps: Literal["warpx2::02_13", "warpx2::01_23", "warpx4"] = "warpx2::02_13",
        source: Literal["b6x16_p32", "b4x16_p64"] = "b6x16_p32",
    ) -> None:
        """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d, its 4- or 6-bit elements each in 8 bits. `tcgen05.cp.group.shape.warps.b8x16.source [d:u32], b:u64`"""
    def tcgen05_dealloc(
        self,
        a: Scalar,
        n: Scalar,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
    ) -> None:
        """Free the n columns of tensor memory that were allocated at the address a. `tcgen05.dealloc.group.sync.aligned.b32 a:u32, n:u32`"""
    def tcgen05_fence_after(
        self,
    ) -> None:
        """Order all later asynchronous operations on tensor memory after earlier synchronisation of threads. `tcgen05.fence::after_thread_sync`"""
    def tcgen05_fence_before(
        self,
    ) -> None:
        """Order all earlier asynchronous operations on tensor memory before later synchronisation of threads. `tcgen05.fence::before_thread_sync`"""
    def tcgen05_ld(
        self,
        a: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["32x32b", "16x64b", "16x128b", "16x256b"] = "32x32b",
        num: Literal["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x1",
        pack: Literal["pack::16b"] | None = None,
    ) -> tuple[Value, ...]:
        """d = the cells of tensor memory at the address a that the shape gives this thread; the second 16 lanes of a shape of two halves are split columns further on. `tcgen05.ld.sync.aligned.shape.num{.pack}.b32 d:b32*nd, [a:u32]`"""
    def tcgen05_ld_halves(
        self,
        a: Pointer,
        split: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["16x32bx2"] = "16x32bx2",
        num: Literal["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x1",
        pack: Literal["pack::16b"] | None = None,
    ) -> tuple[Value, ...]:
        """d = the cells of tensor memory at the address a that the shape gives this thread; the second 16 lanes of a shape of two halves are split columns further on. `tcgen05.ld.sync.aligned.shape.num{.pack}.b32 d:b32*nd, [a:u32], split:imm`"""
    def tcgen05_ld_red_f32(
        self,
        a: Pointer,
        /,
        *,
        shape: Literal["32x32b"] = "32x32b",
        num: Literal["x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x2",
        op: Literal["min", "max"] = "min",
        abs: bool = False,
        NaN: bool = False,
    ) -> tuple[tuple[Value, ...], Value]:
        """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is. `tcgen05.ld.red.sync.aligned.shape.num.op{.abs}{.NaN}.f32 d:f32*nd, q:f32, [a:u32]`"""
    def tcgen05_ld_red_f32_halves(
        self,
        a: Pointer,
        split: int,
        /,
        *,
        shape: Literal["16x32bx2"] = "16x32bx2",
        num: Literal["x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x2",
        op: Literal["min", "max"] = "min",
        abs: bool = False,
        NaN: bool = False,
    ) -> tuple[tuple[Value, ...], Value]:
        """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is. `tcgen05.ld.red.sync.aligned.shape.num.op{.abs}{.NaN}.f32 d:f32*nd, q:f32, [a:u32], split:imm`"""
    def tcgen05_ld_red_s32(
        self,
        a: Pointer,
        /,
        *,
        shape: Literal["32x32b"] = "32x32b",
        num: Literal["x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x2",
        op: Literal["min", "max"] = "min",
    ) -> tuple[tuple[Value, ...], Value]:
        """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is. `tcgen05.ld.red.sync.aligned.shape.num.op.s32 d:s32*nd, q:s32, [a:u32]`"""
    def tcgen05_ld_red_s32_halves(
        self,
        a: Pointer,
        split: int,
        /,
        *,
        shape: Literal["16x32bx2"] = "16x32bx2",
        num: Literal["x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x2",
        op: Literal["min", "max"] = "min",
    ) -> tuple[tuple[Value, ...], Value]:
        """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is. `tcgen05.ld.red.sync.aligned.shape.num.op.s32 d:s32*nd, q:s32, [a:u32], split:imm`"""
    def tcgen05_ld_red_u32(
        self,
        a: Pointer,
        /,
        *,
        shape: Literal["32x32b"] = "32x32b",
        num: Literal["x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x2",
        op: Literal["min", "max"] = "min",
    ) -> tuple[tuple[Value, ...], Value]:
        """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is. `tcgen05.ld.red.sync.aligned.shape.num.op.u32 d:u32*nd, q:u32, [a:u32]`"""
    def tcgen05_ld_red_u32_halves(
        self,
        a: Pointer,
        split: int,
        /,
        *,
        shape: Literal["16x32bx2"] = "16x32bx2",
        num: Literal["x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x2",
        op: Literal["min", "max"] = "min",
    ) -> tuple[tuple[Value, ...], Value]:
        """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is. `tcgen05.ld.red.sync.aligned.shape.num.op.u32 d:u32*nd, q:u32, [a:u32], split:imm`"""
    @overload
    def tcgen05_mma(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], a:u64, b:u64, idesc:u32, use:pred`"""
    @overload
    def tcgen05_mma(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], a:u64, b:u64, idesc:u32, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], a:u64, b:u64, idesc:u32, mask:b32*nm, use:pred`"""
    @overload
    def tcgen05_mma(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], a:u64, b:u64, idesc:u32, mask:b32*nm, use:pred, scale:imm`"""
    def tcgen05_mma_block_scale(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        idesc: Scalar,
        scales_a: Pointer,
        scales_b: Pointer,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        vec: None = None,
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf8f6f4.block_scale.vec{.coll} [d:u32], a:u64, b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf4.block_scale.vec{.coll} [d:u32], a:u64, b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf4nvf4.block_scale.vec{.coll} [d:u32], a:u64, b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf8f6f4.block_scale{.coll} [d:u32], a:u64, b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf4.block_scale{.coll} [d:u32], a:u64, b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`
        """
    def tcgen05_mma_block_scale_sp(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        scales_a: Pointer,
        scales_b: Pointer,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        vec: None = None,
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf8f6f4.block_scale.vec{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf4.block_scale.vec{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf4nvf4.block_scale.vec{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf8f6f4.block_scale{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf4.block_scale{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`
        """
    def tcgen05_mma_block_scale_sp_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        scales_a: Pointer,
        scales_b: Pointer,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        vec: None = None,
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf8f6f4.block_scale.vec{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf4.block_scale.vec{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf4nvf4.block_scale.vec{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf8f6f4.block_scale{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.sp.group.kind::mxf4.block_scale{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`
        """
    def tcgen05_mma_block_scale_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        scales_a: Pointer,
        scales_b: Pointer,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        vec: None = None,
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf8f6f4.block_scale.vec{.coll} [d:u32], [a:u32], b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf4.block_scale.vec{.coll} [d:u32], [a:u32], b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf4nvf4.block_scale.vec{.coll} [d:u32], [a:u32], b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf8f6f4.block_scale{.coll} [d:u32], [a:u32], b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`

        D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. `tcgen05.mma.group.kind::mxf4.block_scale{.coll} [d:u32], [a:u32], b:u64, idesc:u32, [scales_a:u32], [scales_b:u32], use:pred`
        """
    @overload
    def tcgen05_mma_sp(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, use:pred`"""
    @overload
    def tcgen05_mma_sp(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_sp(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, mask:b32*nm, use:pred`"""
    @overload
    def tcgen05_mma_sp(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, mask:b32*nm, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_sp_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, use:pred`"""
    @overload
    def tcgen05_mma_sp_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_sp_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, mask:b32*nm, use:pred`"""
    @overload
    def tcgen05_mma_sp_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, mask:b32*nm, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_sp_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, use:pred`"""
    @overload
    def tcgen05_mma_sp_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_sp_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, mask:b32*nm, use:pred`"""
    @overload
    def tcgen05_mma_sp_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A, which is sparse, in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.sp.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, mask:b32*nm, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], [a:u32], b:u64, idesc:u32, use:pred`"""
    @overload
    def tcgen05_mma_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], [a:u32], b:u64, idesc:u32, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], [a:u32], b:u64, idesc:u32, mask:b32*nm, use:pred`"""
    @overload
    def tcgen05_mma_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind{.coll} [d:u32], [a:u32], b:u64, idesc:u32, mask:b32*nm, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, idesc:u32, use:pred`"""
    @overload
    def tcgen05_mma_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, idesc:u32, use:pred, scale:imm`"""
    @overload
    def tcgen05_mma_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, idesc:u32, mask:b32*nm, use:pred`"""
    @overload
    def tcgen05_mma_tmem_ashift(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        mask: Sequence[Scalar],
        use: Value,
        scale: int,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
        kind: Literal["kind::f16", "kind::tf32"] = "kind::f16",
        coll: Literal["collector::a::lastuse", "collector::a::discard"] | None = None,
    ) -> None:
        """D = A * B + D * 2**-scale if use, else A * B, of the types and shape in idesc; D is in tensor memory at d, A in tensor memory, its rows moved down by one, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are not written. `tcgen05.mma.group.kind.ashift{.coll} [d:u32], [a:u32], b:u64, idesc:u32, mask:b32*nm, use:pred, scale:imm`"""
    def tcgen05_mma_ws(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        zero_columns: Scalar = ...,
        /,
        *,
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::b0::fill", "collector::b0::use", "collector::b0::lastuse", "collector::b0::discard", "collector::b1::fill", "collector::b1::use", "collector::b1::lastuse", "collector::b1::discard", "collector::b2::fill", "collector::b2::use", "collector::b2::lastuse", "collector::b2::discard", "collector::b3::fill", "collector::b3::use", "collector::b3::lastuse", "collector::b3::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, with B held in the tensor cores; D is in tensor memory at d, A in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Columns of B that zero_columns describes are zero. `tcgen05.mma.ws.cta_group::1.kind{.coll} [d:u32], a:u64, b:u64, idesc:u32, use:pred{, zero_columns:u64}`"""
    def tcgen05_mma_ws_sp(
        self,
        d: Pointer,
        a: Scalar,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        zero_columns: Scalar = ...,
        /,
        *,
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::b0::fill", "collector::b0::use", "collector::b0::lastuse", "collector::b0::discard", "collector::b1::fill", "collector::b1::use", "collector::b1::lastuse", "collector::b1::discard", "collector::b2::fill", "collector::b2::use", "collector::b2::lastuse", "collector::b2::discard", "collector::b3::fill", "collector::b3::use", "collector::b3::lastuse", "collector::b3::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, with B held in the tensor cores; D is in tensor memory at d, A, which is sparse, in shared memory, as the descriptor a says, B in shared memory, as the descriptor b says. Columns of B that zero_columns describes are zero. `tcgen05.mma.ws.sp.cta_group::1.kind{.coll} [d:u32], a:u64, b:u64, [metadata:u32], idesc:u32, use:pred{, zero_columns:u64}`"""
    def tcgen05_mma_ws_sp_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        metadata: Pointer,
        idesc: Scalar,
        use: Value,
        zero_columns: Scalar = ...,
        /,
        *,
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::b0::fill", "collector::b0::use", "collector::b0::lastuse", "collector::b0::discard", "collector::b1::fill", "collector::b1::use", "collector::b1::lastuse", "collector::b1::discard", "collector::b2::fill", "collector::b2::use", "collector::b2::lastuse", "collector::b2::discard", "collector::b3::fill", "collector::b3::use", "collector::b3::lastuse", "collector::b3::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, with B held in the tensor cores; D is in tensor memory at d, A, which is sparse, in tensor memory, B in shared memory, as the descriptor b says. Columns of B that zero_columns describes are zero. `tcgen05.mma.ws.sp.cta_group::1.kind{.coll} [d:u32], [a:u32], b:u64, [metadata:u32], idesc:u32, use:pred{, zero_columns:u64}`"""
    def tcgen05_mma_ws_tmem(
        self,
        d: Pointer,
        a: Pointer,
        b: Scalar,
        idesc: Scalar,
        use: Value,
        zero_columns: Scalar = ...,
        /,
        *,
        kind: Literal["kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"] = "kind::f16",
        coll: Literal["collector::b0::fill", "collector::b0::use", "collector::b0::lastuse", "collector::b0::discard", "collector::b1::fill", "collector::b1::use", "collector::b1::lastuse", "collector::b1::discard", "collector::b2::fill", "collector::b2::use", "collector::b2::lastuse", "collector::b2::discard", "collector::b3::fill", "collector::b3::use", "collector::b3::lastuse", "collector::b3::discard"] | None = None,
    ) -> None:
        """D = A * B + D if use, else A * B, of the types and shape in idesc, with B held in the tensor cores; D is in tensor memory at d, A in tensor memory, B in shared memory, as the descriptor b says. Columns of B that zero_columns describes are zero. `tcgen05.mma.ws.cta_group::1.kind{.coll} [d:u32], [a:u32], b:u64, idesc:u32, use:pred{, zero_columns:u64}`"""
    def tcgen05_relinquish_alloc_permit(
        self,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
    ) -> None:
        """Promise that this CTA allocates no more tensor memory. `tcgen05.relinquish_alloc_permit.group.sync.aligned`"""
    def tcgen05_shift(
        self,
        a: Pointer,
        /,
        *,
        group: Literal["cta_group::1", "cta_group::2"] = "cta_group::1",
    ) -> None:
        """Move the rows of 32 bytes in tensor memory from the address a on down by one lane, except the last. `tcgen05.shift.group.down [a:u32]`"""
    def tcgen05_st(
        self,
        a: Pointer,
        b: Sequence[Scalar],
        /,
        *,
        shape: Literal["32x32b", "16x64b", "16x128b", "16x256b"] = "32x32b",
        num: Literal["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x1",
        unpack: Literal["unpack::16b"] | None = None,
    ) -> None:
        """The cells of tensor memory at the address a that the shape gives this thread = b; the second 16 lanes of a shape of two halves are split columns further on. `tcgen05.st.sync.aligned.shape.num{.unpack}.b32 [a:u32], b:b32*nb`"""
    def tcgen05_st_halves(
        self,
        a: Pointer,
        split: int,
        b: Sequence[Scalar],
        /,
        *,
        shape: Literal["16x32bx2"] = "16x32bx2",
        num: Literal["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"] = "x1",
        unpack: Literal["unpack::16b"] | None = None,
    ) -> None:
        """The cells of tensor memory at the address a that the shape gives this thread = b; the second 16 lanes of a shape of two halves are split columns further on. `tcgen05.st.sync.aligned.shape.num{.unpack}.b32 [a:u32], split:imm, b:b32*nb`"""
    def tcgen05_wait_ld(
        self,
    ) -> None:
        """Wait until all loads from tensor memory that this thread has started are complete. `tcgen05.wait::ld.sync.aligned`"""
    def tcgen05_wait_st(
        self,
    ) -> None:
        """Wait until all stores to tensor memory that this thread has started are complete. `tcgen05.wait::st.sync.aligned`"""
    def tensormap_cp_fenceproxy(
        self,
        dst: Pointer,
        src: Pointer,
        /,
        *,
        scope: Literal["cta", "cluster", "gpu", "sys"] = "cta",
    ) -> None:
        """Copy the tensor map at src to dst, and make it visible in the scope, to threads that acquire it there. `tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [dst:u64], [src:u32], 128`"""
    def tensormap_replace_address(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        space: Literal["global", "shared::cta"] | None = ...,
    ) -> None:
        """Make a the address of the tensor whose map is at addr. `tensormap.replace.tile.global_address{.space}.b1024.b64 [addr:u64], a:b64`"""
    def tensormap_replace_dim(
        self,
        addr: Pointer,
        ord: int,
        a: Scalar,
        /,
        *,
        field: Literal["box_dim", "global_dim", "element_stride"] = "box_dim",
        space: Literal["global", "shared::cta"] | None = ...,
    ) -> None:
        """Make a the size of the box or of the tensor, or the step, in elements, along dimension ord, from 0, the innermost. `tensormap.replace.tile.field{.space}.b1024.b32 [addr:u64], ord:imm, a:b32`"""
    def tensormap_replace_mode(
        self,
        addr: Pointer,
        mode: int,
        /,
        *,
        field: Literal["elemtype", "interleave_layout", "swizzle_mode", "fill_mode"] = "elemtype",
        space: Literal["global", "shared::cta"] | None = ...,
    ) -> None:
        """Make mode the type of elements, the layout, the swizzle or the fill, as the manual numbers them. `tensormap.replace.tile.field{.space}.b1024.b32 [addr:u64], mode:imm`"""
    def tensormap_replace_rank(
        self,
        addr: Pointer,
        a: Scalar,
        /,
        *,
        space: Literal["global", "shared::cta"] | None = ...,
    ) -> None:
        """Give the tensor a + 1 dimensions. `tensormap.replace.tile.rank{.space}.b1024.b32 [addr:u64], a:b32`"""
    def tensormap_replace_stride(
        self,
        addr: Pointer,
        ord: int,
        a: Scalar,
        /,
        *,
        space: Literal["global", "shared::cta"] | None = ...,
    ) -> None:
        """Make a the stride, bytes, of dimension ord + 1. `tensormap.replace.tile.global_stride{.space}.b1024.b64 [addr:u64], ord:imm, a:b64`"""
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
    def tex_1d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.1d.v4.type.ctype d*4, [tex:u64*1/ctype]` type: f32, s32, u32. ctype: f32, s32."""
    def tex_2d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.2d.v4.type.ctype d*4, [tex:u64*2/ctype]` type: f32, s32, u32. ctype: f32, s32."""
    def tex_3d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.3d.v4.type.ctype d*4, [tex:u64*4/ctype]` type: f32, s32, u32. ctype: f32, s32."""
    def tex_a1d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.a1d.v4.type.ctype d*4, [tex:u64*2/u32.ctype]` type: f32, s32, u32. ctype: f32, s32."""
    def tex_a2d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.a2d.v4.type.ctype d*4, [tex:u64*4/u32.ctype]` type: f32, s32, u32. ctype: f32, s32."""
    def tex_acube(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.acube.v4.type.f32 d*4, [tex:u64*4/u32.f32]` type: f32, s32, u32."""
    def tex_cube(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at coordinates, filtered by its sampler. `tex.cube.v4.type.f32 d*4, [tex:u64*4/f32]` type: f32, s32, u32."""
    def tex_grad_1d(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.1d.v4.type.f32 d*4, [tex:u64*1/f32], dx:f32*1, dy:f32*1` type: f32, s32, u32."""
    def tex_grad_2d(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.2d.v4.type.f32 d*4, [tex:u64*2/f32], dx:f32*2, dy:f32*2` type: f32, s32, u32."""
    def tex_grad_3d(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.3d.v4.type.f32 d*4, [tex:u64*4/f32], dx:f32*4, dy:f32*4` type: f32, s32, u32."""
    def tex_grad_a1d(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.a1d.v4.type.f32 d*4, [tex:u64*2/u32.f32], dx:f32*1, dy:f32*1` type: f32, s32, u32."""
    def tex_grad_a2d(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.a2d.v4.type.f32 d*4, [tex:u64*4/u32.f32], dx:f32*2, dy:f32*2` type: f32, s32, u32."""
    def tex_grad_acube(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.acube.v4.type.f32 d*4, [tex:u64*4/u32.f32], dx:f32*4, dy:f32*4` type: f32, s32, u32."""
    def tex_grad_cube(
        self,
        tex: Pointer,
        dx: Sequence[Scalar],
        dy: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at the level of detail that the gradients select; there is only one. `tex.grad.cube.v4.type.f32 d*4, [tex:u64*4/f32], dx:f32*4, dy:f32*4` type: f32, s32, u32."""
    def tex_level_1d(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.1d.v4.type.ctype d*4, [tex:u64*1/ctype], lod:ctype` type: f32, s32, u32. ctype: f32, s32."""
    def tex_level_2d(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.2d.v4.type.ctype d*4, [tex:u64*2/ctype], lod:ctype` type: f32, s32, u32. ctype: f32, s32."""
    def tex_level_3d(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.3d.v4.type.ctype d*4, [tex:u64*4/ctype], lod:ctype` type: f32, s32, u32. ctype: f32, s32."""
    def tex_level_a1d(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.a1d.v4.type.ctype d*4, [tex:u64*2/u32.ctype], lod:ctype` type: f32, s32, u32. ctype: f32, s32."""
    def tex_level_a2d(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
        ctype: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.a2d.v4.type.ctype d*4, [tex:u64*4/u32.ctype], lod:ctype` type: f32, s32, u32. ctype: f32, s32."""
    def tex_level_acube(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.acube.v4.type.f32 d*4, [tex:u64*4/u32.f32], lod:f32` type: f32, s32, u32."""
    def tex_level_cube(
        self,
        tex: Pointer,
        lod: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = a texture's four channels at a level of detail; there is only one. `tex.level.cube.v4.type.f32 d*4, [tex:u64*4/f32], lod:f32` type: f32, s32, u32."""
    def tld4_2d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        comp: Literal["r", "g", "b", "a"] = "r",
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = one component of the four texels around the coordinates, counter-clockwise from the lower left. `tld4.comp.2d.v4.type.f32 d*4, [tex:u64*2/f32]` type: f32, s32, u32."""
    def tld4_a2d(
        self,
        tex: Pointer,
        /,
        *,
        into: Sequence[Var] | None = None,
        comp: Literal["r", "g", "b", "a"] = "r",
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = one component of the four texels around the coordinates, counter-clockwise from the lower left. `tld4.comp.a2d.v4.type.f32 d*4, [tex:u64*4/u32.f32]` type: f32, s32, u32."""
    def trap(
        self,
    ) -> None:
        """Stop the kernel with an error. `trap`"""
    def txq(
        self,
        addr: Pointer,
        /,
        *,
        into: Var | None = None,
        query: Literal["width", "height", "depth", "array_size", "normalized_coords", "num_mipmap_levels"] = "width",
    ) -> Value:
        """d = a property of the texture whose handle is the address. `txq.query.b32 d, [addr:u64]`"""
    def unpack(
        self,
        a: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
    ) -> tuple[Value, ...]:
        """d = the parts of a, the first from the lowest bits. `mov.b32 d:b16*2, a`

        d = the parts of a, the first from the lowest bits. `mov.b64 d:b32*2, a`

        d = the parts of a, the first from the lowest bits. `mov.b128 d:b64*2, a`
        """
    def unpack_b16(
        self,
        a: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
    ) -> tuple[Value, ...]:
        """d = the parts of a, the first from the lowest bits. `mov.b64 d:b16*4, a`"""
    def unpack_byte(
        self,
        a: Scalar,
        /,
        *,
        into: Sequence[Var] | None = None,
    ) -> tuple[Value, ...]:
        """d = the parts of a, the first from the lowest bits. `mov.b32 d:byte*4, a`

        d = the parts of a, the first from the lowest bits. `mov.b16 d:byte*2, a`
        """
    def vabsdiff2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each half of d = |x - y|, for each half x of a and y of b, cut off or with .sat clamped. `vabsdiff2.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vabsdiff2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of |x - y|, for each half x of a and y of b. `vabsdiff2.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vabsdiff4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each byte of d = |x - y|, for each byte x of a and y of b, cut off or with .sat clamped. `vabsdiff4.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vabsdiff4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of |x - y|, for each byte x of a and y of b. `vabsdiff4.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vadd2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each half of d = x + y, for each half x of a and y of b, cut off or with .sat clamped. `vadd2.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vadd2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of x + y, for each half x of a and y of b. `vadd2.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vadd4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each byte of d = x + y, for each byte x of a and y of b, cut off or with .sat clamped. `vadd4.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vadd4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of x + y, for each byte x of a and y of b. `vadd4.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vavrg2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each half of d = the average of x and y, halves rounded away from zero, for each half x of a and y of b, cut off or with .sat clamped. `vavrg2.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vavrg2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the average of x and y, halves rounded away from zero, for each half x of a and y of b. `vavrg2.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vavrg4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each byte of d = the average of x and y, halves rounded away from zero, for each byte x of a and y of b, cut off or with .sat clamped. `vavrg4.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vavrg4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the average of x and y, halves rounded away from zero, for each byte x of a and y of b. `vavrg4.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmax2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each half of d = the larger of x and y, for each half x of a and y of b, cut off or with .sat clamped. `vmax2.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmax2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the larger of x and y, for each half x of a and y of b. `vmax2.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmax4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each byte of d = the larger of x and y, for each byte x of a and y of b, cut off or with .sat clamped. `vmax4.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmax4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the larger of x and y, for each byte x of a and y of b. `vmax4.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmin2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each half of d = the smaller of x and y, for each half x of a and y of b, cut off or with .sat clamped. `vmin2.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmin2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the smaller of x and y, for each half x of a and y of b. `vmin2.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmin4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each byte of d = the smaller of x and y, for each byte x of a and y of b, cut off or with .sat clamped. `vmin4.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vmin4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of the smaller of x and y, for each byte x of a and y of b. `vmin4.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
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
    def vset2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq",
    ) -> Value:
        """Each half of d = 1 if the half of a <cmp> the half of b, else 0. `vset2.atype.btype.cmp d:b32, a:b32, b:b32, c:b32` atype: u32, s32. btype: u32, s32."""
    def vset2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq",
    ) -> Value:
        """d = c + the number of halfs of a that are <cmp> the half of b. `vset2.atype.btype.cmp.add d:b32, a:b32, b:b32, c:b32` atype: u32, s32. btype: u32, s32."""
    def vset4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq",
    ) -> Value:
        """Each byte of d = 1 if the byte of a <cmp> the byte of b, else 0. `vset4.atype.btype.cmp d:b32, a:b32, b:b32, c:b32` atype: u32, s32. btype: u32, s32."""
    def vset4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq",
    ) -> Value:
        """d = c + the number of bytes of a that are <cmp> the byte of b. `vset4.atype.btype.cmp.add d:b32, a:b32, b:b32, c:b32` atype: u32, s32. btype: u32, s32."""
    def vsub2(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each half of d = x - y, for each half x of a and y of b, cut off or with .sat clamped. `vsub2.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vsub2_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of x - y, for each half x of a and y of b. `vsub2.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vsub4(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
        sat: bool = False,
    ) -> Value:
        """Each byte of d = x - y, for each byte x of a and y of b, cut off or with .sat clamped. `vsub4.dtype.atype.btype{.sat} d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def vsub4_add(
        self,
        a: Scalar,
        b: Scalar,
        c: Scalar,
        /,
        *,
        into: Var | None = None,
        dtype: ScalarType = ...,
        atype: ScalarType = ...,
        btype: ScalarType = ...,
    ) -> Value:
        """d = c + the sum of x - y, for each byte x of a and y of b. `vsub4.dtype.atype.btype.add d:b32, a:b32, b:b32, c:b32` dtype: u32, s32. atype: u32, s32. btype: u32, s32."""
    def wgmma_commit_group(
        self,
    ) -> None:
        """Make one group of all wgmma.mma_async that this warpgroup started since its last commit. `wgmma.commit_group.sync.aligned`"""
    def wgmma_f16_f16(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        ta: int,
        tb: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k16", "m64n16k16", "m64n24k16", "m64n32k16", "m64n40k16", "m64n48k16", "m64n56k16", "m64n64k16", "m64n72k16", "m64n80k16", "m64n88k16", "m64n96k16", "m64n104k16", "m64n112k16", "m64n120k16", "m64n128k16", "m64n136k16", "m64n144k16", "m64n152k16", "m64n160k16", "m64n168k16", "m64n176k16", "m64n184k16", "m64n192k16", "m64n200k16", "m64n208k16", "m64n216k16", "m64n224k16", "m64n232k16", "m64n240k16", "m64n248k16", "m64n256k16"] = "m64n8k16",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K. `wgmma.mma_async.sync.aligned.shape.f16.f16.f16 d:b32*nd, a:u64, b:u64, s:pred, ia:imm, ib:imm, ta:imm, tb:imm`"""
    def wgmma_f16_f16_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        tb: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k16", "m64n16k16", "m64n24k16", "m64n32k16", "m64n40k16", "m64n48k16", "m64n56k16", "m64n64k16", "m64n72k16", "m64n80k16", "m64n88k16", "m64n96k16", "m64n104k16", "m64n112k16", "m64n120k16", "m64n128k16", "m64n136k16", "m64n144k16", "m64n152k16", "m64n160k16", "m64n168k16", "m64n176k16", "m64n184k16", "m64n192k16", "m64n200k16", "m64n208k16", "m64n216k16", "m64n224k16", "m64n232k16", "m64n240k16", "m64n248k16", "m64n256k16"] = "m64n8k16",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K. `wgmma.mma_async.sync.aligned.shape.f16.f16.f16 d:b32*nd, a:b32*4, b:u64, s:pred, ia:imm, ib:imm, tb:imm`"""
    def wgmma_f16_fp8(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n40k32", "m64n48k32", "m64n56k32", "m64n64k32", "m64n72k32", "m64n80k32", "m64n88k32", "m64n96k32", "m64n104k32", "m64n112k32", "m64n120k32", "m64n128k32", "m64n136k32", "m64n144k32", "m64n152k32", "m64n160k32", "m64n168k32", "m64n176k32", "m64n184k32", "m64n192k32", "m64n200k32", "m64n208k32", "m64n216k32", "m64n224k32", "m64n232k32", "m64n240k32", "m64n248k32", "m64n256k32"] = "m64n8k32",
        atype: Literal["e4m3", "e5m2"] = "e4m3",
        btype: Literal["e4m3", "e5m2"] = "e4m3",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. `wgmma.mma_async.sync.aligned.shape.f16.atype.btype d:b32*nd, a:u64, b:u64, s:pred, ia:imm, ib:imm`"""
    def wgmma_f16_fp8_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n40k32", "m64n48k32", "m64n56k32", "m64n64k32", "m64n72k32", "m64n80k32", "m64n88k32", "m64n96k32", "m64n104k32", "m64n112k32", "m64n120k32", "m64n128k32", "m64n136k32", "m64n144k32", "m64n152k32", "m64n160k32", "m64n168k32", "m64n176k32", "m64n184k32", "m64n192k32", "m64n200k32", "m64n208k32", "m64n216k32", "m64n224k32", "m64n232k32", "m64n240k32", "m64n248k32", "m64n256k32"] = "m64n8k32",
        atype: Literal["e4m3", "e5m2"] = "e4m3",
        btype: Literal["e4m3", "e5m2"] = "e4m3",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. `wgmma.mma_async.sync.aligned.shape.f16.atype.btype d:b32*nd, a:b32*4, b:u64, s:pred, ia:imm, ib:imm`"""
    def wgmma_f32_bf16(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        ta: int,
        tb: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k16", "m64n16k16", "m64n24k16", "m64n32k16", "m64n40k16", "m64n48k16", "m64n56k16", "m64n64k16", "m64n72k16", "m64n80k16", "m64n88k16", "m64n96k16", "m64n104k16", "m64n112k16", "m64n120k16", "m64n128k16", "m64n136k16", "m64n144k16", "m64n152k16", "m64n160k16", "m64n168k16", "m64n176k16", "m64n184k16", "m64n192k16", "m64n200k16", "m64n208k16", "m64n216k16", "m64n224k16", "m64n232k16", "m64n240k16", "m64n248k16", "m64n256k16"] = "m64n8k16",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K. `wgmma.mma_async.sync.aligned.shape.f32.bf16.bf16 d:f32*nd, a:u64, b:u64, s:pred, ia:imm, ib:imm, ta:imm, tb:imm`"""
    def wgmma_f32_bf16_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        tb: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k16", "m64n16k16", "m64n24k16", "m64n32k16", "m64n40k16", "m64n48k16", "m64n56k16", "m64n64k16", "m64n72k16", "m64n80k16", "m64n88k16", "m64n96k16", "m64n104k16", "m64n112k16", "m64n120k16", "m64n128k16", "m64n136k16", "m64n144k16", "m64n152k16", "m64n160k16", "m64n168k16", "m64n176k16", "m64n184k16", "m64n192k16", "m64n200k16", "m64n208k16", "m64n216k16", "m64n224k16", "m64n232k16", "m64n240k16", "m64n248k16", "m64n256k16"] = "m64n8k16",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K. `wgmma.mma_async.sync.aligned.shape.f32.bf16.bf16 d:f32*nd, a:b32*4, b:u64, s:pred, ia:imm, ib:imm, tb:imm`"""
    def wgmma_f32_f16(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        ta: int,
        tb: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k16", "m64n16k16", "m64n24k16", "m64n32k16", "m64n40k16", "m64n48k16", "m64n56k16", "m64n64k16", "m64n72k16", "m64n80k16", "m64n88k16", "m64n96k16", "m64n104k16", "m64n112k16", "m64n120k16", "m64n128k16", "m64n136k16", "m64n144k16", "m64n152k16", "m64n160k16", "m64n168k16", "m64n176k16", "m64n184k16", "m64n192k16", "m64n200k16", "m64n208k16", "m64n216k16", "m64n224k16", "m64n232k16", "m64n240k16", "m64n248k16", "m64n256k16"] = "m64n8k16",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K. `wgmma.mma_async.sync.aligned.shape.f32.f16.f16 d:f32*nd, a:u64, b:u64, s:pred, ia:imm, ib:imm, ta:imm, tb:imm`"""
    def wgmma_f32_f16_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        tb: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k16", "m64n16k16", "m64n24k16", "m64n32k16", "m64n40k16", "m64n48k16", "m64n56k16", "m64n64k16", "m64n72k16", "m64n80k16", "m64n88k16", "m64n96k16", "m64n104k16", "m64n112k16", "m64n120k16", "m64n128k16", "m64n136k16", "m64n144k16", "m64n152k16", "m64n160k16", "m64n168k16", "m64n176k16", "m64n184k16", "m64n192k16", "m64n200k16", "m64n208k16", "m64n216k16", "m64n224k16", "m64n232k16", "m64n240k16", "m64n248k16", "m64n256k16"] = "m64n8k16",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K. `wgmma.mma_async.sync.aligned.shape.f32.f16.f16 d:f32*nd, a:b32*4, b:u64, s:pred, ia:imm, ib:imm, tb:imm`"""
    def wgmma_f32_fp8(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n40k32", "m64n48k32", "m64n56k32", "m64n64k32", "m64n72k32", "m64n80k32", "m64n88k32", "m64n96k32", "m64n104k32", "m64n112k32", "m64n120k32", "m64n128k32", "m64n136k32", "m64n144k32", "m64n152k32", "m64n160k32", "m64n168k32", "m64n176k32", "m64n184k32", "m64n192k32", "m64n200k32", "m64n208k32", "m64n216k32", "m64n224k32", "m64n232k32", "m64n240k32", "m64n248k32", "m64n256k32"] = "m64n8k32",
        atype: Literal["e4m3", "e5m2"] = "e4m3",
        btype: Literal["e4m3", "e5m2"] = "e4m3",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. `wgmma.mma_async.sync.aligned.shape.f32.atype.btype d:f32*nd, a:u64, b:u64, s:pred, ia:imm, ib:imm`"""
    def wgmma_f32_fp8_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n40k32", "m64n48k32", "m64n56k32", "m64n64k32", "m64n72k32", "m64n80k32", "m64n88k32", "m64n96k32", "m64n104k32", "m64n112k32", "m64n120k32", "m64n128k32", "m64n136k32", "m64n144k32", "m64n152k32", "m64n160k32", "m64n168k32", "m64n176k32", "m64n184k32", "m64n192k32", "m64n200k32", "m64n208k32", "m64n216k32", "m64n224k32", "m64n232k32", "m64n240k32", "m64n248k32", "m64n256k32"] = "m64n8k32",
        atype: Literal["e4m3", "e5m2"] = "e4m3",
        btype: Literal["e4m3", "e5m2"] = "e4m3",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. `wgmma.mma_async.sync.aligned.shape.f32.atype.btype d:f32*nd, a:b32*4, b:u64, s:pred, ia:imm, ib:imm`"""
    def wgmma_f32_tf32(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k8", "m64n16k8", "m64n24k8", "m64n32k8", "m64n40k8", "m64n48k8", "m64n56k8", "m64n64k8", "m64n72k8", "m64n80k8", "m64n88k8", "m64n96k8", "m64n104k8", "m64n112k8", "m64n120k8", "m64n128k8", "m64n136k8", "m64n144k8", "m64n152k8", "m64n160k8", "m64n168k8", "m64n176k8", "m64n184k8", "m64n192k8", "m64n200k8", "m64n208k8", "m64n216k8", "m64n224k8", "m64n232k8", "m64n240k8", "m64n248k8", "m64n256k8"] = "m64n8k8",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. `wgmma.mma_async.sync.aligned.shape.f32.tf32.tf32 d:f32*nd, a:u64, b:u64, s:pred, ia:imm, ib:imm`"""
    def wgmma_f32_tf32_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        ia: int,
        ib: int,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k8", "m64n16k8", "m64n24k8", "m64n32k8", "m64n40k8", "m64n48k8", "m64n56k8", "m64n64k8", "m64n72k8", "m64n80k8", "m64n88k8", "m64n96k8", "m64n104k8", "m64n112k8", "m64n120k8", "m64n128k8", "m64n136k8", "m64n144k8", "m64n152k8", "m64n160k8", "m64n168k8", "m64n176k8", "m64n184k8", "m64n192k8", "m64n200k8", "m64n208k8", "m64n216k8", "m64n224k8", "m64n232k8", "m64n240k8", "m64n248k8", "m64n256k8"] = "m64n8k8",
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. ia and ib are 1 or -1, factors of A and B. `wgmma.mma_async.sync.aligned.shape.f32.tf32.tf32 d:f32*nd, a:b32*4, b:u64, s:pred, ia:imm, ib:imm`"""
    def wgmma_fence(
        self,
    ) -> None:
        """Order this warp's accesses to registers before later wgmma.mma_async that read or write them. `wgmma.fence.sync.aligned`"""
    def wgmma_s32_s8(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.s8.s8 d:s32*nd, a:u64, b:u64, s:pred`"""
    def wgmma_s32_s8_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.s8.s8 d:s32*nd, a:b32*4, b:u64, s:pred`"""
    def wgmma_s32_s8_u8(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.s8.u8 d:s32*nd, a:u64, b:u64, s:pred`"""
    def wgmma_s32_s8_u8_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.s8.u8 d:s32*nd, a:b32*4, b:u64, s:pred`"""
    def wgmma_s32_u8(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.u8.u8 d:s32*nd, a:u64, b:u64, s:pred`"""
    def wgmma_s32_u8_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.u8.u8 d:s32*nd, a:b32*4, b:u64, s:pred`"""
    def wgmma_s32_u8_s8(
        self,
        a: Scalar,
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in shared memory, as the descriptor a says, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.u8.s8 d:s32*nd, a:u64, b:u64, s:pred`"""
    def wgmma_s32_u8_s8_registers(
        self,
        a: Sequence[Scalar],
        b: Scalar,
        s: Value,
        /,
        *,
        into: Sequence[Var] | None = None,
        shape: Literal["m64n8k32", "m64n16k32", "m64n24k32", "m64n32k32", "m64n48k32", "m64n64k32", "m64n80k32", "m64n96k32", "m64n112k32", "m64n128k32", "m64n144k32", "m64n160k32", "m64n176k32", "m64n192k32", "m64n208k32", "m64n224k32", "m64n240k32", "m64n256k32"] = "m64n8k32",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """d = A * B + d if s, else A * B; A is in registers, B in shared memory, as b says. `wgmma.mma_async.sync.aligned.shape{.satfinite}.s32.u8.s8 d:s32*nd, a:b32*4, b:u64, s:pred`"""
    def wgmma_wait_group(
        self,
        n: int,
        /,
    ) -> None:
        """Wait until at most the n newest groups of this warpgroup are still under way. `wgmma.wait_group.sync.aligned n:imm`"""
    def wmma_bf16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in bf16, C and D in f32. `wmma.mma.sync.aligned.alayout.blayout.shape.f32.bf16.bf16.f32 d:f32*8, a:b32*na, b:b32*nb, c:f32*8`"""
    def wmma_bits(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        op: Literal["xor", "and"] = "xor",
    ) -> tuple[Value, ...]:
        """D = C + the number of ones in each row of A xor (and) each column of B, of a warp. `wmma.mma.op.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 d:s32*2, a:b32*1, b:b32*1, c:s32*2`"""
    def wmma_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, all in f16. `wmma.mma.sync.aligned.alayout.blayout.shape.f16.f16 d:b32*4, a:b32*8, b:b32*8, c:b32*4`"""
    def wmma_f16_f32(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A, B and D in f16, C in f32: a sum in f32, rounded to f16. `wmma.mma.sync.aligned.alayout.blayout.shape.f16.f32 d:b32*4, a:b32*8, b:b32*8, c:f32*8`"""
    def wmma_f32(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in f16, C and D in f32. `wmma.mma.sync.aligned.alayout.blayout.shape.f32.f32 d:f32*8, a:b32*8, b:b32*8, c:f32*8`"""
    def wmma_f32_f16(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A, B and C in f16, D in f32. `wmma.mma.sync.aligned.alayout.blayout.shape.f32.f16 d:f32*8, a:b32*8, b:b32*8, c:b32*4`"""
    def wmma_f64(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        rnd: Literal["rn", "rz", "rm", "rp"] | None = None,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says. `wmma.mma.sync.aligned.alayout.blayout.m8n8k4{.rnd}.f64.f64.f64.f64 d:f64*2, a:f64*1, b:f64*1, c:f64*2`"""
    def wmma_f64_rounding_last(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        rnd: Literal["rn", "rz", "rm", "rp"] = "rn",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says. `wmma.mma.sync.aligned.alayout.blayout.m8n8k4.f64.f64.f64.f64.rnd d:f64*2, a:f64*1, b:f64*1, c:f64*2`"""
    def wmma_load_a(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        layout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
        type: Literal["bf16", "s8", "u8"] = "bf16",
    ) -> tuple[Value, ...]:
        """d = the fragment of A at addr, whose rows (columns) are stride elements apart. `wmma.load.a.sync.aligned.layout.shape{.space}.type d:b32*na, [addr:u64]{, stride:u32}`"""
    def wmma_load_a_bits(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of A at addr, whose rows are stride elements apart. `wmma.load.a.sync.aligned.row.m8n8k128{.space}.b1 d:b32*1, [addr:u64]{, stride:u32}`"""
    def wmma_load_a_int4(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "shared::cta"] | None = ...,
        type: Literal["s4", "u4"] = "s4",
    ) -> tuple[Value, ...]:
        """d = the fragment of A at addr, whose rows are stride elements apart. `wmma.load.a.sync.aligned.row.m8n8k32{.space}.type d:b32*1, [addr:u64]{, stride:u32}`"""
    def wmma_load_b(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        layout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
        type: Literal["bf16", "s8", "u8"] = "bf16",
    ) -> tuple[Value, ...]:
        """d = the fragment of B at addr, whose rows (columns) are stride elements apart. `wmma.load.b.sync.aligned.layout.shape{.space}.type d:b32*nb, [addr:u64]{, stride:u32}`"""
    def wmma_load_b_bits(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of B at addr, whose columns are stride elements apart. `wmma.load.b.sync.aligned.col.m8n8k128{.space}.b1 d:b32*1, [addr:u64]{, stride:u32}`"""
    def wmma_load_b_int4(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        space: Literal["global", "shared", "shared::cta"] | None = ...,
        type: Literal["s4", "u4"] = "s4",
    ) -> tuple[Value, ...]:
        """d = the fragment of B at addr, whose columns are stride elements apart. `wmma.load.b.sync.aligned.col.m8n8k32{.space}.type d:b32*1, [addr:u64]{, stride:u32}`"""
    def wmma_load_c(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        layout: Literal["row", "col"] = "row",
        shape: Literal["m8n8k4", "m16n16k16", "m32n8k16", "m8n32k16", "m8n8k32", "m8n8k128", "m16n16k8"] = "m8n8k4",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
        type: ScalarType = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of C at addr, whose rows (columns) are stride elements apart. `wmma.load.c.sync.aligned.layout.shape{.space}.type d*nc, [addr:u64]{, stride:u32}` type: f64.

        d = the fragment of C at addr, whose rows (columns) are stride elements apart. `wmma.load.c.sync.aligned.layout.shape{.space}.type d*nc, [addr:u64]{, stride:u32}` type: s32.

        d = the fragment of C at addr, whose rows (columns) are stride elements apart. `wmma.load.c.sync.aligned.layout.shape{.space}.type d*nc, [addr:u64]{, stride:u32}` type: f32.
        """
    def wmma_load_c_f16(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        layout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of C at addr, whose rows (columns) are stride elements apart. `wmma.load.c.sync.aligned.layout.shape{.space}.f16 d:b32*4, [addr:u64]{, stride:u32}`"""
    def wmma_load_f16(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        operand: Literal["a", "b"] = "a",
        layout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of A or B at addr, whose rows (columns) are stride elements apart. `wmma.load.operand.sync.aligned.layout.shape{.space}.f16 d:b32*8, [addr:u64]{, stride:u32}`"""
    def wmma_load_f64(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        operand: Literal["a", "b"] = "a",
        layout: Literal["row", "col"] = "row",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of A or B at addr, whose rows (columns) are stride elements apart. `wmma.load.operand.sync.aligned.layout.m8n8k4{.space}.f64 d:f64*1, [addr:u64]{, stride:u32}`"""
    def wmma_load_tf32(
        self,
        addr: Pointer,
        stride: Scalar = ...,
        /,
        *,
        into: Sequence[Var] | None = None,
        operand: Literal["a", "b"] = "a",
        layout: Literal["row", "col"] = "row",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> tuple[Value, ...]:
        """d = the fragment of A or B at addr, whose rows (columns) are stride elements apart. `wmma.load.operand.sync.aligned.layout.m16n16k8{.space}.tf32 d:b32*4, [addr:u64]{, stride:u32}`"""
    def wmma_s4(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in s4, C and D in s32, which wraps around or saturates. `wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32{.satfinite} d:s32*2, a:b32*1, b:b32*1, c:s32*2`"""
    def wmma_s8(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in s8, C and D in s32, which wraps around or saturates. `wmma.mma.sync.aligned.alayout.blayout.shape.s32.s8.s8.s32{.satfinite} d:s32*8, a:b32*na, b:b32*nb, c:s32*8`"""
    def wmma_store(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        stride: Scalar = ...,
        /,
        *,
        layout: Literal["row", "col"] = "row",
        shape: Literal["m8n8k4", "m16n16k16", "m32n8k16", "m8n32k16", "m8n8k32", "m8n8k128", "m16n16k8"] = "m8n8k4",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
        type: ScalarType = ...,
    ) -> None:
        """Write the fragment of D to addr, with its rows (columns) stride elements apart. `wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}` type: f64.

        Write the fragment of D to addr, with its rows (columns) stride elements apart. `wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}` type: s32.

        Write the fragment of D to addr, with its rows (columns) stride elements apart. `wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}` type: f32.
        """
    def wmma_store_f16(
        self,
        addr: Pointer,
        a: Sequence[Scalar],
        stride: Scalar = ...,
        /,
        *,
        layout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        space: Literal["global", "shared", "shared::cta"] | None = ...,
    ) -> None:
        """Write the fragment of D to addr, with its rows (columns) stride elements apart. `wmma.store.d.sync.aligned.layout.shape{.space}.f16 [addr:u64], a:b32*4{, stride:u32}`"""
    def wmma_tf32(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in tf32 (the low 13 bits are ignored), C and D in f32. `wmma.mma.sync.aligned.alayout.blayout.m16n16k8.f32.tf32.tf32.f32 d:f32*8, a:b32*4, b:b32*4, c:f32*8`"""
    def wmma_u4(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in u4, C and D in s32, which wraps around or saturates. `wmma.mma.sync.aligned.row.col.m8n8k32.s32.u4.u4.s32{.satfinite} d:s32*2, a:b32*1, b:b32*1, c:s32*2`"""
    def wmma_u8(
        self,
        a: Sequence[Scalar],
        b: Sequence[Scalar],
        c: Sequence[Scalar],
        /,
        *,
        into: Sequence[Var] | None = None,
        alayout: Literal["row", "col"] = "row",
        blayout: Literal["row", "col"] = "row",
        shape: Literal["m16n16k16", "m32n8k16", "m8n32k16"] = "m16n16k16",
        satfinite: bool = False,
    ) -> tuple[Value, ...]:
        """D = A * B + C of a warp; A and B in u8, C and D in s32, which wraps around or saturates. `wmma.mma.sync.aligned.alayout.blayout.shape.s32.u8.u8.s32{.satfinite} d:s32*8, a:b32*na, b:b32*nb, c:s32*8`"""
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
