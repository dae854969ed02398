"""Translation of PTX to Python: a kernel and the functions that it calls become functions of the machine."""
