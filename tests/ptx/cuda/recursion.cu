// Calls that nvcc cannot inline: recursion, with arrays in local memory.

__device__ __noinline__ int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

extern "C" __global__ void recursive_fibonacci(const int *x, int *out) {
    out[threadIdx.x] = fibonacci(x[threadIdx.x]);
}

__device__ __noinline__ int ackermann(int m, int n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

extern "C" __global__ void recursive_ackermann(const int2 *x, int *out) {
    out[threadIdx.x] = ackermann(x[threadIdx.x].x, x[threadIdx.x].y);
}

__device__ __noinline__ void quicksort(float *v, int low, int high) {
    if (low >= high) return;
    float pivot = v[(low + high) / 2];
    int i = low, j = high;
    while (i <= j) {
        while (v[i] < pivot) i++;
        while (v[j] > pivot) j--;
        if (i <= j) {
            float t = v[i];
            v[i++] = v[j];
            v[j--] = t;
        }
    }
    quicksort(v, low, j);
    quicksort(v, i, high);
}

// Each thread sorts 16 values of its own.
extern "C" __global__ void recursive_quicksort(const float *x, float *out) {
    float mine[16];
    for (int i = 0; i < 16; i++) mine[i] = x[threadIdx.x * 16 + i];
    quicksort(mine, 0, 15);
    for (int i = 0; i < 16; i++) out[threadIdx.x * 16 + i] = mine[i];
}

__device__ int is_odd(unsigned int n);
__device__ __noinline__ int is_even(unsigned int n) { return n == 0 ? 1 : is_odd(n - 1); }
__device__ __noinline__ int is_odd(unsigned int n) { return n == 0 ? 0 : is_even(n - 1); }

extern "C" __global__ void recursive_parity(const unsigned int *x, int *out) {
    out[threadIdx.x] = is_even(x[threadIdx.x]);
}

struct Fraction {
    long long over;
    int under;
    float value;
};

__device__ __noinline__ Fraction sum_of(Fraction a, Fraction b) {
    Fraction s = {a.over * b.under + b.over * a.under, a.under * b.under, a.value + b.value};
    return s;
}

// Structures as parameters and results of a function.
extern "C" __global__ void structure_calls(const Fraction *x, const Fraction *y, Fraction *out) {
    out[threadIdx.x] = sum_of(x[threadIdx.x], y[threadIdx.x]);
}
