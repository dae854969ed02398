"""The mutation campaign behind `ptxgen mutate`."""
