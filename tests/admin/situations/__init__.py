"""The situations in which a job waits, runs or has ended, each with the whole sentence of `explain`."""
