"""Words for --kernel: what there is, what is refused, and that each solves."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from command_line import ooc
from paths import DOCS

import ooc_mdp
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.scheduled import ScheduledBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.backends.device_kernels import DEVICE_KERNELS, device_kernels
from ooc_mdp.backends.select import select_backend
from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.options import DEFAULT_KERNEL, SolveOptions
from ooc_mdp.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Rows of one shape, so that no kernel refuses it."""
    return ooc_mdp.generate("mountain-car", tmp_path_factory.mktemp("store") / "s", {"grid": "32,32"}, partitions=8)


def test_the_first_word_is_the_default_of_options() -> None:
    assert next(iter(DEVICE_KERNELS)) == DEFAULT_KERNEL == SolveOptions(0.9).kernel


def test_a_word_that_names_nothing_is_refused_with_those_that_do(store: Store) -> None:
    words = ", ".join(DEVICE_KERNELS)
    for ask in (lambda: device_kernels("fast"), lambda: ooc_mdp.solve(store, 0.9, kernel="fast")):
        with pytest.raises(OptionsError, match=f"unknown kernel 'fast'; there are {words}$"):
            ask()


def test_on_the_cpu_the_default_is_its_own_engine_and_simple_kernels_run_their_schedules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.device_count", lambda: 0)
    for device in ("cpu", "auto"):
        assert isinstance(select_backend(device), CpuBackend)
        assert isinstance(select_backend(device, kernel=DEFAULT_KERNEL), CpuBackend)
        for kernel in SIMPLE_KERNELS:
            backend = select_backend(device, kernel=kernel.word)
            assert isinstance(backend, ScheduledBackend)
            assert backend.name == "cpu"


def test_kernels_that_a_cuda_device_alone_has_are_refused_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    only = replace(DEVICE_KERNELS[DEFAULT_KERNEL], on_cpu=None)
    monkeypatch.setattr("ooc_mdp.backends.device_kernels.DEVICE_KERNELS", {"tiled": only})
    with pytest.raises(OptionsError, match="--kernel tiled needs a CUDA device; give --device cuda:0, or another"):
        select_backend("cpu", kernel="tiled")


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
    assert (f"{word} kernel" in found.method) == (word != DEFAULT_KERNEL)
    assert np.abs(found.values - exact.values).max() <= found.error_bound + exact.error_bound <= 1e-4 + 1e-9


@pytest.mark.gpu
def test_each_makes_the_backend_of_a_device() -> None:
    assert {entry.backend(0).name for entry in DEVICE_KERNELS.values()} == {"cuda:0"}


def test_the_command_lists_every_word_with_what_is_known_of_it() -> None:
    listed = ooc("kernels", "--json").figures["kernels"]
    assert [one["kernel"] for one in listed] == list(DEVICE_KERNELS)
    for one, entry in zip(listed, DEVICE_KERNELS.values(), strict=True):
        assert one == {
            "kernel": one["kernel"],
            "summary": entry.summary,
            "paper": entry.paper,
            "assumptions": entry.assumptions,
            "advice": entry.advice,
        }


def test_the_table_of_kernels_has_a_heading_for_each_column_and_every_word() -> None:
    ran = ooc("kernels")
    assert ran.status == 0
    first = ran.out.splitlines()[0]
    assert first.split() == ["kernel", "summary", "paper", "assumptions", "advice"]
    assert [line.split()[0] for line in ran.out.splitlines()[1:] if line[0] != " "] == list(DEVICE_KERNELS)
    assert all(text in " ".join(ran.out.split()) for text in ("Johannsson", "shared"))


def test_the_documentation_s_rows_are_those_of_the_catalogue() -> None:
    """A kernel may have no row yet; none may have another's, or an old one."""
    text = (DOCS / "simple-kernels.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    expected = {
        f"| `{word}` | {entry.summary} | {entry.paper} | {entry.assumptions} |"
        for word, entry in DEVICE_KERNELS.items()
    }
    assert rows
    assert set(rows) <= expected
