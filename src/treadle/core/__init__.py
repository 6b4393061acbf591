"""The words of the library: plain values, errors, ids, clocks, defaults. Imports nothing else of Treadle."""
