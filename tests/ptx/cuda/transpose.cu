// Matrix transposes.

extern "C" __global__ void transpose_plain(const float *x, float *out, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns) out[c * rows + r] = x[r * columns + c];
}

// 32 x 32 tiles by blocks of 32 x 8; a column of padding keeps the banks apart.
extern "C" __global__ void transpose_tiled(const float *x, float *out, int rows, int columns) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < rows && c < columns) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * columns + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x;
    r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < columns && c < rows) out[(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}

// Four bytes at once, swizzled instead of padded; whole tiles of 32 x 32.
extern "C" __global__ void transpose_bytes(const uchar4 *x, unsigned char *out, int size) {
    __shared__ unsigned char tile[32 * 32];
    int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    uchar4 v = x[((blockIdx.y * 32 + row) * size + blockIdx.x * 32) / 4 + chunk];
    *reinterpret_cast<uchar4 *>(&tile[row * 32 + 4 * (chunk ^ (row & 7))]) = v;
    __syncthreads();
    for (int k = threadIdx.x; k < 32 * 32; k += blockDim.x) {
        int r = k % 32, c = k / 32;
        out[(blockIdx.x * 32 + c) * size + blockIdx.y * 32 + r] =
            tile[r * 32 + 4 * ((c / 4) ^ (r & 7)) + c % 4];
    }
}
