"""Tools for assistants over the Model Context Protocol: what they see and do is what the HTTP API shows and does.

Needs `treadle[mcp]`.
"""
