"""The operations of the HTTP API, one module per group of paths."""
