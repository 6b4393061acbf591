"""Enqueuing jobs and waiting for their results."""
