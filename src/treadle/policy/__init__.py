"""Pure decisions: when to retry, what a failure means, when a schedule fires, how fast to start jobs."""
