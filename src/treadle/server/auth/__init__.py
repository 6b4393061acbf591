"""Tokens of the server: the file that holds them, and what each may do."""
