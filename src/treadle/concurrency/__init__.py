"""Helpers for event loops, threads and forks."""
