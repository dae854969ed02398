"""The problem that a user poses, and the rules that need no GPU: configurations, tilings, limits,
types.
"""
