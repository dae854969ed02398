// Memory: dynamic shared memory in two parts, vectors, cache operators, generic addresses, flags.

// doubles first, then n shorts behind them.
extern "C" __global__ void shared_regions(const double *x, const short *y, double *out, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    double *doubles = reinterpret_cast<double *>(raw);
    short *shorts = reinterpret_cast<short *>(doubles + n);
    doubles[threadIdx.x] = x[threadIdx.x];
    shorts[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = doubles[n - 1 - threadIdx.x] * shorts[(threadIdx.x + 1) % n];
}

extern "C" __global__ void vectors(const float4 *x, const uchar4 *y, const short2 *z,
                                   const double2 *w, float4 *a, uchar4 *b, short2 *c, double2 *d) {
    int i = threadIdx.x;
    float4 v = x[i];
    a[i] = make_float4(v.w, v.z, v.y, v.x);
    uchar4 u = y[i];
    b[i] = make_uchar4(u.y + 1, u.x, u.w, u.z * 2);
    c[i] = make_short2(z[i].y, z[i].x - z[i].y);
    d[i] = make_double2(w[i].x + w[i].y, w[i].x * w[i].y);
}

extern "C" __global__ void cache_operators(const float *x, const int4 *y, float *out, int4 *packed) {
    int i = threadIdx.x;
    float v = __ldg(&x[i]) + __ldcg(&x[i]) + __ldcs(&x[i]) + __ldca(&x[i]) + __ldlu(&x[i]) +
              __ldcv(&x[i]);
    asm volatile("prefetch.global.L1 [%0];" ::"l"(x + i));
    __stcg(&out[i], v);
    int4 p = __ldg(&y[i]);
    __stwt(&packed[i], p);
}

__device__ __noinline__ int sum_of(const int *p, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += p[i];
    return sum;
}

// One function reads global, shared and local memory through generic addresses.
extern "C" __global__ void generic_addresses(const int *x, int *out) {
    __shared__ int tile[64];
    int mine[8];
    tile[threadIdx.x] = x[threadIdx.x] + 1;
    for (int i = 0; i < 8; i++) mine[i] = x[(threadIdx.x + i) % 64] * 2;
    __syncthreads();
    out[threadIdx.x] = sum_of(x + threadIdx.x / 8 * 8, 8) + 100 * sum_of(tile + threadIdx.x / 8 * 8, 8) +
                       10000 * sum_of(mine, 8);
    out[64 + threadIdx.x] = __isGlobal(x) + 2 * __isShared(tile) + 4 * __isLocal(mine) +
                            8 * __isShared(x) + 16 * __isGlobal(mine);
}

__device__ __forceinline__ int load_acquire(const int *p) {
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_release(int *p, int v) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// A chain of blocks: each waits for the flag of the one before, the last block starts nothing.
extern "C" __global__ void chain(const int *x, int *sums, int *flags) {
    __shared__ int before;
    if (threadIdx.x == 0) {
        int own = 0;
        for (int i = 0; i < blockDim.x; i++) own += x[blockIdx.x * blockDim.x + i];
        if (blockIdx.x > 0) {
            while (load_acquire(&flags[blockIdx.x - 1]) == 0) {
            }
            before = sums[blockIdx.x - 1];
        } else {
            before = 0;
        }
        sums[blockIdx.x] = before + own;
        store_release(&flags[blockIdx.x], 1);
    }
}

// A barrier over the grid, of atomics and volatile reads: every block gives its right neighbour a
// value three times.
extern "C" __global__ void ring(int *values, unsigned int *arrived, int *out) {
    volatile unsigned int *seen = arrived;
    int token = blockIdx.x;
    for (unsigned int turn = 1; turn <= 3; turn++) {
        if (threadIdx.x == 0) {
            atomicExch(&values[(turn & 1) * gridDim.x + (blockIdx.x + 1) % gridDim.x], token * 2 + 1);
            __threadfence();
            atomicAdd(arrived, 1u);
            while (*seen < turn * gridDim.x) {
            }
            __threadfence();
            token = atomicAdd(&values[(turn & 1) * gridDim.x + blockIdx.x], 0);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = token;
}

// Half of the warps make, half use: named barriers with two counts and one buffer.
extern "C" __global__ void named_barriers(const int *x, int *out, int rounds) {
    __shared__ int box[64];
    bool maker = threadIdx.x < 64;
    int at = threadIdx.x % 64;
    for (int r = 0; r < rounds; r++) {
        if (maker) {
            if (r > 0) asm volatile("bar.sync 2, 128;" ::: "memory");
            box[at] = x[r * 64 + at] * 5;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            out[r * 64 + at] = box[63 - at] + r;
            if (r + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
    }
}
