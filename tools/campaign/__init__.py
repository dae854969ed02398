"""The mutation campaign after `ptxgen mutate`."""
