// targets: sm_80 sm_90a
// Reductions over a warp in one instruction.

extern "C" __global__ void warp_reductions(const int *x, int *out) {
    const unsigned int all = 0xffffffffu;
    int i = threadIdx.x, n = blockDim.x, v = x[i];
    out[i] = __reduce_add_sync(all, v);
    out[n + i] = __reduce_min_sync(all, v);
    out[2 * n + i] = __reduce_max_sync(all, v);
    out[3 * n + i] = __reduce_max_sync(all, (unsigned int)v);
    out[4 * n + i] = __reduce_and_sync(all, (unsigned int)v);
    out[5 * n + i] = __reduce_or_sync(all, (unsigned int)v);
    out[6 * n + i] = __reduce_xor_sync(all, (unsigned int)v);
    int part = 0;
    if (i % 32 < 12) part = __reduce_add_sync(0xfffu, (unsigned int)v);
    out[7 * n + i] = part;
}
