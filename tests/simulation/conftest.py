"""Two solved problems that the tests of simulations share."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_problems import solved


@pytest.fixture(scope="session")
def car(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("car")
    return solved(("mountain-car", {"grid": "100"}), 0.9, folder)


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pendulum")
    return solved(("single-pendulum", {"grid": "100"}), 0.9, folder)
