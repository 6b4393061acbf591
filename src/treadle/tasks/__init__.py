"""Tasks and their options: functions with a name and a policy."""
