"""Commands of a checkout: those of `ptxgen`, and those of its developers."""
