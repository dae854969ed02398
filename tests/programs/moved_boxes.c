/* Moves a matrix by tensor maps, one box at a time, with the header moved.h of the kernel of the same name. */
#include "moved.h"

enum { ROWS = 33, COLUMNS = 40, PITCH = 48 };

static void check(CUresult status, const char *call)
{
    const char *text = NULL;
    if (status == CUDA_SUCCESS) return;
    cuGetErrorString(status, &text);
    printf("%s: %s\n", call, text ? text : "unknown error");
    exit(1);
}
#define CHECK(call) check((call), #call)

static float given[ROWS * PITCH], found[ROWS * PITCH];

int main(void)
{
    CUdevice device;
    CUcontext context;
    moved_kernel kernel;
    moved_args args;
    unsigned grid[3] = {(COLUMNS + 15) / 16, (ROWS + 7) / 8, 1};
    char why[200];
    int n, launch, wrong = 0;
    for (n = 0; n < ROWS * PITCH; n++) given[n] = (float)n;
    memset(&args, 0, sizeof args);
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    check(moved_load(&kernel, why, sizeof why), why);
    CHECK(cuMemAlloc(&args.X, sizeof given));
    CHECK(cuMemAlloc(&args.Y, sizeof found));
    CHECK(cuMemcpyHtoD(args.X, given, sizeof given));
    args.X_shape[0] = args.Y_shape[0] = ROWS, args.X_shape[1] = args.Y_shape[1] = COLUMNS;
    args.X_strides[0] = args.Y_strides[0] = PITCH * sizeof(float), args.X_strides[1] = args.Y_strides[1] = sizeof(float);
    /* The second launch has other tensors: one row less, one row further. */
    for (launch = 0; launch < 2; launch++) {
        CHECK(cuMemsetD32(args.Y - launch * sizeof *found * PITCH, 0, ROWS * PITCH));
        CHECK(moved_launch(&kernel, &args, grid, NULL));
        CHECK(moved_launch(&kernel, &args, grid, NULL)); /* the maps of the launch before */
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH(found, args.Y - launch * sizeof *found * PITCH, sizeof found));
        for (n = 0; n < ROWS * PITCH; n++) {
            int row = n / PITCH - launch, inside = row >= 0 && n % PITCH < COLUMNS;
            wrong += found[n] != (inside ? given[row * PITCH + n % PITCH] : 0);
        }
        args.X_shape[0] = args.Y_shape[0] = ROWS - 1, args.Y += PITCH * sizeof(float);
    }
    printf("%d wrong\n", wrong);
    args.X_strides[0] = 7;
    printf("strides of no map: %d\n", (int)moved_launch(&kernel, &args, grid, NULL));
    args.X = 8;
    puts(moved_check(&args, why, sizeof why) ? why : "not refused");
    CHECK(moved_unload(&kernel));
    return wrong != 0;
}
