// targets: sm_80 sm_90a
// C = A B through inline mma.sync, ldmatrix and a double buffer filled by cp.async.
#include <cuda_fp16.h>

__device__ __forceinline__ unsigned int in_shared(const void *p) {
    return static_cast<unsigned int>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(in_shared(to)), "l"(from));
}

// 64 x 64 tiles by four warps of 32 x 32 each; a step takes 32 of k. m and n multiples of 64, k of
// 32; A is m x k and B is k x n, both by rows.
extern "C" __global__ void __launch_bounds__(128) mma_f16(const half *a, const half *b, float *c,
                                                         int n, int k) {
    __shared__ __align__(16) half a_tile[2][64][40], b_tile[2][32][72];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = blockIdx.y * 64, column = blockIdx.x * 64;
    int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
    float sum[2][4][4] = {};

    auto stage = [&](int buffer, int first) {
        for (int e = threadIdx.x; e < 64 * 4; e += 128)
            copy16(&a_tile[buffer][e / 4][e % 4 * 8], &a[(row + e / 4) * k + first + e % 4 * 8]);
        for (int e = threadIdx.x; e < 32 * 8; e += 128)
            copy16(&b_tile[buffer][e / 8][e % 8 * 8], &b[(first + e / 8) * n + column + e % 8 * 8]);
        asm volatile("cp.async.commit_group;");
    };

    stage(0, 0);
    for (int first = 0, buffer = 0; first < k; first += 32, buffer ^= 1) {
        if (first + 32 < k) {
            stage(buffer ^ 1, first + 32);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        for (int step = 0; step < 32; step += 16) {
            unsigned int fa[2][4], fb[4][2];
            for (int i = 0; i < 2; i++)
                asm volatile(
                    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                    : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                    : "r"(in_shared(&a_tile[buffer][warp_row + 16 * i + lane % 16]
                                           [step + lane / 16 * 8])));
            for (int j = 0; j < 4; j += 2)
                asm volatile(
                    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                    : "=r"(fb[j][0]), "=r"(fb[j][1]), "=r"(fb[j + 1][0]), "=r"(fb[j + 1][1])
                    : "r"(in_shared(&b_tile[buffer][step + lane % 16]
                                           [warp_column + 8 * j + lane / 16 * 8])));
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++)
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]),
                          "+f"(sum[i][j][3])
                        : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]),
                          "r"(fb[j][0]), "r"(fb[j][1]));
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) {
            int r = row + warp_row + 16 * i + lane / 4, at = column + warp_column + 8 * j + lane % 4 * 2;
            *reinterpret_cast<float2 *>(&c[r * n + at]) = make_float2(sum[i][j][0], sum[i][j][1]);
            *reinterpret_cast<float2 *>(&c[(r + 8) * n + at]) =
                make_float2(sum[i][j][2], sum[i][j][3]);
        }
}

// One warp, one product of each other shape, operands straight from global memory.
// A and B^T are read as rows of 32-bit words that hold `per_word` elements each.
extern "C" __global__ void mma_bf16(const unsigned int *a, const unsigned int *b_transposed, float *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;  // 16 x 8 x 8: rows of 4 words
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[g * 4 + t]), "r"(a[(g + 8) * 4 + t]), "r"(b_transposed[g * 4 + t]));
    c[g * 8 + 2 * t] = d0;
    c[g * 8 + 2 * t + 1] = d1;
    c[(g + 8) * 8 + 2 * t] = d2;
    c[(g + 8) * 8 + 2 * t + 1] = d3;
}

extern "C" __global__ void mma_tf32(const unsigned int *a, const unsigned int *b_transposed, float *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;  // 16 x 8 x 8: rows of 8 words
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[g * 8 + t]), "r"(a[(g + 8) * 8 + t]), "r"(a[g * 8 + t + 4]),
          "r"(a[(g + 8) * 8 + t + 4]), "r"(b_transposed[g * 8 + t]), "r"(b_transposed[g * 8 + t + 4]));
    c[g * 8 + 2 * t] = d0;
    c[g * 8 + 2 * t + 1] = d1;
    c[(g + 8) * 8 + 2 * t] = d2;
    c[(g + 8) * 8 + 2 * t + 1] = d3;
}

extern "C" __global__ void mma_s8(const unsigned int *a, const unsigned int *b_transposed, int *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;  // 16 x 8 x 32: rows of 8 words
    int d0 = 1, d1 = 2, d2 = 3, d3 = 4;
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3)
        : "r"(a[g * 8 + t]), "r"(a[(g + 8) * 8 + t]), "r"(a[g * 8 + t + 4]),
          "r"(a[(g + 8) * 8 + t + 4]), "r"(b_transposed[g * 8 + t]), "r"(b_transposed[g * 8 + t + 4]));
    c[g * 8 + 2 * t] = d0;
    c[g * 8 + 2 * t + 1] = d1;
    c[(g + 8) * 8 + 2 * t] = d2;
    c[(g + 8) * 8 + 2 * t + 1] = d3;
}

extern "C" __global__ void mma_f64(const double *a, const double *b_transposed, double *c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;  // 8 x 8 x 4
    double d0 = 0, d1 = 0;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d0), "+d"(d1)
                 : "d"(a[g * 4 + t]), "d"(b_transposed[g * 4 + t]));
    c[g * 8 + 2 * t] = d0;
    c[g * 8 + 2 * t + 1] = d1;
}
