"""Fixtures of the tests of durable code."""

from __future__ import annotations

import pytest

from tests.durable.kit import Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()
