/* All names of a call: of the versions of CUDA, for the default stream of a thread, by name and by pointer. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int wrong;
static void expect(int holds, int line, const char *what) { if (!holds) wrong++, printf("line %d: %s\n", line, what); }
#define TRUE(what) expect(!!(what), __LINE__, #what)
#define OK(call) TRUE((call) == CUDA_SUCCESS)

static void *driver;

/* The function for a version of CUDA is that of a name. */
static void is(const char *symbol, int version, const char *name) {
    void *function = NULL, *wanted = dlsym(driver, name);
    CUdriverProcAddressQueryResult why;
    OK(cuGetProcAddress(symbol, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &why));
    if (!wanted || function != wanted || why != CU_GET_PROC_ADDRESS_SUCCESS) wrong++, printf("%s of %d is not %s\n", symbol, version, name);
}

static void versions(void) {
    void *function = &function;
    CUdriverProcAddressQueryResult why;
    is("cuMemAlloc", 2000, "cuMemAlloc"), is("cuMemAlloc", 3010, "cuMemAlloc"), is("cuMemAlloc", 3020, "cuMemAlloc_v2");
    is("cuCtxCreate", 3020, "cuCtxCreate_v2"), is("cuCtxCreate", 12000, "cuCtxCreate_v3"), is("cuCtxCreate", 13000, "cuCtxCreate_v4");
    is("cuCtxGetDevice", 12090, "cuCtxGetDevice"), is("cuCtxGetDevice", 13000, "cuCtxGetDevice_v2");
    is("cuDeviceGetUuid", 9020, "cuDeviceGetUuid"), is("cuDeviceGetUuid", 13000, "cuDeviceGetUuid_v2");
    is("cuGetProcAddress", 11030, "cuGetProcAddress"), is("cuGetProcAddress", 13000, "cuGetProcAddress_v2");
    is("cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"), is("cuEventElapsedTime", 13000, "cuEventElapsedTime_v2");
    TRUE(dlsym(driver, "cuMemcpyHtoD_v2_ptds") == dlsym(driver, "cuMemcpyHtoD_v2"));
    TRUE(dlsym(driver, "cuLaunchKernel_ptsz") == dlsym(driver, "cuLaunchKernel"));
    TRUE(dlsym(driver, "cuCtxDestroy") == dlsym(driver, "cuCtxDestroy_v2"));
    TRUE(cuGetProcAddress("cuLaunchKernelEx", &function, 11000, 0, &why) == CUDA_ERROR_NOT_FOUND);
    TRUE(!function && why == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    TRUE(cuGetProcAddress("cuNothing", &function, 13000, 0, &why) == CUDA_ERROR_NOT_FOUND && why == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    TRUE(cuGetProcAddress("cuInit", &function, 99000, 0, &why) == CUDA_ERROR_INVALID_VALUE);
}

static void memory(void) {
    CUdeviceptr device, managed, start;
    size_t nbytes;
    void *pinned;
    unsigned kind;
    unsigned char is_managed;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *out[] = {&kind, &is_managed, &nbytes};
    int box[4][8], back[4][8];
    OK(cuMemAlloc(&device, 4000)), OK(cuMemAllocHost(&pinned, 100)), OK(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
    OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 12));
    TRUE(kind == CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
    TRUE(kind == CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttributes(3, which, out, managed));
    TRUE(is_managed == 1 && nbytes == 64);
    TRUE(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)box) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAddressRange(&start, &nbytes, device + 100));
    TRUE(start == device && nbytes == 4000);
    TRUE(cuMemHostRegister(box, sizeof box, 0) == CUDA_ERROR_NOT_SUPPORTED);
    for (int n = 0; n < 32; n++) box[n / 8][n % 8] = n;
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = box, .srcPitch = 32, .srcXInBytes = 8, .srcY = 1,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = device, .dstPitch = 256, .WidthInBytes = 16, .Height = 3};
    CUDA_MEMCPY2D from = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = device, .srcPitch = 256,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = (CUdeviceptr)back, .dstPitch = 32, .WidthInBytes = 16, .Height = 3};
    OK(cuMemsetD2D32(device, 256, 7, 64, 4)), OK(cuMemcpy2D(&in)), OK(cuMemcpy2D(&from));
    TRUE(back[0][0] == 10 && back[0][3] == 13 && back[2][0] == 26 && back[2][3] == 29);
    OK(cuMemcpy((CUdeviceptr)back, device + 16, 4));
    TRUE(back[0][0] == 7);
}

static void pools(void) {
    CUmemoryPool pool, found;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr memory_;
    cuuint64_t threshold = 1 << 20, said = 0;
    int reuse = 5;
    OK(cuDeviceGetDefaultMemPool(&pool, 0)), OK(cuDeviceGetMemPool(&found, 0));
    TRUE(pool == found && cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolCreate(&pool, &properties)), OK(cuDeviceSetMemPool(0, pool)), OK(cuDeviceGetMemPool(&found, 0));
    TRUE(pool == found);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &said));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &reuse));
    TRUE(said == threshold && reuse == 1);
    OK(cuMemPoolSetAccess(pool, &access, 1)), OK(cuMemAllocFromPoolAsync(&memory_, 100, pool, NULL)), OK(cuMemFreeAsync(memory_, NULL));
    OK(cuMemPoolTrimTo(pool, 0)), OK(cuMemPoolDestroy(pool));
}

static void link_and_streams(void) {
    const char ptx[] = ".version 7.1\n.target sm_80\n.address_size 64\n.visible .entry one() { ret; }\n.visible .entry two() { ret; }\n";
    CUlinkState state;
    void *image;
    size_t nbytes;
    CUlibrary library;
    CUkernel kernels[2];
    CUstream stream;
    CUcontext context, of_stream;
    const char *name;
    unsigned count, flags;
    CUstreamCaptureStatus capturing;
    int grid, threads, device = 5;
    unsigned long long number, other;
    OK(cuLinkCreate(0, NULL, NULL, &state));
    OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)(size_t)ptx, sizeof ptx, "ptx", 0, NULL, NULL));
    OK(cuLinkComplete(state, &image, &nbytes));
    TRUE(nbytes == sizeof ptx);
    OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLinkDestroy(state));
    OK(cuLibraryGetKernelCount(&count, library)), OK(cuLibraryEnumerateKernels(kernels, 2, library)), OK(cuKernelGetName(&name, kernels[1]));
    TRUE(count == 2 && !strcmp(name, "two"));
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &threads, (CUfunction)kernels[0], NULL, 0, 0));
    TRUE(threads == 1024 && grid == 32);
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&nbytes, (CUfunction)kernels[0], 2, 512));
    TRUE(nbytes == (164 << 10) / 2 - 1024); /* half of a multiprocessor, without what is reserved */
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)), OK(cuStreamGetFlags(stream, &flags));
    OK(cuStreamGetId(stream, &number)), OK(cuStreamGetId(NULL, &other)), OK(cuStreamIsCapturing(stream, &capturing));
    OK(cuCtxGetCurrent(&context)), OK(cuStreamGetCtx(stream, &of_stream));
    OK(cuCtxGetDevice(&device));
    TRUE(flags == CU_STREAM_NON_BLOCKING && number != other && !capturing && context == of_stream && device == 0);
    OK(cuStreamDestroy(stream));
}

int main(void) {
    CUcontext context;
    CUuuid uuid;
    int peer = 1;
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    OK(cuInit(0)), OK(cuDevicePrimaryCtxRetain(&context, 0)), OK(cuCtxSetCurrent(context));
    OK(cuDeviceGetUuid(&uuid, 0)), OK(cuDeviceCanAccessPeer(&peer, 0, 0));
    TRUE(!memcmp(uuid.bytes, "ptxgen", 6) && !peer);
    versions(), memory(), pools(), link_and_streams();
    printf("%d wrong\n", wrong);
    return wrong;
}
