"""The HTTP protocol of a small service for delayed jobs."""
