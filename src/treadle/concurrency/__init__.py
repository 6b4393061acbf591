"""Event loops, threads and forks: what every part that awaits, locks or forks needs."""
