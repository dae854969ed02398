// Structures by value, with pointers inside, bit fields and unions.

struct Point {
    float x, y;
    double weight;
    char tag;
};

struct Problem {
    const float *input;
    float *output;
    int n;
    struct {
        float scale;
        short shift[4];
    } step;
};

extern "C" __global__ void structure_value(Point p, int n, double *out) {
    int i = threadIdx.x;
    if (i < n) out[i] = p.x + p.y * i + p.weight * p.tag;
}

extern "C" __global__ void structure_pointers(Problem problem) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < problem.n)
        problem.output[i] = problem.input[i] * problem.step.scale + problem.step.shift[i & 3];
}

struct Node {
    int value;
    const Node *next;
};

// Walks a linked list in global memory.
extern "C" __global__ void structure_list(const Node *first, int *out, int n) {
    int sum = 0, steps = 0;
    for (const Node *node = first; node && steps < n + (int)threadIdx.x; node = node->next, steps++)
        sum += node->value;
    out[threadIdx.x] = sum;
}

struct Packed {
    unsigned int low : 5, middle : 11, high : 16;
};

union Word {
    float f;
    unsigned int bits;
    unsigned char bytes[4];
};

extern "C" __global__ void structure_bits(const Packed *x, const float *y, unsigned int *out) {
    int i = threadIdx.x;
    Packed p = x[i];
    Word w;
    w.f = y[i];
    out[4 * i] = p.low;
    out[4 * i + 1] = p.middle * 3;
    out[4 * i + 2] = p.high + (w.bits >> 23 & 255);
    out[4 * i + 3] = w.bytes[i & 3];
}

// A large parameter indexed by the thread.
struct Table {
    int entry[64];
};

extern "C" __global__ void structure_table(const __grid_constant__ Table t, const int *which, int *out) {
    out[threadIdx.x] = t.entry[which[threadIdx.x] & 63];
}
