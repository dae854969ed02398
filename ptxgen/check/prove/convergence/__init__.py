"""The proof of convergence: that the lanes come together which an instruction of a warp names."""
