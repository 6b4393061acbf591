"""Where functions run: in the event loop, in threads, in child processes, in batches."""
