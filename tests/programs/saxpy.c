/* Launches the kernel of saxpy.h, whose arguments are X, Y, n, int_ and loop. */
#include "saxpy.h"

enum { N = 100 };

int main(void)
{
    saxpy_args args = {0};
    saxpy_kernel kernel;
    CUcontext context;
    CUdeviceptr x, y;
    float values[N];
    char why[100];
    int wrong = 0;
    const unsigned grid[3] = {(N + SAXPY_THREADS - 1) / SAXPY_THREADS, 1, 1};
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    if (cuMemAlloc(&x, sizeof values) || cuMemAlloc(&y, sizeof values)) return 3;
    for (int n = 0; n < N; n++) values[n] = (float)n;
    if (cuMemcpyHtoD(x, values, sizeof values) || saxpy_load(&kernel, why, sizeof why)) return 4;
    args.X = x, args.n = N, args.int_ = 0.5f, args.loop = -3;
    if (saxpy_check(&args, why, sizeof why)) puts(why);
    if (saxpy_launch(&kernel, &args, grid, NULL) != CUDA_ERROR_INVALID_VALUE) return 5;
    args.Y = y;
    if (saxpy_launch(&kernel, &args, grid, NULL) || cuMemcpyDtoH(values, y, sizeof values)) return 6;
    for (int n = 0; n < N; n++) wrong += values[n] != (float)n / 2 - 3;
    printf("%d of %d wrong\n", wrong, N);
    return saxpy_unload(&kernel) || wrong;
}
