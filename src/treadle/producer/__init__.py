"""Enqueues jobs and waits for their results."""
