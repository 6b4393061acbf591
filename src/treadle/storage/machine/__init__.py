"""The state machine of jobs, once, for the storages that decide in Python: memory and SQLite.

A storage supplies its rows (`rows.Rows`) and runs the steps; which state comes next is decided here. PostgreSQL and
Redis have the same machine in SQL and Lua.
"""
