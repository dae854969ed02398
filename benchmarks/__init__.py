"""What `ptxgen bench` measures in a checkout, and scripts beside kernels of other libraries."""
