// targets: sm_90a
// mbarriers with transaction counts, bulk copies, and the C++ barrier of libcu++ replaced by PTX.

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

// One warp fetches tiles of 256 floats by bulk copies into two buffers, the others add them up.
extern "C" __global__ void bulk_pipeline(const float *x, float *out, int tiles) {
    __shared__ __align__(8) unsigned long long full[2], empty[2];
    __shared__ __align__(128) float tile[2][256];
    int warp = threadIdx.x / 32, consumers = blockDim.x - 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(in_shared(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(in_shared(&empty[s])),
                         "r"(consumers));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == 0) {
        if (threadIdx.x == 0)
            for (int t = 0; t < tiles; t++) {
                int s = t % 2;
                wait_parity(&empty[s], (t / 2 & 1) ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                                 in_shared(&full[s])),
                             "r"(1024)
                             : "memory");
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[%0], [%1], %2, [%3];" ::"r"(in_shared(tile[s])),
                    "l"(x + t * 256), "r"(1024), "r"(in_shared(&full[s]))
                    : "memory");
            }
    } else {
        int i = threadIdx.x - 32;
        float sums[256 / 64] = {};
        for (int t = 0; t < tiles; t++) {
            int s = t % 2;
            wait_parity(&full[s], t / 2 & 1);
            for (int k = 0; k < 4; k++) sums[k] += tile[s][i + 64 * k] * (t + 1);
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(in_shared(&empty[s]))
                         : "memory");
        }
        for (int k = 0; k < 4; k++) out[i + 64 * k] = sums[k];
    }
}

// Shared memory written by threads goes out by one bulk copy, and is added by another.
extern "C" __global__ void bulk_store(const float *x, float *copy, float *sum) {
    __shared__ __align__(128) float tile[128];
    tile[threadIdx.x] = 3.0f * x[blockIdx.x * 128 + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         copy + blockIdx.x * 128),
                     "r"(in_shared(tile)), "r"(512)
                     : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sum),
                     "r"(in_shared(tile)), "r"(512)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Who is elected does work alone.
extern "C" __global__ void elected(int *out) {
    unsigned int leader, chosen;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "elect.sync %0|p, 0xffffffff;\n\t"
        "selp.u32 %1, 1, 0, p;\n\t}"
        : "=r"(leader), "=r"(chosen));
    unsigned int count = __popc(__ballot_sync(0xffffffffu, chosen));
    out[threadIdx.x] = (leader < 32) + 2 * count + 4 * (chosen && leader != threadIdx.x % 32);
}
