// targets: sm_80 sm_90a
// mbarriers and cp.async in the forms that sm_80 has.

__device__ __forceinline__ unsigned int in_shared(const void *p) {
    return static_cast<unsigned int>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void initialise(unsigned long long *bar, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(in_shared(bar)), "r"(count) : "memory");
}

__device__ __forceinline__ unsigned long long arrive(unsigned long long *bar) {
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];"
                 : "=l"(state)
                 : "r"(in_shared(bar))
                 : "memory");
    return state;
}

__device__ __forceinline__ bool arrived(unsigned long long *bar, unsigned long long state) {
    unsigned int done;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.test_wait.shared.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(in_shared(bar)), "l"(state)
        : "memory");
    return done != 0;
}

// All threads arrive and wait, several phases.
extern "C" __global__ void mbarrier_rounds(const int *x, int *out, int rounds) {
    __shared__ __align__(8) unsigned long long bar;
    __shared__ int tile[2][64];
    if (threadIdx.x == 0) initialise(&bar, blockDim.x);
    __syncthreads();
    int v = x[threadIdx.x];
    for (int r = 0; r < rounds; r++) {
        tile[r & 1][threadIdx.x] = v;
        unsigned long long state = arrive(&bar);
        while (!arrived(&bar, state)) {
        }
        v = tile[r & 1][(threadIdx.x + 1) % blockDim.x] + r;
    }
    out[threadIdx.x] = v;
    __syncthreads();  // nobody polls any more
    if (threadIdx.x == 0)
        asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(in_shared(&bar)) : "memory");
}

// cp.async completes an mbarrier; a partial copy fills with zeros.
extern "C" __global__ void mbarrier_copies(const float4 *x, float *out, int valid) {
    __shared__ __align__(8) unsigned long long bar;
    __shared__ __align__(16) float4 tile[32];
    if (threadIdx.x == 0) initialise(&bar, blockDim.x);
    __syncthreads();
    int bytes = min(max(valid - 16 * (int)threadIdx.x, 0), 16);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(&tile[threadIdx.x])),
                 "l"(x + threadIdx.x), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(in_shared(&bar)) : "memory");
    unsigned int done;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(in_shared(&bar)), "r"(0)
            : "memory");
    } while (!done);
    const float *words = reinterpret_cast<const float *>(tile);
    for (int i = threadIdx.x; i < 128; i += 32) out[i] = words[127 - i];
}

// Four stages of 4-byte copies; wait_group leaves the younger ones under way.
extern "C" __global__ void copy_stages(const int *x, int *out, int stages) {
    __shared__ int tile[4][64];
    auto start = [&](int s) {
        if (s < stages)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                             in_shared(&tile[s % 4][threadIdx.x])),
                         "l"(x + s * 64 + threadIdx.x)
                         : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int s = 0; s < 3; s++) start(s);
    int sum = 0;
    for (int s = 0; s < stages; s++) {
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        __syncthreads();
        sum += tile[s % 4][63 - threadIdx.x] * (s + 1);
        start(s + 3);
    }
    out[threadIdx.x] = sum;
}
