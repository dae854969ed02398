// targets: sm_80 sm_90a
// bf16 arithmetic, which sm_80 is the first to have.
#include <cuda_bf16.h>

extern "C" __global__ void bf16_arithmetic(const __nv_bfloat162 *x, const __nv_bfloat162 *y,
                                           __nv_bfloat162 *out) {
    int i = threadIdx.x, n = blockDim.x;
    __nv_bfloat162 a = x[i], b = y[i];
    out[i] = __hadd2(a, b);
    out[n + i] = __hmul2(a, b);
    out[2 * n + i] = __hfma2(a, b, a);
    out[3 * n + i] = __hmax2(a, b);
}
