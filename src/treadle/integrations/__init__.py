"""Treadle inside web frameworks and with OpenTelemetry, one module for each. `treadle` imports none of them."""
