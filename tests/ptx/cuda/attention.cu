// Scaled dot product attention of one head, a warp a query row, online softmax; dim = 64.
#include <math_constants.h>

extern "C" __global__ void attention(const float *q, const float *k, const float *v, float *out,
                                     int keys, float scale, int causal) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = blockIdx.x * (blockDim.x / 32) + warp;
    const float2 *q2 = reinterpret_cast<const float2 *>(q), *k2 = reinterpret_cast<const float2 *>(k),
                 *v2 = reinterpret_cast<const float2 *>(v);
    float2 mine = q2[row * 32 + lane], sum = make_float2(0.0f, 0.0f);
    float highest = -CUDART_INF_F, total = 0.0f;
    int end = causal ? min(keys, row + 1) : keys;
    for (int j = 0; j < end; j++) {
        float2 key = k2[j * 32 + lane];
        float score = mine.x * key.x + mine.y * key.y;
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        score *= scale;
        float now = fmaxf(highest, score), keep = expf(highest - now), weight = expf(score - now);
        float2 value = v2[j * 32 + lane];
        sum.x = sum.x * keep + weight * value.x;
        sum.y = sum.y * keep + weight * value.y;
        total = total * keep + weight;
        highest = now;
    }
    reinterpret_cast<float2 *>(out)[row * 32 + lane] = make_float2(sum.x / total, sum.y / total);
}
