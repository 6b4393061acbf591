"""Tokens of the server: their file, and the rights of each."""
