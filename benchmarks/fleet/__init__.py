"""`python3 dev.py bench fleet`: each feature on each storage, with several workers, compared with plain jobs."""
