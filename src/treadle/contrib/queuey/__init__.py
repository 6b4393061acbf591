"""The HTTP protocol of a queue of sandboxed modules, and of its blobs."""
