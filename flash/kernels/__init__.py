"""The attention kernels, one in each file, which reads like the paper that it implements."""
