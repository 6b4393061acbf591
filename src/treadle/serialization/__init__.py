"""Calls, arguments and results as JSON text, and their checks against the function's annotations."""
