"""A kernel of cuda.core, from CUDA C++ by NVRTC."""

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = """
extern "C" __global__ void add(float *x, const float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}
"""
device = Device()
device.set_current()
stream = device.create_stream()
add = Program(SOURCE, "c++", ProgramOptions(arch="compute_80")).compile("ptx").get_kernel("add")
x = np.arange(1000, dtype=np.float32)
out = np.empty_like(x)
buffers = [device.allocate(x.nbytes, stream=stream) for _ in range(2)]
for buffer in buffers:
    (status,) = driver.cuMemcpyHtoD(int(buffer.handle), x.ctypes.data, x.nbytes)
    assert status == driver.CUresult.CUDA_SUCCESS
launch(stream, LaunchConfig(grid=8, block=128), add, *buffers, np.int32(len(x)))
stream.sync()
driver.cuMemcpyDtoH(out.ctypes.data, int(buffers[0].handle), x.nbytes)
assert np.array_equal(out, 2 * x)
