"""Treadle inside web frameworks: one module for each, which imports that framework. `treadle` imports none of them."""
