"""Mistakes of the analysers, and which tests notice them; `tools/mutate_analyses.py` asks."""
