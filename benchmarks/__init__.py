"""How fast Treadle is, measured: `python3 dev.py bench`. Speed lives here and never in a test."""
