"""The measurements of `ptxgen bench`, a module for each section or part of one."""
