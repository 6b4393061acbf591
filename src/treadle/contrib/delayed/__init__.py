"""The HTTP protocol of a service for delayed jobs."""
