"""The run of one job: its context, its middleware, its transaction."""
