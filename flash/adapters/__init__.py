"""Attention under the names of other libraries. Each adapter imports its library when it is imported
itself; nothing else in `flash` imports an adapter.
"""
