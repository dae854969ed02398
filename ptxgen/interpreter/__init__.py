"""An interpreter of PTX on the CPU: each register is a numpy array with a value for every thread of
a batch of CTAs.
"""

from ptxgen.interpreter.launch import run
from ptxgen.interpreter.machine.arena import DeviceArena
from ptxgen.interpreter.reports import Counters, MemoryTraffic, Report, Result
from ptxgen.interpreter.schedule.policies import PCT

__all__ = ["PCT", "Counters", "DeviceArena", "MemoryTraffic", "Report", "Result", "run"]
