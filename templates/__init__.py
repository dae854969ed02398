"""Frames of generated text: a template loops and prints, it never decides.

Installed as `ptxgen.templates`; read through `ptxgen.frames.load_template`.
"""
