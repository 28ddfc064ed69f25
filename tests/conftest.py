"""What test files share: the gpu mark, Hypothesis profiles, reference cases, stores and devices of the tiled engine."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from paths import place_in_memory

if TYPE_CHECKING:
    from tiled_engine import MakeDevice, MakeGroup
    from worker_clusters import Clusters

    from ooc_mdp.store import Store

# NumPy's products are small here, and tests run side by side: a product shared out over cores that others have takes
# longer, and its threads wait by turning round. Set before NumPy is loaded; processes that tests start have it too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# JAX, a peer in the benchmarks, takes three quarters of a device for itself unless it is asked not to, and tests beside
# it find no memory. Set before JAX is loaded.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Dask's profiler of workers, which are threads of this process in most tests, has crashed Python 3.11.7 once, as it
# walked the frames of threads that were at work. Set before Dask is loaded; processes that tests start have it too.
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")

# A killed process loses nothing that it has written, and a test's files need not outlive the machine: waiting for the
# disk was a quarter of the time. Processes that tests start do sync.
os.fsync = lambda fd: None

# Tests write many small files, which a file system in memory makes and removes at a tenth of a disk's cost. Only what
# tests that failed have written is kept (pyproject.toml), so little memory is taken.
if (memory := place_in_memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# How long examples take is the machine's affair: no test fails by a deadline, or by the check for slow generation.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
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


def pytest_configure(config: pytest.Config) -> None:
    """Give each of xdist's workers its own share of the cores.

    Threads of one process that run on several cores wait for Python's lock longer than they gain: where every core has
    a worker, moving them about costs a seventh of the time. How many threads a solve takes does not change.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores, workers = sorted(os.sched_getaffinity(0)), worker["workercount"]
        if len(cores) >= workers:
            os.sched_setaffinity(0, cores[int(worker["workerid"].removeprefix("gw")) :: workers])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked gpu where there is no device."""
    if item.get_closest_marker("gpu") is not None and why_no_gpu():
        pytest.skip(why_no_gpu())


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Folder of models with certified reference values beside the checkout; skips where it is absent."""
    from paths import CASES

    if not CASES.is_dir():
        pytest.skip(f"the reference cases are not at {CASES}")
    return CASES


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """Stores of `tiled_engine` by name, made when they are first asked for; no test changes one."""
    from tiled_engine import make

    made: dict[str, Store] = {}

    def get(name: str) -> Store:
        if name not in made:
            made[name] = make(name, tmp_path_factory.mktemp("stores") / "s")
        return made[name]

    return get


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> MakeDevice:
    """Makes a device of the tiled engine: on the emulator of CUDA, and on a GPU where there is one."""
    from tiled_engine import emulated

    from ooc_mdp.backends.cuda.device import CudaDevice

    return emulated if request.param == "emulated" else lambda: CudaDevice(0)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def group(request: pytest.FixtureRequest) -> MakeGroup:
    """Makes the devices of a group for the tiled engine: emulated ones, and GPUs where there are so many."""
    from emulated_device import emulated_group

    from ooc_mdp.backends.cuda.device import CudaDevice, Device, device_count

    def on_gpus(count: int, seed: int = 0) -> Sequence[Device]:
        if device_count() < count:
            pytest.skip(f"there are {device_count()} GPUs, {count} are needed")
        return [CudaDevice(number) for number in range(count)]

    return emulated_group if request.param == "emulated" else on_gpus


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    """Clusters of threads in this process, started when they are first asked for."""
    from worker_clusters import Clusters

    with ExitStack() as stack:
        yield Clusters(stack)


@pytest.fixture(scope="session")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Ragged rows, durations, terminal states, initial values; minimised."""
    from small_mdps import Case, make_store
    from store_models import random_model

    model = random_model(11, 60, durations=True, initial_values=True)
    return make_store(Case(model, "min", partitions=12), tmp_path_factory.mktemp("ragged") / "s")


@pytest.fixture(scope="session")
def coupled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """81 partitions of 16 states."""
    import ooc_mdp

    path = tmp_path_factory.mktemp("coupled") / "s"
    return ooc_mdp.generate("double-pendulum", path, {"grid": "6,6,6,6"}, partition_grid=[3] * 4)


@pytest.fixture(scope="session")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """16 partitions of a gridworld."""
    import ooc_mdp

    path = tmp_path_factory.mktemp("maze") / "s"
    return ooc_mdp.generate("GW-24x4", path, {"seed": 1}, partitions=16, threads=1)
