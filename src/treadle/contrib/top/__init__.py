"""`treadle top`: queues, failures, limits and workers, as a live screen or as plain tables."""
