"""Plain values, errors, ids, clocks and defaults, which every other module uses. Imports nothing else of Treadle."""
