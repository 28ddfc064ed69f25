"""Kernels with a thread for each transition: rows of very different lengths, few blocks, and orders of addition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import Action, Model, State
from tiled_engine import ShuffledDevice, emulated

from ooc_mdp.backends.base import Loops, SweepLimits
from ooc_mdp.backends.cpu.scheduled import ScheduledBackend
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import TRANSITION_ATOMICS, TRANSITION_SEGMENTS, SimpleKernel
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.store import Store

LENGTHS = {
    "long rows first": [200, 97, 64, 33, 32, 31, *[1] * 250, 2, 2],
    "long rows last": [*[1] * 250, 2, 31, 32, 33, 64, 65, 128, 200],
    "long rows throughout": [1, 150, 2, 40, 1, 1, 90, 3] * 12,
}
"""Successors of each row: far from where rows of one length would lie, some in up to 7 warps."""


def model(lengths: list[int]) -> Model:
    """A state without actions, and others of 1, 2, 3, 1, ... rows."""
    rng, n, states = np.random.default_rng(7), 250, [State(())]
    left = list(lengths)
    while left:
        taken, left = left[: len(states) % 3 + 1], left[len(states) % 3 + 1 :]
        actions = []
        for length in taken:
            weights = rng.random(length)
            chosen = rng.choice(n, length, replace=False).tolist()
            actions.append(
                Action(float(rng.normal()), dict(zip(chosen, (weights / weights.sum()).tolist(), strict=True)))
            )
        states.append(State(tuple(actions)))
    states += [State(())] * (n - len(states))
    return Model(tuple(states))


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """Stores by name of their lengths."""
    made: dict[str, Store] = {}

    def get(name: str) -> Store:
        if name not in made:
            made[name] = make_store(Case(model(LENGTHS[name])), tmp_path_factory.mktemp("stores") / "s")
        return made[name]

    return get


def in_few_blocks(kernel: SimpleKernel, store: Store, blocks: int, threads: int) -> SimpleKernel:
    """The kernel with so many blocks a launch, whose threads take several rows, transitions or states each."""
    table = store.read(0)[0]
    counts = {"states": table.n_states, "rows": table.n_rows, "transitions": table.successors.size}
    shared_out = [
        launch._replace(each=-(-counts[launch.over] // blocks), threads=threads) for launch in kernel.launches
    ]
    return replace(kernel, launches=tuple(shared_out))


def passes(backend: SimpleBackend | ScheduledBackend, store: Store, count: int) -> FloatArray:
    """The values after some passes."""
    facts = ModelFacts.of(store.facts, 0.9)
    backend.load_code(facts, Loops.BATCHES)
    backend.start(facts, backend.layout(facts, Needs()), np.random.default_rng(5).normal(size=store.n_states), None)
    backend.sweep([backend.admit(backend.prepare(store.read(0)[0]))], SweepLimits(-1.0, count)).report()
    values = backend.values() if isinstance(backend, SimpleBackend) else backend._values.copy()
    backend.close()
    return values


DEVICES: dict[str, Callable[[], Device]] = {
    "in order": emulated,
    "shuffled": lambda: ShuffledDevice(3),
    "cuda": lambda: CudaDevice(0),
}
on_each = pytest.mark.parametrize("on", [pytest.param(n, marks=[pytest.mark.gpu] * (n == "cuda")) for n in DEVICES])
over_both = pytest.mark.parametrize("kernel", [TRANSITION_ATOMICS, TRANSITION_SEGMENTS], ids=lambda k: k.word)


@on_each
@pytest.mark.parametrize("name", LENGTHS)
@over_both
def test_rows_of_any_length_are_found_and_added_up(
    kernel: SimpleKernel, name: str, on: str, skewed: Callable[[str], Store]
) -> None:
    expected = passes(ScheduledBackend(kernel), skewed(name), 3)
    found = passes(SimpleBackend(DEVICES[on](), kernel), skewed(name), 3)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@on_each
@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (2, 96), (3, 256)])
@over_both
def test_few_blocks_give_the_values_of_many(
    kernel: SimpleKernel, blocks: int, threads: int, on: str, skewed: Callable[[str], Store]
) -> None:
    store = skewed("long rows throughout")
    few = passes(SimpleBackend(DEVICES[on](), in_few_blocks(kernel, store, blocks, threads)), store, 3)
    np.testing.assert_allclose(few, passes(ScheduledBackend(kernel), store, 3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("on", [pytest.param("cuda", marks=pytest.mark.gpu), "shuffled"])
def test_sums_of_segments_repeat_bit_for_bit_in_any_order_of_threads_and_blocks(
    on: str, skewed: Callable[[str], Store]
) -> None:
    store = skewed("long rows throughout")
    once = passes(SimpleBackend(DEVICES[on](), TRANSITION_SEGMENTS), store, 4)
    for blocks, threads in ((2, 64), (5, 128)):
        again = passes(
            SimpleBackend(DEVICES[on](), in_few_blocks(TRANSITION_SEGMENTS, store, blocks, threads)), store, 4
        )
        np.testing.assert_array_equal(again, once)


def test_the_workspace_of_carries_holds_one_a_warp(skewed: Callable[[str], Store]) -> None:
    for name in LENGTHS:
        store, table = skewed(name), skewed(name).read(0)[0]
        needed = 8 * (table.n_rows + -(-table.successors.size // 32))
        assert TRANSITION_SEGMENTS.workspace(ModelFacts.of(store.facts, 0.9)) >= needed
