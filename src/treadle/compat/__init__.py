"""Protocols of other systems over any storage, so that their clients work unchanged."""
