"""Fixtures of these tests."""

from tests.cli.fleet_stage import stage

__all__ = ["stage"]
