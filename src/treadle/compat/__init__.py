"""The protocols of other systems, spoken over any storage, so that their clients need no change."""
