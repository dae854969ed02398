"""The caller's arrays: how they are read, checked, copied, and made for results."""
