// Atomics of every kind, and blocks that take tickets.

extern "C" __global__ void atomic_floats(const float *x, const double *y, float *f, double *d, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&f[i % 3], x[i]);
    atomicAdd(&d[i % 3], y[i]);
}

__device__ double atomic_max(double *at, double v) {
    unsigned long long *bits = reinterpret_cast<unsigned long long *>(at), seen = *bits, wanted;
    do {
        wanted = seen;
        if (__longlong_as_double(wanted) >= v) break;
        seen = atomicCAS(bits, wanted, __double_as_longlong(v));
    } while (seen != wanted);
    return __longlong_as_double(seen);
}

extern "C" __global__ void atomic_loop(const double *x, double *highest, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomic_max(highest, x[i]);
}

extern "C" __global__ void atomic_kinds(unsigned int *words, unsigned long long *wide, int *slots) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicInc(&words[0], 9u);
    atomicDec(&words[1], 6u);
    atomicSub(&words[2], (unsigned int)i);
    atomicMin(&wide[0], 1000ull - i);
    atomicMax((long long *)&wide[1], -1000ll + i);
    atomicXor(&wide[2], 1ull << (i % 50));
    slots[i] = atomicExch(&words[3], (unsigned int)i) != i;
    atomicAdd_block(&words[4], 2u);
    atomicAdd_system(&words[5], 3u);
}

// 16-bit compare and swap on neighbours that share a word.
extern "C" __global__ void atomic_short(unsigned short *x, int n) {
    unsigned short *mine = &x[threadIdx.x % n];
    unsigned short seen = *mine, wanted;
    do {
        wanted = seen;
        seen = atomicCAS(mine, wanted, (unsigned short)(wanted + 3));
    } while (seen != wanted);
}

// A lock of exchange and fence guards a plain counter; one thread a block.
extern "C" __global__ void atomic_lock(int *lock, volatile int *counter, int turns) {
    if (threadIdx.x != 0) return;
    for (int t = 0; t < turns; t++) {
        while (atomicCAS(lock, 0, 1) != 0) {
        }
        __threadfence();
        *counter = *counter + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

__device__ unsigned int ticket = 0;

// Blocks take work until there is none: who does what is not known, what is done is.
extern "C" __global__ void persistent(const float *x, float *out, int *worker, int items) {
    __shared__ unsigned int mine;
    while (true) {
        if (threadIdx.x == 0) mine = atomicAdd(&ticket, 1u);
        __syncthreads();
        unsigned int item = mine;
        __syncthreads();
        if (item >= items) return;
        out[item * blockDim.x + threadIdx.x] = x[item * blockDim.x + threadIdx.x] * item;
        if (threadIdx.x == 0) worker[item] = blockIdx.x;
    }
}

// In shared memory, with generic addresses that the compiler cannot resolve.
extern "C" __global__ void atomic_shared(const int *x, int *out, int *outside, int n) {
    __shared__ int inside[32];
    if (threadIdx.x < 32) inside[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int *at = x[i] & 1 ? &inside[x[i] & 31] : &outside[x[i] & 31];
        atomicAdd(at, x[i]);
    }
    __syncthreads();
    if (threadIdx.x < 32) out[threadIdx.x] = inside[threadIdx.x];
}
