"""`treadle demo`: real work on real input, and a worker killed in the middle of it.

Without it nobody could see in ten seconds, on their own machine, that nothing is lost.
"""
