// Algorithms of Thrust against the same on the host.
#include <thrust/adjacent_difference.h>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>
#include <thrust/unique.h>
#include <thrust/universal_vector.h>
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <vector>

static int wrong;
#define TRUE(what) ((what) ? (void)0 : (void)(wrong++, printf("line %d: %s\n", __LINE__, #what)))

struct Square { __host__ __device__ double operator()(int x) const { return double(x) * x; } };
struct Even { __host__ __device__ bool operator()(int x) const { return x % 2 == 0; } };
struct ByLastBit { __host__ __device__ bool operator()(int a, int b) const { return (a ^ 1) > (b ^ 1); } };

static std::vector<int> numbers(int n, int shift) {
    std::vector<int> found(n);
    unsigned seed = 1;
    for (int& x : found) x = int((seed = seed * 1664525u + 1013904223u) >> shift);
    return found;
}

static void sums_and_orders() {
    std::vector<int> host = numbers(5000, 8), back(host.size());
    thrust::device_vector<int> x = host, sums(host.size());
    long long sum = std::accumulate(host.begin(), host.end(), 0ll);
    TRUE(thrust::reduce(x.begin(), x.end(), 0ll, thrust::plus<long long>()) == sum);
    thrust::sort(x.begin(), x.end()), std::sort(host.begin(), host.end());
    thrust::copy(x.begin(), x.end(), back.begin());
    TRUE(back == host);
    thrust::sort(x.begin(), x.end(), ByLastBit()), std::sort(host.begin(), host.end(), ByLastBit());
    thrust::copy(x.begin(), x.end(), back.begin());
    TRUE(back == host);
    thrust::inclusive_scan(x.begin(), x.end(), sums.begin());
    thrust::copy(sums.begin(), sums.end(), back.begin());
    for (size_t i = 0, all = 0; i < back.size(); i++) TRUE(back[i] == int(all += host[i]));
}

static void counts() {
    std::vector<int> host = numbers(3000, 27);
    std::map<int, int> count;
    double squares = 0;
    for (int x : host) count[x]++, squares += double(x) * x;
    thrust::device_vector<int> x = host, keys(host.size()), values(host.size());
    TRUE(thrust::transform_reduce(x.begin(), x.end(), Square(), 0.0, thrust::plus<double>()) == squares);
    TRUE(thrust::inner_product(x.begin(), x.end(), x.begin(), 0) == int(squares));
    TRUE(*thrust::max_element(x.begin(), x.end()) == *std::max_element(host.begin(), host.end()));
    thrust::sort(x.begin(), x.end());
    thrust::device_vector<int> bins(int(x.back()) + 1);
    thrust::counting_iterator<int> first(0);
    thrust::upper_bound(x.begin(), x.end(), first, first + bins.size(), bins.begin());
    thrust::adjacent_difference(bins.begin(), bins.end(), bins.begin());
    for (size_t b = 0; b < bins.size(); b++) TRUE(bins[b] == count[b]);
    auto ends = thrust::reduce_by_key(x.begin(), x.end(), thrust::make_constant_iterator(1), keys.begin(), values.begin());
    TRUE(ends.first - keys.begin() == long(count.size()));
    for (size_t i = 0; i < count.size(); i++) TRUE(values[i] == count[keys[i]]);
    TRUE(thrust::unique(x.begin(), x.end()) - x.begin() == long(count.size()));
}

static void moves() {
    std::vector<int> host = numbers(3000, 20);
    long even = std::count_if(host.begin(), host.end(), Even());
    thrust::device_vector<int> x = host, out(host.size()), index(host.size());
    TRUE(thrust::count_if(x.begin(), x.end(), Even()) == even);
    TRUE(thrust::copy_if(x.begin(), x.end(), out.begin(), Even()) - out.begin() == even);
    thrust::sequence(index.begin(), index.end(), int(host.size()) - 1, -1);
    thrust::gather(index.begin(), index.end(), x.begin(), out.begin());
    TRUE(thrust::equal(out.begin(), out.end(), x.rbegin()));
    TRUE(thrust::partition(x.begin(), x.end(), Even()) - x.begin() == even);
    thrust::device_vector<int> twos(100), threes(100), all(200);
    thrust::sequence(twos.begin(), twos.end(), 0, 2), thrust::sequence(threes.begin(), threes.end(), 0, 3);
    TRUE(thrust::set_intersection(twos.begin(), twos.end(), threes.begin(), threes.end(), all.begin()) - all.begin() == 34);
    thrust::merge(twos.begin(), twos.end(), threes.begin(), threes.end(), all.begin());
    TRUE(thrust::is_sorted(all.begin(), all.end()));
}

static void streams() {
    cudaStream_t stream;
    TRUE(cudaStreamCreate(&stream) == cudaSuccess);
    thrust::universal_vector<int> x(2000);
    for (int i = 0; i < 2000; i++) x[i] = i * 7919 % 1009;
    thrust::sort(thrust::cuda::par.on(stream), x.begin(), x.end());
    TRUE(std::is_sorted(x.begin(), x.end()));
}

int main() {
    sums_and_orders(), counts(), moves(), streams();
    printf("wrong %d\n", wrong);
    return wrong;
}
