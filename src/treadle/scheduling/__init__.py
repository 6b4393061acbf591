"""Schedules: what is declared, and the ticks that are due."""
