"""Words for --kernel: what there is, what is refused, and that each solves."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.backends.base import Backend
from ooc_mdp.backends.device_kernels import DEVICE_KERNELS, device_kernels
from ooc_mdp.backends.select import select_backend
from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.options import DEFAULT_KERNEL, SolveOptions
from ooc_mdp.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return ooc_mdp.generate("GW-32x4", tmp_path_factory.mktemp("store") / "s", {"seed": 1}, partitions=8)


def test_the_first_word_is_the_default_of_options() -> None:
    assert next(iter(DEVICE_KERNELS)) == DEFAULT_KERNEL == SolveOptions(0.9).kernel


def test_a_word_that_names_nothing_is_refused_with_those_that_do(store: Store) -> None:
    for ask in (lambda: device_kernels("bdi"), lambda: ooc_mdp.solve(store, 0.9, kernel="bdi")):
        with pytest.raises(OptionsError, match="unknown kernel 'bdi'; there are tiles, plain"):
            ask()


def test_the_cpu_takes_the_default_and_refuses_the_others(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.device_count", lambda: 0)
    assert select_backend("auto", kernel=DEFAULT_KERNEL).name == "cpu"
    with pytest.raises(OptionsError, match="this solve runs on the CPU; leave it out, or give --device cuda:0"):
        select_backend("auto", kernel="plain")
    for device in ("cpu", "auto"):
        with pytest.raises(OptionsError, match="--kernel chooses among the sweep kernels of a CUDA device"):
            ooc_mdp.solve(store, 0.9, device=device, kernel="plain")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
@pytest.mark.parametrize("word", DEVICE_KERNELS)
def test_without_cupy_each_names_the_extra(word: str) -> None:
    with pytest.raises(MissingExtraError, match="cuda13"):
        select_backend("cuda:0", kernel=word)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["vi", "p-eva"])
@pytest.mark.parametrize("word", DEVICE_KERNELS)
def test_each_proves_its_target_on_a_device(word: str, method: str, store: Store) -> None:
    exact = ooc_mdp.solve(store, 0.9, epsilon=1e-9, device="cpu")
    found = ooc_mdp.solve(store, 0.9, epsilon=1e-4, device="cuda:0", kernel=word, method=method, cache="40%")  # type: ignore[arg-type]
    assert found.outcome.proved
    assert found.device == "cuda:0"
    assert ("plain" in found.method) == (word == "plain")
    assert np.abs(found.values - exact.values).max() <= found.error_bound + exact.error_bound <= 1e-4 + 1e-9


@pytest.mark.gpu
def test_each_is_a_backend_of_its_own() -> None:
    made: list[Backend] = [entry.backend(0) for entry in DEVICE_KERNELS.values()]
    assert len({type(backend) for backend in made}) == len(made)
