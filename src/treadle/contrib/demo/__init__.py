"""`treadle demo`: indexes the standard library with jobs, and kills a worker on request to show that none is lost."""
