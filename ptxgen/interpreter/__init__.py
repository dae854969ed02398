"""Runs PTX on the CPU: lanes are numpy arrays over all threads of a batch of CTAs."""

from ptxgen.interpreter.arena import DeviceArena
from ptxgen.interpreter.launch import run
from ptxgen.interpreter.policies import PCT
from ptxgen.interpreter.reports import Counters, MemoryTraffic, Report, Result

__all__ = ["PCT", "Counters", "DeviceArena", "MemoryTraffic", "Report", "Result", "run"]
