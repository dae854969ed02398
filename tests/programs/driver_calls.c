/* Calls of the driver that a host makes, each with what it must return. Exit code: how many did not. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void expect(CUresult want, CUresult got, const char *call) {
    if (want == got) return;
    printf("%s: %d, not %d\n", call, got, want);
    wrong++;
}
#define EXPECT(want, call) expect(want, call, #call)
#define OK(call) expect(CUDA_SUCCESS, call, #call)
#define TRUE(what) do { if (!(what)) { printf("not so: %s\n", #what); wrong++; } } while (0)

static const char *PTX =
    ".version 7.1\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .u32 offset = 5;\n"
    ".visible .entry add(.param .u8 small, .param .u64 X, .param .u32 n, .param .u64 Y)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<6>; .reg .b16 %h<2>;\n"
    "  ld.param.u8 %h1, [small]; ld.param.u64 %rd1, [X]; ld.param.u32 %r1, [n]; ld.param.u64 %rd2, [Y];\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.u32 %r2, %r2, %r3, %r4;\n"
    "  setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;\n"
    "  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;\n"
    "  ld.global.u32 %r5, [%rd1]; cvt.u32.u16 %r6, %h1; add.u32 %r5, %r5, %r6;\n"
    "  ld.global.u32 %r7, [offset]; add.u32 %r5, %r5, %r7; st.global.u32 [%rd2], %r5;\n"
    "DONE: ret;\n"
    "}\n";

enum { N = 100 };

static void launches(CUfunction add) {
    CUdeviceptr x, y;
    CUstream stream;
    CUevent start, end;
    float apart = 0;
    uint32_t given[N], found[N], n = N;
    uint8_t small = 200;
    void *values[] = {&small, &x, &n, &y};
    for (uint32_t i = 0; i < N; i++) given[i] = i;
    OK(cuMemAlloc(&x, sizeof given));
    OK(cuMemAlloc(&y, sizeof given));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&x, 0));
    OK(cuMemcpyHtoD(x, given, sizeof given));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&apart, start, end));
    OK(cuEventRecord(start, stream));
    OK(cuLaunchKernel(add, 4, 1, 1, 32, 1, 1, 0, stream, values, NULL));
    OK(cuEventRecord(end, stream));
    OK(cuStreamWaitEvent(stream, end, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuEventSynchronize(end));
    OK(cuEventElapsedTime(&apart, start, end));
    TRUE(apart > 0);
    OK(cuMemcpyDtoH(found, y, sizeof found));
    for (uint32_t i = 0; i < N; i++) TRUE(found[i] == i + 205);

    /* The block of arguments: each at its offset. */
    struct { uint8_t small; uint64_t x; uint32_t n; uint64_t y; } block = {1, x, n, y};
    size_t nbytes = sizeof block, offset = 0, size = 0;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &nbytes, CU_LAUNCH_PARAM_END};
    OK(cuFuncGetParamInfo(add, 3, &offset, &size));
    TRUE(offset == 24 && size == 8);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(add, 4, &offset, &size));
    OK(cuLaunchKernel(add, 4, 1, 1, 32, 1, 1, 0, stream, NULL, extra));
    OK(cuMemcpyDtoHAsync(found, y, sizeof found, stream));
    OK(cuStreamSynchronize(stream));
    for (uint32_t i = 0; i < N; i++) TRUE(found[i] == i + 6);
    nbytes = 8;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 4, 1, 1, 32, 1, 1, 0, stream, NULL, extra));

    CUlaunchAttribute priority = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
    CUlaunchConfig config = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
                             .blockDimZ = 1, .hStream = stream, .attrs = &priority, .numAttrs = 1};
    small = 7;
    OK(cuMemsetD32(y, 9, N));
    OK(cuLaunchKernelEx(&config, add, values, NULL));
    OK(cuMemcpyDtoH(found, y, sizeof found));
    for (uint32_t i = 0; i < N; i++) TRUE(found[i] == i + 12);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 0, 1, 1, 32, 1, 1, 0, stream, values, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 50000, stream, values, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 2048, 1, 1, 0, stream, values, NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, stream, values, NULL));
    OK(cuEventDestroy(start));
    OK(cuEventDestroy(end));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(x));
    OK(cuMemFree(y));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(y));
}

static void memory(CUfunction add) {
    CUdeviceptr a, b, managed;
    uint32_t *pinned;
    uint16_t pairs[8];
    size_t left, total;
    OK(cuMemGetInfo(&left, &total));
    TRUE(total == (size_t)16 << 30 && left <= total);
    OK(cuMemAlloc(&a, 16));
    OK(cuMemAlloc(&b, 16));
    OK(cuMemsetD16(a, 0x1234, 8));
    OK(cuMemsetD8(a + 2, 0xff, 2));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a + 2, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(a, 0, 17));
    OK(cuMemcpyDtoD(b, a, 16));
    OK(cuMemcpyDtoH(pairs, b, 16));
    TRUE(pairs[0] == 0x1234 && pairs[1] == 0xffff && pairs[7] == 0x1234);
    OK(cuMemAllocHost((void **)&pinned, 4 * sizeof *pinned));
    OK(cuMemAllocManaged(&managed, 4 * sizeof *pinned, CU_MEM_ATTACH_GLOBAL));
    for (uint32_t i = 0; i < 4; i++) pinned[i] = 10 * i;
    uint8_t small = 0;
    uint32_t n = 4;
    void *values[] = {&small, &pinned, &n, &managed};
    OK(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, NULL, values, NULL));
    OK(cuCtxSynchronize());
    for (uint32_t i = 0; i < 4; i++) TRUE(((uint32_t *)managed)[i] == 10 * i + 5);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(managed));
}

static void modules(void) {
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr global;
    size_t nbytes;
    char log[400] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    uint32_t offset = 0;
    int found = 0;
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, ".version 8.0\n.target sm_80\nnonsense", 2, options, values));
    TRUE(strstr(log, "nonsense"));
    EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadDataEx(&module, "\177ELF and more", 2, options, values));
    TRUE(strstr(log, "needs PTX"));
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "no such file"));
    OK(cuModuleLoadDataEx(&module, PTX, 2, options, values));
    TRUE(!*log);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "subtract"));
    OK(cuModuleGetFunction(&function, module, "add"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&global, &nbytes, module, "missing"));
    OK(cuModuleGetGlobal(&global, &nbytes, module, "offset"));
    OK(cuMemcpyDtoH(&offset, global, sizeof offset));
    TRUE(nbytes == 4 && offset == 5);
    OK(cuFuncGetAttribute(&found, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
    TRUE(found == 1024);
    OK(cuFuncGetAttribute(&found, CU_FUNC_ATTRIBUTE_PTX_VERSION, function));
    TRUE(found == 80);
    OK(cuFuncGetAttribute(&found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    TRUE(found == 48 << 10);
    OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&found, function, 1024, 0));
    TRUE(found == 2);
    OK(cuModuleUnload(module));
    CUmodule many[8];
    for (int round = 0; round < 2; round++) { /* a new module is none of before, whatever its address */
        for (int i = 0; i < 8; i++) {
            OK(cuModuleLoadData(&many[i], PTX));
            OK(cuModuleGetFunction(&function, many[i], "add"));
            OK(cuFuncGetAttribute(&found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
            TRUE(found == 48 << 10);
            OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
        }
        for (int i = 0; i < 8; i++) OK(cuModuleUnload(many[i]));
    }
    OK(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "add"));
    launches((CUfunction)kernel);
    OK(cuKernelGetFunction(&function, kernel));
    memory(function);
    OK(cuLibraryUnload(library));
}

int main(void) {
    CUdevice device;
    CUcontext context, mine, found;
    CUdeviceptr memory_;
    char name[64];
    const char *text;
    int count, major, minor, version, active;
    unsigned flags;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&memory_, 4));
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 1));
    OK(cuDeviceGet(&device, 0));
    OK(cuDeviceGetName(name, sizeof name, device));
    OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    TRUE(count == 1 && version == 13000 && major == 8 && minor == 0 && !strcmp(name, "ptxgen interpreter (sm_80)"));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    TRUE(active);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxCreate(&mine, NULL, CU_CTX_SCHED_AUTO, device));
    OK(cuCtxGetCurrent(&found));
    TRUE(found == mine && mine != context);
    OK(cuCtxDestroy(mine));
    OK(cuCtxGetCurrent(&found));
    TRUE(found == context);
    OK(cuCtxPushCurrent(context));
    OK(cuCtxPopCurrent(&found));
    modules();
    OK(cuGetErrorString(CUDA_ERROR_INVALID_PTX, &text));
    TRUE(!strcmp(text, "a PTX JIT compilation failed"));
    OK(cuGetErrorName(CUDA_ERROR_NOT_FOUND, &text));
    TRUE(!strcmp(text, "CUDA_ERROR_NOT_FOUND"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
    void *address = NULL;
    OK(cuGetProcAddress("cuMemAlloc", &address, 13000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    CUresult (*allocate)(CUdeviceptr *, size_t) = cuMemAlloc;
    TRUE(!memcmp(&address, &allocate, sizeof address));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchCall", &address, 13000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    OK(cuDevicePrimaryCtxRelease(device));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(device));
    printf("%d wrong\n", wrong);
    return wrong;
}
