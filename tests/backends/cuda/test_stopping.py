"""Tests of convergence of simple kernels: when a visit looks, what it copies, where it ends, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc
from tiled_engine import ShuffledDevice, emulated

import ooc_mdp
from ooc_mdp.backends.base import Loops, SweepLimits
from ooc_mdp.backends.cpu.scheduled import ScheduledBackend
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import PLAIN, SIMPLE_KERNELS, Launch, SimpleKernel
from ooc_mdp.backends.device_kernels import device_kernels
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import SolveOptions, Stopping
from ooc_mdp.solver import local
from ooc_mdp.store import Store

TESTS = ["states:1", "states:7", "blocks:1", "blocks:7"]
DISCOUNT, CHANGE, MOST = 0.6, 1e-3, 200
DEVICES: dict[str, Callable[[], Device]] = {
    "in order": emulated,
    "shuffled": lambda: ShuffledDevice(2),
    "cuda": lambda: CudaDevice(0),
}
on_each = pytest.mark.parametrize("on", [pytest.param(n, marks=[pytest.mark.gpu] * (n == "cuda")) for n in DEVICES])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return ooc_mdp.generate(
        "quintanilla", tmp_path_factory.mktemp("s") / "s", {"height": 14, "width": 19}, partitions=1
    )


def visited(backend: SimpleBackend | ScheduledBackend, store: Store, change: float = CHANGE, most: int = MOST) -> int:
    """Passes of the first visit."""
    facts = ModelFacts.of(store.facts, DISCOUNT)
    backend.load_code(facts, Loops.BATCHES)
    backend.start(facts, backend.layout(facts, Needs()), None, None)
    found = backend.sweep([backend.admit(backend.prepare(store.read(0)[0]))], SweepLimits(change, most)).report()
    backend.close()
    return int(found.sweeps[0])


def with_test(text: str, kernel: SimpleKernel = PLAIN) -> SimpleKernel:
    return replace(kernel, stopping=Stopping.parse(text))


def first_pass_below(store: Store, change: float) -> int:
    return visited(ScheduledBackend(PLAIN), store, change)


@on_each
@pytest.mark.parametrize("test", TESTS)
def test_a_visit_ends_at_the_first_look_that_finds_small_changes(test: str, on: str, store: Store) -> None:
    enough, every = first_pass_below(store, CHANGE), Stopping.parse(test).every
    assert enough % 7 != 0  # so that looks at intervals are late
    expected = -(-enough // every) * every
    assert visited(ScheduledBackend(with_test(test)), store) == expected
    assert visited(SimpleBackend(DEVICES[on](), with_test(test)), store) == expected


@on_each
@pytest.mark.parametrize("threads", [1, 4, 24, 32, 100, 512])
def test_block_maxima_are_right_for_blocks_of_any_size(threads: int, on: str, store: Store) -> None:
    kernel = replace(with_test("blocks:1"), launches=(Launch("sweep", "states", threads, threads),))
    for change in (0.5, 1e-3):
        backend = SimpleBackend(DEVICES[on](), kernel)
        assert visited(backend, store, change) == first_pass_below(store, change)


@pytest.mark.parametrize("test", TESTS)
def test_no_visit_makes_more_passes_than_its_limit(test: str, store: Store) -> None:
    for most in (1, 5, 8):
        assert visited(ScheduledBackend(with_test(test)), store, -1.0, most) == most
        assert visited(SimpleBackend(emulated(), with_test(test)), store, -1.0, most) == most


@pytest.mark.parametrize(("test", "copied"), [("states:1", 266), ("states:9", 266), ("blocks:1", 2), ("blocks:9", 2)])
def test_what_is_copied_is_in_the_plan_of_the_host(test: str, copied: int, store: Store) -> None:
    facts = ModelFacts.of(store.facts, DISCOUNT)
    layout = SimpleBackend(emulated(), with_test(test)).layout(facts, Needs())
    assert layout.host == {"changes": 8 * copied}
    without = SimpleBackend(emulated(), PLAIN).layout(facts, Needs())
    assert without.host == {}
    more = layout.device["changes"] - without.device["changes"]
    assert more == (256 if test.startswith("blocks") else 0)


@pytest.fixture(scope="module")
def solved_car(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, FloatArray]:
    """A car in four partitions, and its values within 1e-9."""
    path = tmp_path_factory.mktemp("car") / "s"
    table = ooc_mdp.generate("mountain-car", path, {"grid": "12,11"}, partitions=4)
    return table, ooc_mdp.solve(table, DISCOUNT, epsilon=1e-9, device="cpu").values


@pytest.mark.parametrize("test", ["states:1", "blocks:3"])
@pytest.mark.parametrize("kernel", SIMPLE_KERNELS, ids=lambda k: k.word)
def test_each_simple_kernel_proves_its_target_with_a_test(
    kernel: SimpleKernel, test: str, solved_car: tuple[Store, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, exact = solved_car
    how: dict[str, Any] = {"epsilon": 1e-4, "kernel": kernel.word, "method": "vi", "sweeps_per_visit": 50}
    here = ooc_mdp.solve(table, DISCOUNT, device="cpu", stopping=test, **how)
    backend = SimpleBackend(emulated(), with_test(test, kernel))
    monkeypatch.setattr(local, "select_backend", lambda *_, **__: backend)
    there = local.solve(table, SolveOptions(DISCOUNT, stopping=Stopping.parse(test), device="cuda:0", **how))
    for solution in (here, there):
        assert solution.outcome.proved
        assert np.abs(solution.values - exact).max() <= solution.error_bound + 1e-9 <= 1e-4 + 1e-9
        assert f"{kernel.word} kernel, stopping {test}" in solution.method


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("text", [*TESTS, "states:01"])
def test_a_test_is_read_and_written(text: str) -> None:
    assert str(Stopping.parse(text)) == text.replace(":0", ":")


@pytest.mark.parametrize(
    "text",
    ["", "states", "states:", "states:0", "blocks:-1", "blocks:1.5", "blocks:x", "rows:3", "blocks:2:2", "states:١"],
)
def test_what_is_no_test_is_refused_with_an_example(text: str, store: Store) -> None:
    with pytest.raises(OptionsError, match=f"--stopping {text} is no test .* states:1 or blocks:16, for example$"):
        ooc_mdp.solve(store, DISCOUNT, kernel="plain", stopping=text)


@pytest.mark.parametrize("kernel", [[], ["--kernel", "tiles"]])
def test_other_kernels_refuse_a_test_and_name_a_remedy(kernel: list[str], tmp_path: Path) -> None:
    ran = ooc("solve", tmp_path / "none", "--discount", "0.9", "--stopping", "blocks:1", *kernel)
    assert ran.status != 0
    assert "--stopping blocks:1 is a test of simple kernels, and --kernel tiles is none" in ran.err
    assert "add --kernel plain" in ran.err
    with pytest.raises(OptionsError, match=r"simple kernels \(plain, .*\); tiles is none"):
        device_kernels("tiles", Stopping("states", 1))


def test_the_command_line_takes_a_test_and_prints_the_bound_on_sweeps(store: Store, tmp_path: Path) -> None:
    asked = (
        "--discount",
        "0.5",
        "--epsilon",
        "0.125",
        "--device",
        "cpu",
        "--kernel",
        "plain",
        "--stopping",
        "blocks:2",
    )
    ran = ooc("solve", store.path, *asked, "--json")
    assert ran.status == 0, ran.err
    assert "plain kernel, stopping blocks:2" in ran.figures["method"]
    # (1 - 0.5) / 8 / (2 * 0.5 * 10) = 1 / 160, and 2^-8 is the first power below.
    assert "sweeps, estimate: I(0.5, 0.125, 10) = 8: 9 sweeps of all states" in ran.err
