// Black-Scholes prices, and a Monte Carlo estimate of pi with a generator of our own.

__device__ float price_of_call(float spot, float strike, float years, float rate, float volatility,
                               float *put) {
    float root = sqrtf(years);
    float d1 = (logf(spot / strike) + (rate + 0.5f * volatility * volatility) * years) /
               (volatility * root);
    float d2 = d1 - volatility * root;
    float discount = expf(-rate * years);
    float call = spot * normcdff(d1) - strike * discount * normcdff(d2);
    *put = call - spot + strike * discount;
    return call;
}

extern "C" __global__ void black_scholes(const float *spot, const float *strike, const float *years,
                                         float rate, float volatility, float *call, float *put,
                                         int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        call[i] = price_of_call(spot[i], strike[i], years[i], rate, volatility, &put[i]);
}

// With erff and the fast approximations.
extern "C" __global__ void black_scholes_fast(const float *spot, const float *strike,
                                              const float *years, float rate, float volatility,
                                              float *call, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float root = __fsqrt_rn(years[i]);
    float d1 = __fdividef(__logf(__fdividef(spot[i], strike[i])) +
                              (rate + 0.5f * volatility * volatility) * years[i],
                          volatility * root);
    float d2 = d1 - volatility * root;
    float n1 = 0.5f + 0.5f * erff(d1 * 0.70710678f), n2 = 0.5f + 0.5f * erff(d2 * 0.70710678f);
    call[i] = spot[i] * n1 - strike[i] * __expf(-rate * years[i]) * n2;
}

extern "C" __global__ void count_inside(unsigned long long seed, int draws, unsigned int *inside) {
    unsigned long long state = seed + blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int mine = 0;
    for (int i = 0; i < draws; i++) {
        float at[2];
        for (int k = 0; k < 2; k++) {
            state += 0x9E3779B97F4A7C15ull;
            unsigned long long z = state;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
            z ^= z >> 31;
            at[k] = (unsigned int)(z >> 40) * 0x1p-24f;
        }
        mine += at[0] * at[0] + at[1] * at[1] < 1.0f;
    }
    atomicAdd(inside, mine);
}
