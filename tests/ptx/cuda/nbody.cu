// Gravitation: each block walks over tiles of all bodies in shared memory.

extern "C" __global__ void nbody_step(const float4 *place, float4 *speed, float4 *moved, int n,
                                      float dt, float softening) {
    extern __shared__ float4 tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 p = place[i];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int first = 0; first < n; first += blockDim.x) {
        tile[threadIdx.x] = place[first + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < blockDim.x; j++) {
            float dx = tile[j].x - p.x, dy = tile[j].y - p.y, dz = tile[j].z - p.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
            float pull = tile[j].w * inverse * inverse * inverse;
            ax += dx * pull;
            ay += dy * pull;
            az += dz * pull;
        }
        __syncthreads();
    }
    float4 v = speed[i];
    v.x += ax * dt;
    v.y += ay * dt;
    v.z += az * dt;
    speed[i] = v;
    moved[i] = make_float4(p.x + v.x * dt, p.y + v.y * dt, p.z + v.z * dt, p.w);
}
