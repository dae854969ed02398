// What programs and libraries ask before they launch: kinds of memory, pools, attributes, occupancy, the driver.
#include <cuda.h>
#include <cstdio>
#include <cstring>

static int wrong;
#define TRUE(what) ((what) ? (void)0 : (void)(wrong++, printf("line %d: %s\n", __LINE__, #what)))
#define OK(call) TRUE((call) == cudaSuccess)

__global__ void twice(int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
__device__ int counted[4];

static void memory() {
    int *device, *pinned, *managed, local = 0;
    void* of_variable;
    cudaPointerAttributes is;
    unsigned flags;
    OK(cudaMalloc(&device, 400)), OK(cudaMallocHost(&pinned, 4)), OK(cudaMallocManaged(&managed, 4));
    OK(cudaGetSymbolAddress(&of_variable, counted));
    OK(cudaPointerGetAttributes(&is, device + 3));
    TRUE(is.type == cudaMemoryTypeDevice && is.device == 0 && is.devicePointer == device + 3 && !is.hostPointer);
    OK(cudaPointerGetAttributes(&is, pinned));
    TRUE(is.type == cudaMemoryTypeHost && is.hostPointer == pinned && is.devicePointer == pinned);
    OK(cudaPointerGetAttributes(&is, managed));
    TRUE(is.type == cudaMemoryTypeManaged);
    OK(cudaPointerGetAttributes(&is, of_variable));
    TRUE(is.type == cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&is, &local));
    TRUE(is.type == cudaMemoryTypeUnregistered && is.device == cudaInvalidDeviceId);
    OK(cudaHostGetFlags(&flags, pinned));
    TRUE(flags == cudaHostAllocMapped && cudaHostGetFlags(&flags, &local) == cudaErrorInvalidValue);
    TRUE(cudaHostRegister(&local, 4, 0) == cudaErrorNotSupported);
    cudaGetLastError();
}

static void boxes() {
    const cudaExtent extent = make_cudaExtent(3 * sizeof(int), 2, 2);
    cudaPitchedPtr box;
    int from[2][4][5], to[2][2][3];
    for (int n = 0; n < 40; n++) from[n / 20][n / 5 % 4][n % 5] = n;
    OK(cudaMalloc3D(&box, extent)), OK(cudaMemset3D(box, 1, extent));
    TRUE(box.pitch == 512 && box.xsize == 12 && box.ysize == 2);
    cudaMemcpy3DParms in = {}, out = {};
    in.srcPtr = make_cudaPitchedPtr(from, 20, 5, 4), in.srcPos = make_cudaPos(sizeof(int), 1, 0);
    in.dstPtr = box, in.extent = extent, in.kind = cudaMemcpyHostToDevice;
    out.srcPtr = box, out.dstPtr = make_cudaPitchedPtr(to, 12, 3, 2), out.extent = extent, out.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&out));
    TRUE(to[1][1][2] == 0x01010101);
    OK(cudaMemcpy3D(&in)), OK(cudaMemcpy3D(&out));
    for (int n = 0; n < 12; n++) TRUE(to[n / 6][n / 3 % 2][n % 3] == from[n / 6][n / 3 % 2 + 1][n % 3 + 1]);
}

static void pools(cudaStream_t stream) {
    cudaMemPool_t pool;
    unsigned long long threshold = ~0ull, said = 0;
    int has = 0, *x, out[3], in[3] = {1, 2, 3};
    OK(cudaDeviceGetAttribute(&has, cudaDevAttrMemoryPoolsSupported, 0));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &said));
    TRUE(has == 1 && said == threshold);
    OK(cudaMallocFromPoolAsync((void**)&x, sizeof in, pool, stream));
    OK(cudaMemcpyAsync(x, in, sizeof in, cudaMemcpyDefault, stream));
    twice<<<1, 32, 0, stream>>>(x, 3);
    OK(cudaMemcpyAsync(out, x, sizeof in, cudaMemcpyDefault, stream)), OK(cudaFreeAsync(x, stream)), OK(cudaStreamSynchronize(stream));
    TRUE(out[0] == 2 && out[2] == 6);
}

static void called(cudaStream_t, cudaError_t status, void* data) { *(int*)data = status == cudaSuccess ? 7 : 8; }

static void streams() {
    cudaStream_t stream;
    unsigned flags;
    int priority, least, greatest, device, from_callback = 0;
    unsigned long long number, other;
    cudaStreamCaptureStatus capturing;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    OK(cudaStreamGetFlags(stream, &flags)), OK(cudaStreamGetPriority(stream, &priority)), OK(cudaStreamGetDevice(stream, &device));
    OK(cudaStreamGetId(stream, &number)), OK(cudaStreamGetId(cudaStreamPerThread, &other));
    OK(cudaStreamIsCapturing(stream, &capturing)), OK(cudaStreamAddCallback(stream, called, &from_callback, 0));
    TRUE(flags == cudaStreamNonBlocking && priority == greatest && !device && number != other);
    TRUE(capturing == cudaStreamCaptureStatusNone && from_callback == 7);
    pools(stream);
    OK(cudaStreamDestroy(stream));
    TRUE(cudaStreamDestroy(0) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
}

static void kernels() {
    const char* name;
    size_t offset, nbytes, shared;
    int grid, threads, blocks;
    OK(cudaFuncGetName(&name, (void*)twice));
    OK(cudaFuncGetParamInfo((void*)twice, 1, &offset, &nbytes));
    TRUE(!strcmp(name, "_Z5twicePii") && offset == 8 && nbytes == 4);
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &threads, twice));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, twice, threads, 0));
    TRUE(threads == 1024 && blocks == 2 && grid == 32);
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, (void*)twice, 1, 1024));
    TRUE(shared == 163 << 10);
}

static void device() {
    cudaDeviceProp has;
    char at[16];
    int number = -1, value;
    OK(cudaGetDeviceProperties(&has, 0)), OK(cudaDeviceGetPCIBusId(at, sizeof at, 0)), OK(cudaDeviceGetByPCIBusId(&number, at));
    TRUE(number == 0 && has.memoryPoolsSupported && has.canMapHostMemory && has.hostNumaId == -1 && has.l2CacheSize > 0);
    for (int attribute = 1; attribute < cudaDevAttrMax; attribute++) OK(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)attribute, 0));
}

static void driver() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult why;
    OK(cudaGetDriverEntryPointByVersion("cuMemGetInfo", &function, 12000, cudaEnableDefault, &why));
    CUcontext context = nullptr;
    OK(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 12000, cudaEnableDefault, &why));
    TRUE(why == cudaDriverEntryPointSuccess && !((CUresult(*)(CUcontext*))function)(&context) && context);
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &why));
    TRUE(!function && why == cudaDriverEntryPointSymbolNotFound);
}

int main() {
    memory(), boxes(), streams(), kernels(), device(), driver();
    printf("wrong %d\n", wrong);
    return wrong;
}
