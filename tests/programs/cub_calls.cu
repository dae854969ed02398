// Device-wide and block-wide algorithms of CUB against the same on the host.
#include <algorithm>
#include <cstdio>
#include <cub/cub.cuh>
#include <vector>

static int wrong;
#define TRUE(what) ((what) ? (void)0 : (void)(wrong++, printf("line %d: %s\n", __LINE__, #what)))
#define OK(call) TRUE((call) == cudaSuccess)
// The first call says how much memory the second needs.
#define TWICE(call)                                  \
    do {                                             \
        void* room = nullptr;                        \
        size_t bytes = 0;                            \
        OK(call), OK(cudaMalloc(&room, bytes));      \
        OK(call), OK(cudaFree(room));                \
    } while (0)

template <int THREADS, int ITEMS>
__global__ void sort_blocks(unsigned* x) {
    using Sort = cub::BlockRadixSort<unsigned, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage room;
    unsigned mine[ITEMS], *first = x + blockIdx.x * THREADS * ITEMS;
    cub::LoadDirectBlocked(threadIdx.x, first, mine);
    Sort(room).Sort(mine);
    cub::StoreDirectBlocked(threadIdx.x, first, mine);
}

struct Less { __host__ __device__ bool operator()(unsigned a, unsigned b) const { return a < b; } };
struct Below { unsigned limit; __host__ __device__ bool operator()(unsigned x) const { return x < limit; } };

int main() {
    const int n = 4096;
    std::vector<unsigned> host(n), back(n), sorted;
    unsigned seed = 3, *in, *out, *some, sum = 0, got, all = 0, bins[16] = {};
    for (auto& x : host) sum += x = (seed = seed * 1664525u + 1013904223u) >> 4, bins[x >> 24]++;
    OK(cudaMalloc(&in, n * 4)), OK(cudaMalloc(&out, n * 4)), OK(cudaMalloc(&some, 4096));
    OK(cudaMemcpy(in, host.data(), n * 4, cudaMemcpyHostToDevice));
    auto read = [&](void* to, const void* from, int count) { OK(cudaMemcpy(to, from, count * 4, cudaMemcpyDeviceToHost)); };

    TWICE(cub::DeviceRadixSort::SortKeys(room, bytes, in, out, n));
    sorted = host, std::sort(sorted.begin(), sorted.end()), read(back.data(), out, n);
    TRUE(back == sorted);
    TWICE(cub::DeviceMergeSort::SortKeysCopy(room, bytes, in, out, n, Less()));
    read(back.data(), out, n);
    TRUE(back == sorted);
    TWICE(cub::DeviceReduce::Sum(room, bytes, in, some, n));
    read(&got, some, 1);
    TRUE(got == sum);
    TWICE(cub::DeviceScan::ExclusiveSum(room, bytes, in, out, n));
    read(back.data(), out, n);
    for (int i = 0; i < n; all += host[i++]) TRUE(back[i] == all);
    Below below{1u << 27};
    TWICE(cub::DeviceSelect::If(room, bytes, in, out, some, n, below));
    read(&got, some, 1);
    TRUE(got == std::count_if(host.begin(), host.end(), below));
    TWICE(cub::DeviceHistogram::HistogramEven(room, bytes, in, (int*)some, 17, 0u, 1u << 28, n));
    read(back.data(), some, 16);
    TRUE(std::equal(bins, bins + 16, back.begin()));
    TWICE(cub::DeviceRunLengthEncode::Encode(room, bytes, in, out, some, some + 1000, 100));
    read(&got, some + 1000, 1);
    TRUE(got == 100);
    int offsets[] = {0, 500, n}, *where;
    OK(cudaMalloc(&where, sizeof offsets)), OK(cudaMemcpy(where, offsets, sizeof offsets, cudaMemcpyDefault));
    TWICE(cub::DeviceSegmentedReduce::Sum(room, bytes, in, some, 2, where, where + 1));
    read(back.data(), some, 2);
    TRUE(back[0] + back[1] == sum);
    sort_blocks<128, 4><<<n / 512, 128>>>(in);
    read(back.data(), in, n);
    for (int at = 0; at < n; at += 512) TRUE(std::is_sorted(&back[at], &back[at] + 512));
    void* cached;
    cub::CachingDeviceAllocator allocator;
    OK(allocator.DeviceAllocate(&cached, 1000)), OK(allocator.DeviceFree(cached));
    printf("wrong %d\n", wrong);
    return wrong;
}
