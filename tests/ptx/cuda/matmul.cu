// C = A B on the ordinary cores.

extern "C" __global__ void matmul_plain(const float *a, const float *b, float *c, int m, int n,
                                        int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

// Tiles of 16 x 16 in shared memory, edges of any size.
extern "C" __global__ void matmul_tiled(const float *a, const float *b, float *c, int m, int n,
                                        int k) {
    __shared__ float a_tile[16][16], b_tile[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += 16) {
        int ka = first + threadIdx.x, kb = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = kb < k && column < n ? b[kb * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) sum = fmaf(a_tile[threadIdx.y][i], b_tile[i][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

// Each thread makes 4 x 4 elements, with 128-bit loads; m, n multiples of 32, k of 8.
extern "C" __global__ void __launch_bounds__(64) matmul_registers(const float4 *a, const float4 *b,
                                                                 float4 *c, int m, int n, int k) {
    __shared__ float a_tile[8][32];
    __shared__ float4 b_tile[8][8];
    int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
    int row = blockIdx.y * 32, column = blockIdx.x * 32;
    float sum[4][4] = {};
    for (int first = 0; first < k; first += 8) {
        float4 v = a[((row + threadIdx.x / 2) * k + first) / 4 + threadIdx.x % 2];
        int at = threadIdx.x % 2 * 4;
        a_tile[at][threadIdx.x / 2] = v.x;
        a_tile[at + 1][threadIdx.x / 2] = v.y;
        a_tile[at + 2][threadIdx.x / 2] = v.z;
        a_tile[at + 3][threadIdx.x / 2] = v.w;
        b_tile[ty][tx] = b[((first + ty) * n + column) / 4 + tx];
        __syncthreads();
        for (int i = 0; i < 8; i++) {
            float4 bs = b_tile[i][tx];
            for (int r = 0; r < 4; r++) {
                float as = a_tile[i][ty * 4 + r];
                sum[r][0] += as * bs.x;
                sum[r][1] += as * bs.y;
                sum[r][2] += as * bs.z;
                sum[r][3] += as * bs.w;
            }
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        c[((row + ty * 4 + r) * n + column) / 4 + tx] =
            make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}
