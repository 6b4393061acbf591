"""The benchmark of all systems: one run with the same servers, jobs and clock. Start reading in run.py.

Nothing here depends on a library: the differences are in benchmarks/adapters, one file per library.
"""
