"""Tasks, which are named functions with a policy, and the options of their jobs."""
