"""What every test file shares: the gpu mark, Hypothesis profiles, the collection of reference cases."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

# NumPy's products are small here, and tests run side by side: a product shared out over cores that others have takes
# longer, and its threads wait by turning round. Set before NumPy is loaded; processes that tests start have it too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@functools.cache
def why_no_gpu() -> str:
    """Reason to skip gpu tests, empty where CuPy sees a device. CuPy is only imported if it is installed."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return "" if devices else "no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked gpu where there is no device."""
    if item.get_closest_marker("gpu") is not None and why_no_gpu():
        pytest.skip(why_no_gpu())


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Folder of models with certified reference values beside the checkout; skips where it is absent."""
    cases = Path(__file__).parents[1].parent / "shared" / "cases"
    if not cases.is_dir():
        pytest.skip(f"the reference cases are not at {cases}")
    return cases
