// Warp intrinsics: shuffles, votes, matches, and the barriers that count.

// Eight results a lane, block of 32 * k threads.
extern "C" __global__ void warp_shuffles(const int *x, int *out) {
    const unsigned int all = 0xffffffffu;
    int i = threadIdx.x, lane = i & 31, n = blockDim.x, v = x[i];
    out[i] = __shfl_sync(all, v, lane * 5 + 3);
    out[n + i] = __shfl_sync(all, v, lane / 4, 8);
    out[2 * n + i] = __shfl_up_sync(all, v, 3);
    out[3 * n + i] = __shfl_up_sync(all, v, 2, 8);
    out[4 * n + i] = __shfl_down_sync(all, v, 7);
    out[5 * n + i] = __shfl_down_sync(all, v, 1, 16);
    out[6 * n + i] = __shfl_xor_sync(all, v, 13);
    out[7 * n + i] = __shfl_xor_sync(all, v, 3, 4);
}

extern "C" __global__ void warp_shuffles_wide(const double *x, double *out, const float *y, float *z) {
    int i = threadIdx.x;
    out[i] = __shfl_xor_sync(0xffffffffu, x[i], 1) + __shfl_up_sync(0xffffffffu, x[i], 4);
    if (i & 1) z[i] = __shfl_down_sync(0xaaaaaaaau, y[i], 2);  // odd lanes alone
    else z[i] = -y[i];
}

extern "C" __global__ void warp_votes(const int *x, unsigned int *out) {
    int i = threadIdx.x, n = blockDim.x, v = x[i];
    out[i] = __ballot_sync(0xffffffffu, v > 0);
    out[n + i] = __any_sync(0xffffffffu, v > 90) + 2 * __all_sync(0xffffffffu, v > -90);
    out[2 * n + i] = __popc(__ballot_sync(0xffffffffu, v % 2 == 0));
    unsigned int mask = 0;
    if (v & 1) mask = __activemask();
    __syncwarp();
    out[3 * n + i] = mask;
    if ((i & 31) < 20) mask = __ballot_sync(0x000fffffu, v < 0);
    __syncwarp();
    out[4 * n + i] = mask;
}

extern "C" __global__ void warp_matches(const unsigned int *x, const unsigned long long *y,
                                        unsigned int *out) {
    int i = threadIdx.x, n = blockDim.x, same;
    out[i] = __match_any_sync(0xffffffffu, x[i]);
    out[n + i] = __match_any_sync(0xffffffffu, y[i]);
    out[2 * n + i] = __match_all_sync(0xffffffffu, x[i], &same);
    out[3 * n + i] = same;
    out[4 * n + i] = __match_all_sync(0xffffffffu, y[i / 32], &same);
    out[5 * n + i] = same;
}

extern "C" __global__ void block_votes(const int *x, int *out) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __syncthreads_count(x[i] > 0);
    out[n + i] = __syncthreads_or(x[i] == 77);
    out[2 * n + i] = __syncthreads_and(x[i] > -200);
}

__device__ __forceinline__ unsigned int special(int which) {
    unsigned int v = 0;
    if (which == 0) asm("mov.u32 %0, %%laneid;" : "=r"(v));
    if (which == 1) asm("mov.u32 %0, %%lanemask_lt;" : "=r"(v));
    if (which == 2) asm("mov.u32 %0, %%lanemask_ge;" : "=r"(v));
    if (which == 3) asm("mov.u32 %0, %%nctaid.y;" : "=r"(v));
    return v;
}

extern "C" __global__ void special_registers(unsigned int *out) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned int *at = out + 6 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
    at[0] = special(0);
    at[1] = special(1);
    at[2] = special(2);
    at[3] = special(3);
    at[4] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16;
    at[5] = blockIdx.x | blockIdx.y << 8 | blockIdx.z << 16;
}
