"""`treadle doctor`: one module per storage, and the checks that all storages share."""
