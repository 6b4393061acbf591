"""The project has its own tests: `manage.py test` runs them, not pytest."""

collect_ignore = ["project"]
