"""`python3 dev.py bench fleet`: every feature on every storage, with several workers, against plain jobs (run.py)."""
