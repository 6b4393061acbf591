"""Schedules: their declaration, and the jobs of the ticks that are due."""
