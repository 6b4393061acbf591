"""Treadle inside web frameworks, one package for each. Nothing else in Treadle imports these."""
