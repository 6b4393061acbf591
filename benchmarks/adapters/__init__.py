"""One small file per system: how its documentation says it is used when it must be fast.

Each runs in the system's own environment, so nothing here imports Treadle but treadle.py. To add one, read frame.py.
"""
