// C = A B with the WMMA API, one warp for each 16 x 16 tile (or 32 x 8, 8 x 32).
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void wmma_f16_f32(const half *a, const half *b, float *c, int n, int k) {
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + row * k + i, k);
        wmma::load_matrix_sync(fb, b + i * n + column, n);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}

// C += A B; B is given transposed, accumulation in f16, operands through shared memory, 32 x 8 tiles.
extern "C" __global__ void wmma_f16_f16(const half *a, const half *b_transposed, half *c, int n,
                                        int k) {
    __shared__ __align__(32) half a_tile[32 * 16];
    int row = blockIdx.y * 32, column = blockIdx.x * 8;
    wmma::fragment<wmma::matrix_a, 32, 8, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 32, 8, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 32, 8, 16, half> fc;
    wmma::load_matrix_sync(fc, c + row * n + column, n, wmma::mem_row_major);
    for (int i = 0; i < k; i += 16) {
        for (int e = threadIdx.x; e < 32 * 16; e += 32)
            a_tile[e] = a[(row + e / 16) * k + i + e % 16];
        __syncwarp();
        wmma::load_matrix_sync(fa, a_tile, 16);
        wmma::load_matrix_sync(fb, b_transposed + column * k + i, k);
        wmma::mma_sync(fc, fa, fb, fc);
        __syncwarp();
    }
    wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}

// A is given transposed, C is written transposed; 8 x 32 tiles; each element is scaled in registers.
extern "C" __global__ void wmma_s8(const signed char *a_transposed, const signed char *b, int *c,
                                   int m, int n, int k) {
    int row = blockIdx.y * 8, column = blockIdx.x * 32;
    wmma::fragment<wmma::matrix_a, 8, 32, 16, signed char, wmma::col_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 32, 16, signed char, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 8, 32, 16, int> fc;
    wmma::fill_fragment(fc, 0);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a_transposed + i * m + row, m);
        wmma::load_matrix_sync(fb, b + i * n + column, n);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    for (int e = 0; e < fc.num_elements; e++) fc.x[e] = 3 * fc.x[e];
    wmma::store_matrix_sync(c + column * m + row, fc, m, wmma::mem_col_major);
}
