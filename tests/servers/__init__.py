"""Real servers for the tests and the benchmarks: started here, killed here, gone when the run ends.

Nothing is mocked and nothing is skipped: a test fails, with the reason, if the server that it needs is not available.
The programs come from TEST_VALKEY_BIN or TEST_PG_BIN, else from the wheels among the development pins, else from the
system.
"""
