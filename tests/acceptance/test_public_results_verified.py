"""Each method's written result of each public case passes `verify`, which recomputes every claim from the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_words import skip_where_refused
from paths import PUBLIC

import ooc_mdp
from ooc_mdp.backends.device_kernels import DEVICE_KERNELS
from ooc_mdp.options import DEFAULT_KERNEL

NAMES = sorted(p.name for p in PUBLIC.glob("*") if (p / "case.json").exists()) if PUBLIC.exists() else []
METHODS: list[dict[str, Any]] = [
    {"method": "vi"},
    {"method": "p-eva"},
    {"method": "p-eva", "priority": "h2"},
    {"method": "p-eva", "priority": "exact-h1"},
    {"method": "policy-iteration"},
    {"method": "auto"},
]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NAMES, reason="the shared cases are not here")]


def verify_all(name: str, folder: Path, methods: list[dict[str, Any]], **device: str) -> None:
    """Solve every problem of a case with two partitions in the cache, write the results, and verify them."""
    n = np.load(PUBLIC / name / "model.npz")["state_ptr"].size - 1
    for number, problem in enumerate(json.loads((PUBLIC / name / "case.json").read_text())["problems"]):
        sense, place = problem["objective"], folder / f"{number}"
        place.mkdir()
        model = PUBLIC / name / "model.npz"
        store = ooc_mdp.convert(model, place / "store", sense=sense, partitions=min(n, 5))
        cache = None if device["device"] != "cpu" else int(np.sort(store.facts.partition_bytes)[-2:].sum())
        skip_where_refused(device.get("kernel", DEFAULT_KERNEL), store, problem["discount"])
        epsilon = 1e-6 * max(1.0, *(abs(v) for v in problem["value_range"]))
        for i, method in enumerate(methods):
            output = place / f"result-{i}"
            ooc_mdp.solve(store, problem["discount"], epsilon=epsilon, cache=cache, output=output, **method, **device)
            found = ooc_mdp.verify(store, ooc_mdp.open_result(output))
            assert found.holds, (problem["key"], method, found.refuted)
            assert found.error_bound <= epsilon * (1 + 1e-9)
            assert found.invalid_policy_states == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_result_of_the_cpu_is_verified(name: str, tmp_path: Path) -> None:
    verify_all(name, tmp_path, METHODS, device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", DEVICE_KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_every_result_of_the_gpu_is_verified(name: str, kernel: str, tmp_path: Path) -> None:
    methods = METHODS if kernel == DEFAULT_KERNEL else METHODS[:1]
    verify_all(name, tmp_path, methods, device="cuda:0", kernel=kernel)
