// Loops over grids: life on a torus, a 3-D heat step, a sparse matrix, a grid-stride loop.

extern "C" __global__ void life(const unsigned char *x, unsigned char *out, int width, int height) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= width || r >= height) return;
    int alive = 0;
    for (int dr = -1; dr <= 1; dr++)
        for (int dc = -1; dc <= 1; dc++)
            if (dr || dc)
                alive += x[(r + dr + height) % height * width + (c + dc + width) % width];
    out[r * width + c] = alive == 3 || (alive == 2 && x[r * width + c]);
}

extern "C" __global__ void heat(const float *x, float *out, int nx, int ny, int nz, float k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y,
        l = blockIdx.z * blockDim.z + threadIdx.z;
    if (i >= nx || j >= ny || l >= nz) return;
    int at = (l * ny + j) * nx + i;
    float v = x[at], sum = 0.0f;
    sum += i > 0 ? x[at - 1] - v : 0.0f;
    sum += i + 1 < nx ? x[at + 1] - v : 0.0f;
    sum += j > 0 ? x[at - nx] - v : 0.0f;
    sum += j + 1 < ny ? x[at + nx] - v : 0.0f;
    sum += l > 0 ? x[at - nx * ny] - v : 0.0f;
    sum += l + 1 < nz ? x[at + nx * ny] - v : 0.0f;
    out[at] = v + k * sum;
}

// y = A x, rows of compressed storage of very different length.
extern "C" __global__ void sparse(const int *start, const int *column, const double *value,
                                  const double *x, double *y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double sum = 0.0;
    for (int e = start[row]; e < start[row + 1]; e++) sum += value[e] * x[column[e]];
    y[row] = sum;
}

extern "C" __global__ void saxpy(float a, const float *__restrict__ x, float *__restrict__ y,
                                 long long n) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

// How soon a point leaves the Mandelbrot set.
extern "C" __global__ void mandelbrot(int *out, int width, int height, int limit) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= width || r >= height) return;
    double x0 = -2.0 + 3.0 * c / width, y0 = -1.5 + 3.0 * r / height, x = 0.0, y = 0.0;
    int n = 0;
    while (n < limit && __dadd_rn(__dmul_rn(x, x), __dmul_rn(y, y)) < 4.0) {
        double t = __dadd_rn(__dadd_rn(__dmul_rn(x, x), -__dmul_rn(y, y)), x0);
        y = __dadd_rn(__dmul_rn(__dmul_rn(2.0, x), y), y0);
        x = t;
        n++;
    }
    out[r * width + c] = n;
}
