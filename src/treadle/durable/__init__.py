"""Durable code: steps whose results are stored, so that after a crash the job continues behind the last one."""
