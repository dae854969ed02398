"""PTX to Python: a kernel and what it calls as functions of the machine."""
