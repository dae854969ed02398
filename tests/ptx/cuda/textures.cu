// Textures and surfaces, as NVIDIA's samples use them.

// simpleTexture: an image turned, with normalized coordinates.
extern "C" __global__ void texture_turned(cudaTextureObject_t image, float *out, int width, int height,
                                          float cosine, float sine) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float u = (x + 0.5f) / width - 0.5f, v = (y + 0.5f) / height - 0.5f;
    out[y * width + x] =
        tex2D<float>(image, u * cosine - v * sine + 0.5f, v * cosine + u * sine + 0.5f);
}

// simpleLayeredTexture: every layer negated, and its number added.
extern "C" __global__ void texture_layers(cudaTextureObject_t image, float *out, int width) {
    int x = threadIdx.x, y = threadIdx.y, layer = blockIdx.x;
    float u = (x + 0.5f) / width, v = (y + 0.5f) / width;
    out[(layer * width + y) * width + x] = -tex2DLayered<float>(image, u, v, layer) + layer;
}

// convolutionTexture: rows with a filter of radius 2, clamped at the edges.
extern "C" __global__ void texture_convolved(cudaTextureObject_t image, float *out, int width) {
    const float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
    int x = threadIdx.x, y = blockIdx.x;
    float sum = 0;
    for (int k = -2; k <= 2; k++) sum += weights[k + 2] * tex2D<float>(image, x + k + 0.5f, y + 0.5f);
    out[y * width + x] = sum;
}

// boxFilter: four channels of 8 bits as numbers from 0 to 1, and back.
extern "C" __global__ void texture_box(cudaTextureObject_t image, uchar4 *out, int width, int radius) {
    int x = threadIdx.x, y = blockIdx.x;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int dx = -radius; dx <= radius; dx++) {
        float4 t = tex2D<float4>(image, x + dx, y);
        sum.x += t.x, sum.y += t.y, sum.z += t.z, sum.w += t.w;
    }
    float scale = 255.0f / (2 * radius + 1);
    out[y * width + x] = make_uchar4(__float2int_rn(sum.x * scale), __float2int_rn(sum.y * scale),
                                     __float2int_rn(sum.z * scale), __float2int_rn(sum.w * scale));
}

// bicubicTexture: a cubic B-spline by four fetches that interpolate.
__device__ float w0(float a) { return (1.0f / 6.0f) * (a * (a * (-a + 3.0f) - 3.0f) + 1.0f); }
__device__ float w1(float a) { return (1.0f / 6.0f) * (a * a * (3.0f * a - 6.0f) + 4.0f); }
__device__ float w2(float a) { return (1.0f / 6.0f) * (a * (a * (-3.0f * a + 3.0f) + 3.0f) + 1.0f); }
__device__ float w3(float a) { return (1.0f / 6.0f) * (a * a * a); }

extern "C" __global__ void texture_bicubic(cudaTextureObject_t image, float *out, int width, float zoom) {
    float x = threadIdx.x * zoom, y = blockIdx.x * zoom;
    float px = floorf(x - 0.5f), py = floorf(y - 0.5f);
    float fx = x - 0.5f - px, fy = y - 0.5f - py;
    float g0x = w0(fx) + w1(fx), g1x = w2(fx) + w3(fx);
    float h0x = px - 1.0f + w1(fx) / g0x + 0.5f, h1x = px + 1.0f + w3(fx) / g1x + 0.5f;
    float g0y = w0(fy) + w1(fy), g1y = w2(fy) + w3(fy);
    float h0y = py - 1.0f + w1(fy) / g0y + 0.5f, h1y = py + 1.0f + w3(fy) / g1y + 0.5f;
    out[blockIdx.x * width + threadIdx.x] =
        g0y * (g0x * tex2D<float>(image, h0x, h0y) + g1x * tex2D<float>(image, h1x, h0y)) +
        g1y * (g0x * tex2D<float>(image, h0x, h1y) + g1x * tex2D<float>(image, h1x, h1y));
}

// simpleTexture3D: a slice of a volume of bytes.
extern "C" __global__ void texture_volume(cudaTextureObject_t volume, unsigned *out, int width, float w) {
    int x = threadIdx.x, y = blockIdx.x;
    float voxel = tex3D<float>(volume, x / (float)width, y / (float)width, w);
    out[y * width + x] = (unsigned)(voxel * 255);
}

// simpleCubemap: one fetch for each direction.
extern "C" __global__ void texture_cube(cudaTextureObject_t cube, const float3 *at, float *out) {
    float3 d = at[threadIdx.x];
    out[threadIdx.x] = texCubemap<float>(cube, d.x, d.y, d.z);
}

// Element types and geometries: integers by place, a gather, levels of detail.
extern "C" __global__ void texture_others(cudaTextureObject_t line, cudaTextureObject_t words,
                                          cudaTextureObject_t lines, cudaTextureObject_t image,
                                          int *ints, float *floats) {
    int x = threadIdx.x;
    ints[x] = tex1Dfetch<short>(line, x - 4);
    uint2 pair = tex1D<uint2>(words, x + 0.25f);
    ints[32 + x] = pair.x - pair.y;
    floats[x] = tex1DLayered<float>(lines, x * 0.5f, 1);
    float4 four = tex2Dgather<float4>(image, x * 0.5f, 3.25f, 1);
    floats[32 + x] = four.x + 10 * four.y + 100 * four.z + 1000 * four.w;
    floats[64 + x] = tex2DLod<float2>(image, x, 2, 0).y;
    floats[96 + x] = tex2DGrad<float2>(image, x, 2, make_float2(1, 0), make_float2(0, 1)).x;
}

// simpleSurfaceWrite: an array written, then fetched in the next launch.
extern "C" __global__ void surface_written(const float *x, cudaSurfaceObject_t out, int width) {
    int i = threadIdx.x, j = blockIdx.x;
    surf2Dwrite(x[j * width + i], out, i * 4, j, cudaBoundaryModeTrap);
}

// Other shapes, and what is done outside of a surface.
extern "C" __global__ void surface_others(cudaSurfaceObject_t line, cudaSurfaceObject_t volume,
                                          cudaSurfaceObject_t layers, float4 *out, unsigned char *bytes) {
    int i = threadIdx.x;
    float4 v = surf2DLayeredread<float4>(layers, i * 16, 1, 2);
    surf3Dwrite(make_float2(v.x, v.w), volume, i * 8, 1, 3);
    out[i] = surf2DLayeredread<float4>(layers, (i - 4) * 16, i, 0, cudaBoundaryModeClamp);
    out[32 + i] = surf2DLayeredread<float4>(layers, (i - 4) * 16, 1, 1, cudaBoundaryModeZero);
    bytes[i] = surf1Dread<unsigned char>(line, i);
    surf1Dwrite((unsigned short)(i + 1000), line, (i + 8) * 2, cudaBoundaryModeZero);
}

extern "C" __global__ void surface_outside(cudaSurfaceObject_t out) {
    surf2Dwrite(1.0f, out, threadIdx.x * 4, 1);
}
