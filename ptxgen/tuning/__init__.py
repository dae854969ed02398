"""Chooses the configuration of a kernel, of several that its author offers: by the clock on a GPU, by a model
without one.
"""

from ptxgen.tuning.ranking import Candidate, Ranking
from ptxgen.tuning.tuned import TunedKernel, autotune

__all__ = ["Candidate", "Ranking", "TunedKernel", "autotune"]
