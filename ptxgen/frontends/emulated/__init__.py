"""A GPU that is not there: PyTorch says that tensors are on CUDA, and kernels run on the interpreter."""
