"""`treadle doctor`: one module for each storage, and what all have in common."""
