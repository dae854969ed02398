"""The life of a call: its arguments are read, its backend is chosen, and its launches are prepared and run.
An `Operation` says what differs between one kind of call and another.
"""
