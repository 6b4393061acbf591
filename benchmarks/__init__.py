"""Measures how fast Treadle is: `python3 dev.py bench`. Performance is measured here and never in a test."""
