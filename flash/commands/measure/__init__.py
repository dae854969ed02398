"""The measurements of `ptxgen bench` and `ptxgen tune`."""
