"""Calls, arguments and results as JSON text, and the check that they fit the function's annotations."""
