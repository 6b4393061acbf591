"""Runs the functions of jobs in threads, in child processes, or in batches."""
