"""What `ptxgen bench` measures in a checkout, and scripts next to kernels of other libraries."""
