"""Proofs by listing: every address that an access to shared memory may have."""
