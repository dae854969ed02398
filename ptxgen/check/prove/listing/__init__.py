"""To prove by listing: all addresses that an access to shared memory may have."""
