// targets: sm_90a
// Tensor memory accelerator: tiles come and go by tensor maps given as parameters.
#include <cuda_fp16.h>

struct __align__(64) TensorMap {  // what cuTensorMapEncodeTiled fills
    unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned int in_shared(const void *p) {
    return static_cast<unsigned int>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void wait_parity(unsigned long long *bar, unsigned int parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(in_shared(bar)),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void load_tile(void *to, const TensorMap *map, int x, int y,
                                          unsigned long long *bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(in_shared(to)),
        "l"(map), "r"(x), "r"(y), "r"(in_shared(bar))
        : "memory");
}

__device__ __forceinline__ void expect(unsigned long long *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(bar)), "r"(bytes)
                 : "memory");
}

// A box of 32 x 8 floats, no swizzle: read (zeros outside), doubled, written to another place.
extern "C" __global__ void tma_copy(const __grid_constant__ TensorMap from,
                                    const __grid_constant__ TensorMap to, int x, int y, int to_x,
                                    int to_y) {
    __shared__ __align__(128) float tile[8 * 32];
    __shared__ __align__(8) unsigned long long bar;
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&from) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(in_shared(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(&bar, sizeof(tile));
        load_tile(tile, &from, x, y, &bar);
    }
    wait_parity(&bar, 0);
    for (int i = threadIdx.x; i < 8 * 32; i += blockDim.x) tile[i] *= 2.0f;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
                     "r"(to_x), "r"(to_y), "r"(in_shared(tile))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// The shared image of a box of 64 x 8 halves with the 128-byte swizzle, as it lies there.
extern "C" __global__ void tma_image(const __grid_constant__ TensorMap map, unsigned short *out, int x,
                                     int y) {
    __shared__ __align__(1024) unsigned short tile[8 * 64];
    __shared__ __align__(8) unsigned long long bar;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(in_shared(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect(&bar, sizeof(tile));
        load_tile(tile, &map, x, y, &bar);
    }
    __syncthreads();
    wait_parity(&bar, 0);
    for (int i = threadIdx.x; i < 8 * 64; i += blockDim.x) out[i] = tile[i];
}

#define EIGHT(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])

// C = A B: A m x k and B k x n by rows, tiles of 64 x 64 by TMA with the 128-byte swizzle, wgmma with
// B's other major; a producer warp ahead of a warpgroup, two stages. n is the width of C.
extern "C" __global__ void __launch_bounds__(160) tma_wgmma(const __grid_constant__ TensorMap a_map,
                                                           const __grid_constant__ TensorMap b_map,
                                                           float *c, int n, int k) {
    extern __shared__ __align__(1024) unsigned char tiles[];  // stage: 8192 bytes of A, 8192 of B
    __shared__ __align__(8) unsigned long long full[2], empty[2];
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(in_shared(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(in_shared(&empty[s])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int row = blockIdx.y * 64, column = blockIdx.x * 64;
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128)
            for (int first = 0, t = 0; first < k; first += 64, t++) {
                int s = t % 2;
                wait_parity(&empty[s], (t / 2 & 1) ^ 1);
                expect(&full[s], 16384);
                load_tile(tiles + s * 16384, &a_map, first, row, &full[s]);
                load_tile(tiles + s * 16384 + 8192, &b_map, column, first, &full[s]);
            }
        return;
    }
    float d[32] = {};
    for (int first = 0, t = 0; first < k; first += 64, t++) {
        int s = t % 2;
        wait_parity(&full[s], t / 2 & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        unsigned int at = in_shared(tiles + s * 16384);
        for (int step = 0; step < 4; step++) {
            unsigned long long da = (at + 32 * step) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
            unsigned long long db = (at + 8192 + 2048 * step) >> 4 | 512ull << 16 | 64ull << 32 | 1ull << 62;
            asm volatile(
                "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                "%32, %33, 1, 1, 1, 0, 1;"
                : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
                : "l"(da), "l"(db));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(in_shared(&empty[s])) : "memory");
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; i++)
        c[(row + 16 * warp + lane / 4 + 8 * (i >> 1 & 1)) * n + column + 8 * (i >> 2) + 2 * (lane % 4) +
          (i & 1)] = d[i];
}
