"""Runs kernels: settings, the module cache, the assembler, launch plans and backends."""
