// Variables of the module: constant tables, global memory that stays between launches.

struct Weights {
    float bias;
    short scale[3];
    unsigned char tag;
    double big;
};

__constant__ float taps[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
__constant__ Weights weights = {1.5f, {2, -3, 4}, 200, 1e300};
__constant__ int zeros[4];
__device__ int counter = 100;
__device__ unsigned long long table[4] = {1, 0xffffffffffffffffull, 1ull << 40, 7};
__device__ float scratch[256];
__device__ int *pointer_to_counter = &counter;
__device__ const char *const words[2] = {"zero", "one"};

extern "C" __global__ void constant_filter(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < 5; k++) {
        int at = min(max(i + k - 2, 0), n - 1);
        sum += taps[k] * x[at];
    }
    out[i] = sum;
}

extern "C" __global__ void constant_structure(double *out) {
    int i = threadIdx.x;
    out[i] = weights.bias + weights.scale[i % 3] * 10 + weights.tag * 1000 + zeros[i % 4] +
             (weights.big > 1e299 ? 1e6 : 0);
}

extern "C" __global__ void count_launches(int *out) {
    if (threadIdx.x == 0) *out = atomicAdd(&counter, 1);
}

extern "C" __global__ void count_through_pointer(int *out) {
    if (threadIdx.x == 0) *out = atomicAdd(pointer_to_counter, 10);
}

extern "C" __global__ void keep(const float *x) { scratch[threadIdx.x] = 2.0f * x[threadIdx.x]; }

extern "C" __global__ void fetch(float *out) {
    out[threadIdx.x] = scratch[255 - threadIdx.x];
}

extern "C" __global__ void read_table(unsigned long long *out, char *letters) {
    int i = threadIdx.x;
    out[i] = table[i & 3] + i;
    letters[i] = words[i & 1][i / 2 % 3];
}
