"""The tests that every storage, port and blob store must pass, and a storage and a network that fail on demand.

It is a distribution of its own, `treadle-testkit`, so that programs that only use Treadle do not install it.
"""
