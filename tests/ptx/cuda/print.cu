// printf on the device, assertions and a trap that is not reached.
#include <assert.h>
#include <stdio.h>

extern "C" __global__ void print_plain() { printf("hello\n"); }

extern "C" __global__ void print_numbers(const int *x, const float *y, long long z) {
    int i = threadIdx.x;
    if (i < 3) printf("%d: x=%d y=%.3f z=%lld %% %c\n", i, x[i], y[i], z + i, 'a' + i);
}

extern "C" __global__ void print_formats(unsigned int u, double d, unsigned long long q) {
    printf("[%5u|%-6u|%08x|%#X|%o]", u, u, u, u, u);
    printf("[%e|%g|%10.2f|%+.1f]", d, d, d, d);
    printf("[%llu|%llx|%s]\n", q, q, q > 10 ? "large" : "small");
}

extern "C" __global__ void print_assert(const int *x, int *out) {
    assert(x[threadIdx.x] > 0);
    out[threadIdx.x] = 2 * x[threadIdx.x];
}

extern "C" __global__ void print_trap(const int *x, int *out) {
    if (x[threadIdx.x] == -12345) __trap();
    if (x[threadIdx.x] == -54321) asm volatile("exit;");
    out[threadIdx.x] = x[threadIdx.x] + 1;
}
