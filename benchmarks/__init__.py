"""The measurements of `ptxgen bench` in a checkout, and scripts that compare with kernels of other
libraries.
"""
