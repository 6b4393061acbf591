"""The HTTP protocol of a queue of sandboxed modules, and its blobs."""
