"""The tiled engine in tests: stores of every row layout, devices with and without a GPU, bounds beside an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accounting import disturb, settle
from claims import Residuals, residuals
from emulated_cuda import Module, compile_kernels
from emulated_device import EmulatedDevice
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.backends.base import Backend, Resident, SweepLimits, VisitReport
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.memory import header_bytes
from ooc_mdp.backends.layout import Layout, Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.options import CacheSize
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.store import Store

__all__ = [
    "LAYOUTS",
    "MODELS",
    "STORES",
    "TILE_STATES",
    "Engine",
    "LittleRoom",
    "MakeDevice",
    "MakeGroup",
    "Reordered",
    "ShuffledDevice",
    "emulated",
    "layout_of",
    "make",
    "on_group",
    "wander",
]

MakeDevice = Callable[[], Device]
MakeGroup = Callable[..., Sequence[Device]]
"""Makes so many devices of a group, with a seed of the order of emulated ones' work."""

TILE_STATES = 16
"""Small, so that small stores have many tiles; the same everywhere, so that few kernels are compiled."""

GENERATED: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "car": ("mountain-car", {"grid": "17,14"}, {"partition_grid": [2, 3], "dtype": "float32"}),
    "pendulum": ("single-pendulum", {"grid": "15"}, {"partition_grid": [2, 2], "dtype": "float32"}),
    "double pendulum": ("double-pendulum", {"grid": "5"}, {"partition_grid": [2, 1, 2, 2], "dtype": "float32"}),
    "gridworld": ("gridworld", {"height": "9", "width": "11", "seed": "1"}, {"partition_grid": [2, 2]}),
    "random": ("random", {"states": "150", "seed": "1"}, {"partitions": 5, "dtype": "float32"}),
}
MODELS: dict[str, Case] = {
    "ragged": Case(random_model(1, 90, terminal=0.3, durations=True), "min", "float32", 6),
    "ragged without durations": Case(random_model(2, 90, terminal=0.1, initial_values=True), "max", "float64", 4),
    "uniform with durations": Case(random_model(3, 80, uniform=True, durations=True), "min", "float64", 4),
    "a state a partition": Case(random_model(4, 12, uniform=True), "max", "float64", 12),
}
STORES = [*GENERATED, *MODELS]
LAYOUTS = {"car": (True, False), "double pendulum": (True, False), "random": (False, False), "ragged": (False, True)}
"""Whether tiles iterate in shared memory, and whether rows stay as the table has them."""


def make(name: str, path: Path) -> Store:
    if name in MODELS:
        return make_store(MODELS[name], path)
    problem, parameters, options = GENERATED[name]
    return ooc_mdp.generate(problem, path, parameters, **options)


def emulated() -> EmulatedDevice:
    return EmulatedDevice(1 << 26)


class _Shuffled:
    """A kernel whose every launch runs blocks and threads in another order."""

    def __init__(self, kernel: Any, module: Module, name: str, seed: int) -> None:
        self._kernel, self._module, self._name = kernel, module, name
        self._seeds = iter(range(1000 * seed, 1 << 62))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, stream: object, grid: int, block: int, args: Sequence[np.generic], shared: int = 0) -> None:
        self._module.launch(self._name, grid, block, list(args), shared=shared, seed=next(self._seeds))


class ShuffledDevice(EmulatedDevice):
    """Runs blocks and threads in orders that depend on a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(1 << 26)
        self._seed = seed

    def compile(
        self, source: str, defines: Mapping[str, str | int], names: Sequence[str], *, fused: bool = True
    ) -> dict[str, Any]:
        module = compile_kernels(source, names, defines)
        kernels = super().compile(source, defines, names, fused=fused)
        return {name: _Shuffled(kernel, module, name, self._seed) for name, kernel in kernels.items()}


def layout_of(backend: Backend, model: ModelFacts, slots: int) -> Layout:
    """With a cache of so many slots, or of the whole table, however large slots become."""
    whole = backend.layout(model, Needs())
    if slots == model.n_partitions:
        return whole
    return backend.layout(model, Needs(CacheSize(size=slots * whole.largest_entry)))


class LittleRoom(TiledBackend):
    """Has no room for most boundary states' values."""

    def layout(self, model: ModelFacts, needs: Needs) -> Layout:
        layout = super().layout(model, needs)
        slots = replace(layout.detail.slots, boundary_room=1)
        return replace(layout, detail=replace(layout.detail, slots=slots))


class Reordered(TiledBackend):
    """Numbers states and tiles as a group of two or three devices does."""

    def division(self, model: ModelFacts) -> Division:
        several = Division.cyclic(model, 2 if model.n_partitions < 5 else 3)
        return replace(several, owner=np.zeros_like(several.owner), devices=1)


def on_group(devices: Sequence[Device]) -> Callable[[Device, int], TiledBackend]:
    """Makes the backend of a group of devices; for the first of them."""
    return lambda first, tile_states: TiledBackend(first, tile_states, devices[1:])


class Engine:
    """The backend with a store's partitions, and bounds beside it as a solve keeps them."""

    def __init__(
        self,
        store: Table,
        discount: float,
        device: Device,
        *,
        slots: int | None = None,
        tile_states: int = TILE_STATES,
        backend: Callable[[Device, int], TiledBackend] = TiledBackend,
    ) -> None:
        self.store, self.discount = store, discount
        self.model = ModelFacts.of(store.facts, discount)
        self.contraction = self.model.contraction
        self.sign = self.model.sign
        rewards = store.facts.reward_range if self.sign > 0 else -store.facts.reward_range[:, ::-1]
        self.bounds = ResidualBounds(store.facts.coupling, self.contraction, rewards, store.facts.max_successors)
        self.tables = [store.read(p)[0] for p in range(store.n_partitions)]
        initial = None
        if "initial_values" in store.facts.dtypes:
            initial = self.sign * np.concatenate([t.initial_values for t in self.tables])
        else:
            self.bounds.at_zero_values(rewards)
        self.backend = backend(device, tile_states)
        self.slots = slots or store.n_partitions
        self.layout = layout_of(self.backend, self.model, self.slots)
        self.backend.start(self.model, self.layout, initial, None, store.loader(self.backend.name))
        self.residents: dict[int, Resident] = {}
        self.visited: set[int] = set()
        self.size = 0.0 if initial is None else float(np.abs(initial).max())

    def inputs(self, p: int) -> list[set[int] | None]:
        """Numbers of the tiles that each tile of a resident partition lists as those it reads; None for every tile."""
        lists, sizes = self._lists(p, "inputs", self.backend._tiling.max_inputs), self._headers(p)[:, 7].tolist()
        return [None if n == 0xFFFFFFFF else set(row[:n]) for n, row in zip(sizes, lists.tolist(), strict=True)]

    def halos(self, p: int) -> list[list[int]]:
        """The halo of each tile of a resident partition, as it lists it."""
        lists, sizes = self._lists(p, "halo", self.backend._layout.halo), self._headers(p)[:, 6].tolist()
        return [row[:n] for n, row in zip(sizes, lists.tolist(), strict=True)]

    def _headers(self, p: int) -> npt.NDArray[np.uint32]:
        tiling, memory = self.backend._tiling, self.backend._memory
        size = header_bytes(len(tiling.shape))
        headers = np.empty((int(tiling.per_partition[p]), size // 4), np.uint32)
        first = int(memory.descriptors["tile"][p])
        self.backend._stream.download(headers, memory.at["headers"] + size * first)
        self.backend._stream.wait()
        return headers

    def _lists(self, p: int, part: str, room: int) -> npt.NDArray[np.uint32]:
        """A list of each tile's record."""
        layout = self.backend._layout
        (slot,) = self.residents[p].arrays
        records = np.empty((int(self.backend._tiling.per_partition[p]), layout.record_bytes), np.uint8)
        self.backend._stream.download(records, slot + layout.offsets["tiles"])
        self.backend._stream.wait()
        begin = layout.record[part]
        return records[:, begin : begin + 4 * room].copy().view(np.uint32)

    def own(self, p: int) -> slice:
        return slice(int(self.store.facts.partition_ptr[p]), int(self.store.facts.partition_ptr[p + 1]))

    def load(self, *partitions: int) -> None:
        for p in partitions:
            self.residents[p] = self.backend.admit(self.backend.fetch(p)[0])

    def evict(self, p: int) -> None:
        self.backend.release(self.residents.pop(p))

    def sweep_together(self, partitions: Sequence[int], limits: SweepLimits) -> VisitReport:
        begun = self.backend.relax([self.residents[p] for p in partitions], limits)
        return self._account(partitions, begun.report())

    def sweep_in_turn(self, batches: Sequence[Sequence[int]], limits: SweepLimits) -> None:
        """Batches of which each begins before the one before it has been reported."""
        begun = [self.backend.relax([self.residents[p] for p in batch], limits) for batch in batches]
        for batch, visit in zip(batches, begun, strict=True):
            self._account(batch, visit.report())

    def sweep(self, p: int, limits: SweepLimits) -> VisitReport:
        return self._account([p], self.backend.sweep([self.residents[p]], limits).report())

    def write(self, *written: tuple[int, IntArray, FloatArray]) -> None:
        """Other values of states of partitions come from outside, who says how much they rose and fell at most."""
        before = self.backend.values()
        partitions, states, values = ([each[i] for each in written] for i in range(3))
        ptr = np.cumsum([0, *(s.size for s in states)])
        self.backend.write(np.concatenate(states), np.concatenate(values), np.array(partitions), ptr)
        for p, own, new in written:
            change = new - before[own]
            disturb(self.bounds, p, max(change.max(initial=0.0), 0.0), max(-change.min(initial=0.0), 0.0))
            settle(self.bounds, p, np.inf, np.inf, np.inf, np.inf)
            self.size = max(self.size, float(np.abs(new).max(initial=0.0)))

    def measure(self, p: int, significant: float) -> tuple[Residuals, float]:
        found, value = self.backend.measure(self.residents[p], significant)
        settle(self.bounds, p, *found)
        self.visited.add(p)
        return Residuals(*found.tolist()), value

    def _account(self, partitions: Sequence[int], report: VisitReport) -> VisitReport:
        p = np.array(partitions)
        assert report.joint
        assert report.residuals is not None
        self.bounds.propagate(p, report.boundary_rise, report.boundary_fall)
        self.bounds.settle(p, report.residuals)
        self.visited |= set(partitions)
        self.size = max(self.size, float(np.abs([report.largest_value, report.smallest_value]).max()))
        return report

    def true(self, *partitions: int) -> list[Residuals]:
        """Residuals of partitions at the device's values, by NumPy."""
        values, policy = self.backend.values(), self.backend.policy()
        for p in partitions:
            if p not in self.visited:
                policy[self.own(p)] = -1
        sums = self.store.facts.row_sum_range[:, 1].tolist()
        return [residuals(self.tables[p], values, policy, self.sign, self.discount, sums[p]) for p in partitions]

    def assert_that_the_bounds_are_true(self) -> None:
        slack = [self.bounds.rounding(self.size)] * 2 + [self.bounds.rounding(self.size, plain=True)] * 2
        for p, found in enumerate(self.true(*range(self.store.n_partitions))):
            for true, bound, rounding in zip(found, self.bounds.of(p).tolist(), slack, strict=True):
                assert true <= bound + 1e-9 * abs(bound) + 2 * rounding, (p, true, bound)


def wander(engine: Engine, seed: int, steps: int) -> None:
    """Loads, evictions, batches of some residents, visits and measurements in any order; bounds hold after each."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        here = list(engine.residents)
        absent = [p for p in range(engine.store.n_partitions) if p not in engine.residents]
        what = rng.choice(["load", "load", "evict", "together", "together", "together", "alone", "measure"])
        limits = SweepLimits(0.0, int(rng.integers(1, 6)), float(rng.choice([0.0, 1e-3, 0.1])), bool(rng.integers(2)))
        if what == "load" and absent and len(here) < engine.slots:
            engine.load(int(rng.choice(absent)))
        elif what == "evict" and here:
            engine.evict(int(rng.choice(here)))
        elif what == "together" and here:
            some = rng.choice(here, int(rng.integers(1, len(here) + 1)), replace=False)
            before = engine.backend.values()
            report = engine.sweep_together(some.tolist(), limits)
            after = engine.backend.values()
            for i, p in enumerate(some.tolist()):
                own = after[engine.own(p)]
                wider = 2.0**-19 * np.abs(own).max()
                assert own.max() <= report.largest_value[i] <= own.max() + wider
                assert own.min() - wider <= report.smallest_value[i] <= own.min()
                boundary = engine.tables[p].boundary
                change = (own - before[engine.own(p)])[boundary]
                if isinstance(engine.backend, LittleRoom):
                    assert report.boundary_rise[i] >= change.max(initial=0.0)
                    assert report.boundary_fall[i] >= -change.min(initial=0.0)
                    assert not change.any() or report.boundary_value[i] >= own[boundary][change != 0].max()
                else:
                    assert report.boundary_rise[i] == change.max(initial=0.0)
                    assert report.boundary_fall[i] == -change.min(initial=0.0)
                    assert report.boundary_value[i] == own[boundary][change != 0].max(initial=-np.inf)
        elif what == "alone" and here:
            engine.sweep(int(rng.choice(here)), limits)
        elif what == "measure" and here:
            engine.measure(int(rng.choice(here)), 0.0)
        else:
            continue
        engine.assert_that_the_bounds_are_true()
