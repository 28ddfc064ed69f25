"""Which devices a word for --device names: one, several as one, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ooc, refused
from emulated_device import EmulatedDevice, emulated_group

from ooc_mdp.backends.cuda import choice
from ooc_mdp.backends.select import select_backend
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store

Gpus = tuple[EmulatedDevice, ...]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Three emulated GPUs that the host has."""
    devices = emulated_group(3)
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.CudaDevice", devices.__getitem__)
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.device_count", lambda: len(devices))
    return devices


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("cuda", "emulated:0"),
        ("cuda:1", "emulated:1"),
        ("auto", "emulated:0"),
        ("cuda:0,1", "emulated:0, emulated:1"),
        ("cuda:2,0,1", "emulated:2, emulated:0, emulated:1"),
    ],
)
def test_a_word_names_one_device_or_several(word: str, name: str, gpus: Gpus) -> None:
    assert select_backend(word).name == name


@pytest.mark.parametrize(
    ("store", "least", "expected"),
    [
        ("gridworld", 0, "emulated:0, emulated:1, emulated:2"),
        ("gridworld", 1 << 40, "emulated:0"),
        ("random", 0, "emulated:0"),  # reads everything
    ],
)
def test_cuda_is_every_device_where_several_are_expected_to_be_faster(
    store: str,
    least: int,
    expected: str,
    gpus: Gpus,
    stores: Callable[[str], Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "_MANY_STATES", least)
    monkeypatch.setattr(choice, "_MANY_ROWS", least)
    monkeypatch.setattr(choice, "devices_in_reach", lambda: (0, 1, 2))
    facts = ModelFacts.of(stores(store).facts, 0.9)
    assert select_backend("cuda", facts=facts).name == expected
    assert select_backend("cuda:0", facts=facts).name == "emulated:0"
    assert select_backend("auto", facts=facts).name == "emulated:0"
    assert select_backend("cuda", kernel="plain", facts=facts).name == "emulated:0"


@pytest.mark.parametrize("word", ["cuda:", "cuda:0,", "cuda:,1", "cuda:0;1", "cuda:0-1", "cuda:all", "cuda:-1"])
def test_other_words_are_refused_with_those_that_there_are(word: str, gpus: Gpus) -> None:
    with pytest.raises(OptionsError, match=r"unknown device .*; there are cpu, cuda:0 .*, cuda:0,1 .*, and auto"):
        select_backend(word)


def test_a_device_is_named_once(gpus: Gpus) -> None:
    with pytest.raises(OptionsError, match="'cuda:1,1' names a device twice"):
        select_backend("cuda:1,1")


def test_devices_that_do_not_reach_each_other_are_refused(gpus: Gpus) -> None:
    gpus[1].linked = False
    with pytest.raises(OptionsError, match="emulated:0 cannot read the memory of emulated:1"):
        select_backend("cuda:0,1")


def test_a_simple_kernel_runs_on_one_device(gpus: Gpus) -> None:
    assert select_backend("cuda:2", kernel="plain").name == "emulated:2"
    with pytest.raises(OptionsError, match="--kernel plain runs on one device; give --device cuda:0"):
        select_backend("cuda:0,1", kernel="plain")


def test_a_solve_on_several_devices_is_verified(
    stores: Callable[[str], Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, asked = stores("car"), ("--discount", 0.1, "--epsilon", 1e-3, "--cache", "60%")
    request.getfixturevalue("gpus")  # from here on there are GPUs
    ran = ooc("solve", store.path, *asked, "--device", "cuda:0,2", "--output", tmp_path / "r")
    assert ran.status == 0, ran.err
    assert "emulated:0, emulated:2" in ran.out
    assert "each of the 2 devices takes at most what the device's plan names" in ran.err
    assert ooc("verify", store.path, tmp_path / "r").status == 0
    assert "names a device twice" in refused("solve", store.path, *asked, "--device", "cuda:0,0")
