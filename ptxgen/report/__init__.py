"""A report on a kernel as one HTML file: source, PTX and machine code side by side, what a run on the
interpreter did, what is proved, and the limits of the target.
"""

from ptxgen.report.collect import STEPS, Launch, Subject, collect
from ptxgen.report.comparison import Comparison, compare
from ptxgen.report.data import Report
from ptxgen.report.page import comparison_page, page
from ptxgen.report.subjects import subject_of_function

__all__ = [
    "STEPS",
    "Comparison",
    "Launch",
    "Report",
    "Subject",
    "collect",
    "compare",
    "comparison_page",
    "page",
    "subject_of_function",
]
