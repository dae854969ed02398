// Local arrays with indices known at run time, and switches.

extern "C" __global__ void local_array(const int *x, int *out, int n) {
    int counts[10] = {};
    for (int i = 0; i < n; i++) counts[x[threadIdx.x * n + i] % 10]++;
    for (int i = 0; i < 10; i++) out[threadIdx.x * 10 + i] = counts[i];
}

// Insertion sort of bytes in a local array.
extern "C" __global__ void local_bytes(unsigned char *x) {
    unsigned char mine[12];
    for (int i = 0; i < 12; i++) mine[i] = x[threadIdx.x * 12 + i];
    for (int i = 1; i < 12; i++) {
        unsigned char v = mine[i];
        int j = i;
        for (; j > 0 && mine[j - 1] > v; j--) mine[j] = mine[j - 1];
        mine[j] = v;
    }
    for (int i = 0; i < 12; i++) x[threadIdx.x * 12 + i] = mine[i];
}

extern "C" __global__ void jump_table(const int *op, const unsigned int *x, unsigned int *out) {
    int i = threadIdx.x;
    unsigned int v = x[i], r;
    switch (op[i]) {
        case 0: r = v + 17; break;
        case 1: r = v * v; break;
        case 2: r = v ^ 0x5a5a5a5a; break;
        case 3: r = __brev(v); break;
        case 4: r = v / 7; break;
        case 5: r = __popc(v) * 3;  // falls through
        case 6: r = v >> (i & 31); break;
        case 7: r = v % 1000; break;
        case 9: r = __clz(v); break;
        case 10: r = __ffs(v) - 5; break;
        default: r = 0xdeadbeef;
    }
    out[i] = r;
}

// A little machine: each thread runs the same byte code on its own stack.
extern "C" __global__ void byte_code(const unsigned char *code, int length, const int *x, int *out) {
    int stack[8], top = 0, at = 0;
    stack[top++] = x[threadIdx.x];
    while (at < length) {
        switch (code[at++]) {
            case 0: stack[top++] = code[at++]; break;
            case 1: top--; stack[top - 1] += stack[top]; break;
            case 2: top--; stack[top - 1] *= stack[top]; break;
            case 3: stack[top] = stack[top - 1]; top++; break;
            case 4: at = stack[--top] > 0 ? code[at] : at + 1; break;
            case 5: stack[top - 1]--; break;
            case 6: { int t = stack[top - 1]; stack[top - 1] = stack[top - 2]; stack[top - 2] = t; break; }
            case 7: stack[top - 1] = -stack[top - 1]; break;
        }
    }
    out[threadIdx.x] = stack[top - 1];
}

// Loops of different length with breaks and continues; nobody waits for anybody.
extern "C" __global__ void collatz(const unsigned long long *x, int *steps, unsigned long long *peak) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = 0;
    unsigned long long v = x[i], top = v;
    while (v != 1) {
        n++;
        if (v % 2 == 0) {
            v /= 2;
            continue;
        }
        v = 3 * v + 1;
        if (v > top) top = v;
        if (n > 500) break;
    }
    steps[i] = n;
    peak[i] = top;
}
