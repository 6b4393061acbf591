"""One small file per system, which uses it as its documentation recommends for speed.

Each runs in the system's own environment, so only treadle.py imports Treadle. To add one, read frame.py.
"""
