// The mathematical library in single and double precision.

extern "C" __global__ void single_math(const float *x, float *out) {
    int i = threadIdx.x, n = blockDim.x;
    float v = x[i];
    out[i] = sinf(v);
    out[n + i] = cosf(v);
    out[2 * n + i] = expf(v);
    out[3 * n + i] = logf(fabsf(v));
    out[4 * n + i] = powf(fabsf(v), 1.7f);
    out[5 * n + i] = tanhf(v);
    out[6 * n + i] = sqrtf(fabsf(v));
    out[7 * n + i] = 1.0f / v;
    out[8 * n + i] = atan2f(v, 2.0f);
    out[9 * n + i] = erff(v);
    out[10 * n + i] = cbrtf(v);
    out[11 * n + i] = fmodf(v, 0.75f);
    out[12 * n + i] = log1pf(fabsf(v));
    out[13 * n + i] = exp2f(v);
}

extern "C" __global__ void single_fast(const float *x, float *out) {
    int i = threadIdx.x, n = blockDim.x;
    float v = x[i];
    out[i] = __sinf(v);
    out[n + i] = __cosf(v);
    out[2 * n + i] = __expf(v);
    out[3 * n + i] = __log2f(fabsf(v));
    out[4 * n + i] = rsqrtf(fabsf(v));
    out[5 * n + i] = __fdividef(v, 3.0f);
    out[6 * n + i] = __powf(fabsf(v), 1.7f);
}

// Rounding to every direction, and to integers.
extern "C" __global__ void roundings(const float *x, const float *y, float *out, int *ints) {
    int i = threadIdx.x, n = blockDim.x;
    float a = x[i], b = y[i];
    out[i] = __fadd_ru(a, b);
    out[n + i] = __fmul_rd(a, b);
    out[2 * n + i] = __fmaf_rz(a, b, a);
    out[3 * n + i] = __fdiv_ru(a, b);
    out[4 * n + i] = __fsqrt_rd(fabsf(a));
    out[5 * n + i] = __frcp_rz(b);
    out[6 * n + i] = rintf(a) + 1000.0f * floorf(b);
    out[7 * n + i] = __saturatef(a) + truncf(b);
    ints[i] = __float2int_rn(a);
    ints[n + i] = __float2int_ru(a);
    ints[2 * n + i] = __float2uint_rz(a);
    ints[3 * n + i] = (int)__float2ll_rd(a);
    ints[4 * n + i] = __float_as_int(__int2float_rz(ints[i] * 123457 + 1));
    ints[5 * n + i] = __float_as_int(copysignf(a, b)) ^ isnan(a) ^ isinf(b);
    ints[6 * n + i] = lroundf(b);
}

extern "C" __global__ void double_math(const double *x, double *out) {
    int i = threadIdx.x, n = blockDim.x;
    double v = x[i];
    out[i] = sin(v);
    out[n + i] = exp(v);
    out[2 * n + i] = pow(fabs(v), 1.25);
    out[3 * n + i] = log(fabs(v));
    out[4 * n + i] = sqrt(fabs(v));
    out[5 * n + i] = v / 3.7;
    out[6 * n + i] = tanh(v);
    out[7 * n + i] = rsqrt(fabs(v));
    out[8 * n + i] = floor(v) + fma(v, v, 0.125);
}
