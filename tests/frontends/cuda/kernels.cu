// Kernels of the tests of ptxgen.frontends.cuda; tests find lines by their text.
#ifndef ROWS
#define ROWS 16
#endif

struct Affine {
  float scale;
  int shift;
  const float *offsets;
};

__device__ __forceinline__ float affine(Affine f, float x, int i) {
  return f.scale * x + f.offsets[i + f.shift];
}

extern "C" __global__ void saxpy(int n, float a, const float *x, float *__restrict__ y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void apply(Affine f, int n, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = affine(f, x[i], i);
}

template <typename T, int N>
__global__ void block_sum(const T *x, T *out) {
  __shared__ T part[N];
  part[threadIdx.x] = x[blockIdx.x * N + threadIdx.x];
  __syncthreads();
  for (int s = N / 2; s > 0; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__global__ void racy_sum(const float *x, float *out) {
  __shared__ float part[64];
  part[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 0) {
    float total = 0;
    for (int i = 0; i < 64; i++) total += part[i];  // no barrier before
    *out = total;
  }
}

__global__ void warp_softmax(const float *x, float *y, int columns) {
  int lane = threadIdx.x, row = blockIdx.x;
  float top = __int_as_float(0xff800000);
  for (int c = lane; c < columns; c += 32) top = fmaxf(top, x[row * columns + c]);
  for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, s));
  float total = 0;
  for (int c = lane; c < columns; c += 32) total += __expf(x[row * columns + c] - top);
  for (int s = 16; s; s /= 2) total += __shfl_xor_sync(0xffffffff, total, s);
  for (int c = lane; c < columns; c += 32) y[row * columns + c] = __expf(x[row * columns + c] - top) / total;
}

__global__ void tiled_matmul(const float *a, const float *b, float *c, int n) {
  __shared__ float left[ROWS][ROWS], right[ROWS][ROWS + 1];
  int row = blockIdx.y * ROWS + threadIdx.y, column = blockIdx.x * ROWS + threadIdx.x;
  float total = 0;
  for (int k = 0; k < n; k += ROWS) {
    left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int j = 0; j < ROWS; j++) total += left[threadIdx.y][j] * right[j][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = total;
}

__global__ void histogram(const unsigned char *x, unsigned int *bins, int n) {
  extern __shared__ unsigned int counts[];
  for (int i = threadIdx.x; i < 16; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&counts[x[i] >> 4], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 16; i += blockDim.x) atomicAdd(&bins[i], counts[i]);
}
