"""Management commands of Django."""
