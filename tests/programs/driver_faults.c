/* A kernel that reads beyond an array: the error comes with the next call, and stays. */
#include <cuda.h>
#include <stdio.h>

static const char *PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry read(.param .u64 X)\n"
    "{\n"
    "  .reg .b32 %r<2>; .reg .b64 %rd<2>;\n"
    "  ld.param.u64 %rd1, [X]; ld.global.u32 %r1, [%rd1+4096]; st.global.u32 [%rd1], %r1; ret;\n"
    "}\n";

int main(int count, char **given) {
    CUcontext context;
    CUmodule module;
    CUfunction read;
    CUdeviceptr x;
    (void)given;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuModuleLoadData(&module, PTX)
        || cuModuleGetFunction(&read, module, "read") || cuMemAlloc(&x, 4))
        return 9;
    if (count > 1) cuGraphCreate(NULL, 0);
    void *values[] = {&x};
    CUresult launched = cuLaunchKernel(read, 1, 1, 1, 1, 1, 1, 0, NULL, values, NULL);
    CUresult waited = cuCtxSynchronize(), freed = cuMemFree(x);
    printf("%d %d %d\n", launched, waited, freed);
    return 0;
}
