// Indirect calls: tables in constant and global memory, a selector a thread, virtual functions.

typedef float (*Binary)(float, float);

__device__ float add(float a, float b) { return a + b; }
__device__ float subtract(float a, float b) { return a - b; }
__device__ float multiply(float a, float b) { return a * b; }
__device__ float larger(float a, float b) { return a > b ? a : b; }

__constant__ Binary constant_table[4] = {add, subtract, multiply, larger};
__device__ Binary global_table[2] = {multiply, subtract};

extern "C" __global__ void pointer_constant(const int *which, const float *x, const float *y,
                                            float *out) {
    int i = threadIdx.x;
    out[i] = constant_table[which[i] & 3](x[i], y[i]);
}

extern "C" __global__ void pointer_global(int which, const float *x, const float *y, float *out) {
    int i = threadIdx.x;
    out[i] = global_table[which & 1](x[i], y[i]);
}

__device__ __noinline__ float fold(Binary f, const float *x, int n) {
    float v = x[0];
    for (int i = 1; i < n; i++) v = f(v, x[i]);
    return v;
}

// A pointer passed on to another function.
extern "C" __global__ void pointer_passed(const float *x, float *out, int n) {
    out[threadIdx.x] = fold(constant_table[threadIdx.x & 3], x, n);
}

struct Shape {
    __device__ virtual float area() const = 0;
};
struct Square : Shape {
    float side;
    __device__ explicit Square(float side) : side(side) {}
    __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
    float radius;
    __device__ explicit Circle(float radius) : radius(radius) {}
    __device__ float area() const override { return 3.0f * radius * radius; }
};

extern "C" __global__ void pointer_virtual(const float *x, float *out) {
    int i = threadIdx.x;
    Square square(x[i]);
    Circle circle(x[i]);
    const Shape *shape = i % 3 == 0 ? static_cast<const Shape *>(&square) : &circle;
    out[i] = shape->area();
}
