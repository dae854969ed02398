#include <cstdio>

__global__ void greet(int number) { printf("kernel %d, thread %d, %.1f\n", number, threadIdx.x, 0.5 * number); }

int main() {
    for (int n = 1; n <= 2; n++) {
        printf("before %d\n", n);
        greet<<<1, 2>>>(n);
        cudaDeviceSynchronize();
        printf("after %d\n", n);
    }
}
