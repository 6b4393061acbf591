"""The operations of people who run Treadle: list, explain, cancel, retry, pause, limit, move."""
