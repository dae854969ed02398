// Half precision, bf16 and fp8: arithmetic, comparison, conversion.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

// Six results a pair.
extern "C" __global__ void half_arithmetic(const __half2 *x, const __half2 *y, __half2 *out) {
    int i = threadIdx.x, n = blockDim.x;
    __half2 a = x[i], b = y[i];
    out[i] = __hadd2(a, b);
    out[n + i] = __hmul2(a, b);
    out[2 * n + i] = __hfma2(a, b, __float2half2_rn(0.5f));
    out[3 * n + i] = __hsub2(__hneg2(a), b);
    out[4 * n + i] = __hmul2_sat(a, b);
    out[5 * n + i] = __hgt2(a, b);
}

extern "C" __global__ void half_scalar(const __half *x, const __half *y, __half *out, int *flags) {
    int i = threadIdx.x, n = blockDim.x;
    __half a = x[i], b = y[i];
    out[i] = a + b;
    out[n + i] = a / b;
    out[2 * n + i] = __hfma(a, b, a);
    out[3 * n + i] = __habs(a) - b;
    flags[i] = (a < b) + 2 * (a == b) + 4 * __hisnan(a) + 8 * __hisinf(b);
}

// The dot product of two vectors of half2, accumulated in f32.
extern "C" __global__ void half_dot(const __half2 *x, const __half2 *y, float *out, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        float2 a = __half22float2(x[i]), b = __half22float2(y[i]);
        sum += a.x * b.x + a.y * b.y;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) *out = sum;
}

extern "C" __global__ void half_conversions(const float *x, __half *out, int *ints, float *back) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __float2half_rn(x[i]);
    out[n + i] = __float2half_rz(x[i]);
    out[2 * n + i] = __float2half_ru(x[i]);
    out[3 * n + i] = __float2half_rd(x[i]);
    __half h = __float2half(x[i]);
    ints[i] = __half2int_rn(h);
    ints[n + i] = __half2short_rz(h);
    ints[2 * n + i] = __half_as_ushort(__int2half_rn(100 * i + 7));
    back[i] = __half2float(h);
    back[n + i] = __half2float(hfloor(h)) + 1000.0f * __half2float(hceil(h));
}

extern "C" __global__ void bf16_conversions(const float2 *x, __nv_bfloat162 *out, float *back) {
    int i = threadIdx.x, n = blockDim.x;
    __nv_bfloat162 v = __floats2bfloat162_rn(x[i].x, x[i].y);
    out[i] = v;
    out[n + i] = __nv_bfloat162(__float2bfloat16_rz(x[i].x), __float2bfloat16_ru(x[i].y));
    back[i] = __bfloat162float(v.x) + __bfloat162float(v.y);
}

extern "C" __global__ void fp8_conversions(const float *x, unsigned char *out, __half *back) {
    int i = threadIdx.x, n = blockDim.x;
    __nv_fp8_storage_t e4 = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
    __nv_fp8_storage_t e5 = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2);
    out[i] = e4;
    out[n + i] = e5;
    back[i] = __half(__nv_cvt_fp8_to_halfraw(e4, __NV_E4M3));
    back[n + i] = __half(__nv_cvt_fp8_to_halfraw(e5, __NV_E5M2));
}

// Pairs of fp8: one instruction on sm_89 and later.
extern "C" __global__ void fp8_pairs(const float2 *x, unsigned short *out, __half2 *back) {
    int i = threadIdx.x, n = blockDim.x;
    __nv_fp8x2_storage_t e4 = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E4M3);
    __nv_fp8x2_storage_t e5 = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E5M2);
    out[i] = e4;
    out[n + i] = e5;
    back[i] = __half2(__nv_cvt_fp8x2_to_halfraw2(e4, __NV_E4M3));
    back[n + i] = __half2(__nv_cvt_fp8x2_to_halfraw2(e5, __NV_E5M2));
}

extern "C" __global__ void half_atomics(const __half2 *x, __half2 *total, const __nv_bfloat16 *y,
                                        __nv_bfloat16 *sum, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    atomicAdd(total, x[i]);
    atomicAdd(sum, y[i]);
}
