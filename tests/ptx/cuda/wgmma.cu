// targets: sm_90a
// wgmma with descriptors made by hand: the 64 x 64 product of one warpgroup.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ unsigned int in_shared(const void *p) {
    return static_cast<unsigned int>(__cvta_generic_to_shared(p));
}

// Byte offsets are in units of 16; swizzle 0 is none, 1 is 128 bytes.
__device__ __forceinline__ unsigned long long descriptor(const void *p, unsigned int leading,
                                                         unsigned int stride, unsigned int swizzle) {
    return (unsigned long long)((in_shared(p) & 0x3ffff) >> 4) |
           (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
           (unsigned long long)swizzle << 62;
}

#define EIGHT(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define THIRTY_TWO(d) EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
#define SUMS \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void finish() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ __forceinline__ void store(float *c, const float *d, int n) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; i++)
        c[(16 * warp + lane / 4 + 8 * (i >> 1 & 1)) * n + 8 * (i >> 2) + 2 * (lane % 4) + (i & 1)] = d[i];
}

// C = A B^T, both 64 x k by rows, k a multiple of 64; panels of 64 columns with the 128-byte swizzle.
extern "C" __global__ void __launch_bounds__(128) wgmma_swizzled(const __half *a, const __half *b,
                                                                float *c, int k) {
    __shared__ __align__(1024) __half a_tile[64 * 64], b_tile[64 * 64];
    float d[32] = {};
    for (int first = 0; first < k; first += 64) {
        for (int e = threadIdx.x; e < 64 * 8; e += 128) {
            int row = e / 8, chunk = e % 8, at = row * 64 + (chunk ^ (row & 7)) * 8;
            *reinterpret_cast<uint4 *>(&a_tile[at]) =
                *reinterpret_cast<const uint4 *>(&a[row * k + first + chunk * 8]);
            *reinterpret_cast<uint4 *>(&b_tile[at]) =
                *reinterpret_cast<const uint4 *>(&b[row * k + first + chunk * 8]);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        begin();
        for (int step = 0; step < 64; step += 16) {
            unsigned long long da = descriptor(a_tile + step, 16, 1024, 1),
                               db = descriptor(b_tile + step, 16, 1024, 1);
            asm volatile(
                "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " SUMS "%32, %33, 1, 1, 1, 0, 0;"
                : THIRTY_TWO(d)
                : "l"(da), "l"(db));
        }
        finish();
        __syncthreads();
    }
    store(c, d, 64);
}

// C = A B, A 64 x 16 in registers, B 16 x 64 by rows (its other major), no swizzle: core matrices of
// 8 rows of 16 bytes; the first product does not read the accumulator.
extern "C" __global__ void __launch_bounds__(128) wgmma_registers(const __nv_bfloat16 *a,
                                                                 const __nv_bfloat16 *b, float *c) {
    __shared__ __align__(128) __nv_bfloat16 b_tile[16 * 64];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Core matrix (k / 8, n / 8) holds rows k % 8 of eight n each.
    for (int e = threadIdx.x; e < 16 * 64; e += 128) {
        int row = e / 64, column = e % 64;
        b_tile[((column / 8) * 2 + row / 8) * 64 + row % 8 * 8 + column % 8] = b[e];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned int fa[4];
    for (int i = 0; i < 4; i++) {
        int row = 16 * warp + lane / 4 + 8 * (i & 1), column = lane % 4 * 2 + 8 * (i >> 1);
        fa[i] = *reinterpret_cast<const unsigned int *>(&a[row * 16 + column]);
    }
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 1e30f;
    // Without swizzle, n contiguous: the leading offset leads to the next 8 of n or k, the stride to
    // the other.
    unsigned long long db = descriptor(b_tile, 128, 256, 0);
    begin();
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS
        "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t}"
        : THIRTY_TWO(d)
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "l"(db), "r"(0));
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS
        "{%32, %33, %34, %35}, %36, 1, -1, 1, 1;"
        : THIRTY_TWO(d)
        : "r"(fa[0]), "r"(fa[0]), "r"(fa[2]), "r"(fa[2]), "l"(db));
    finish();
    store(c, d, 64);
}
