"""Runs one job: its context, its middleware, its transaction."""
