"""Real servers for the tests and the benchmarks: started here, killed here, gone when the run is over.

Nothing is mocked and nothing is skipped: a test that needs a server which cannot be had fails, and says why. Where the
programs come from: TEST_VALKEY_BIN or TEST_PG_BIN, else the wheels among the development pins, else the system.
"""
