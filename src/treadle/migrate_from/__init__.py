"""Moves programs written for another job queue to Treadle: what is certain is rewritten, the rest is reported."""
