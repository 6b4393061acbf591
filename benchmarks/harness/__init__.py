"""The benchmark of everybody: one run, the same servers, the same jobs, the same clock. Start reading in run.py.

Nothing here knows a library: what differs stands in benchmarks/adapters, one file each.
"""
