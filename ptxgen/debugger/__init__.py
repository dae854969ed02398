"""A debugger of kernels on the interpreter: `ptxgen debug` is its command line, and `Session` the debugger
itself, which stops a run before an instruction, shows its state, and runs it again to go back.
"""
