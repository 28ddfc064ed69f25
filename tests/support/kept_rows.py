"""A device backend that keeps a policy's rows at random values, and what must hold of rows and evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from plain_rows import Plain, assert_that_a_sweep_is_true
from tiled_engine import TILE_STATES

from ooc_mdp.backends.base import Evaluation, Improvement, Resident
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.policy.evaluation import DeviceEvaluation, EvaluationOptions
from ooc_mdp.backends.cuda.policy.layout import reward_dtype, varies
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.store import Store

DISCOUNT = 0.95
SWEEPING = EvaluationOptions(mix_from=math.inf)
MIXING = EvaluationOptions(mix_from=0, patience=math.inf)
SOLVING = EvaluationOptions(mix_from=0, patience=0)
WAYS = pytest.mark.parametrize("options", [SWEEPING, MIXING, SOLVING], ids=["sweeps", "mixing", "solver"])


class Kept:
    """A backend at random values, with all partitions resident; `others`: further devices of its group."""

    def __init__(
        self,
        store: Store,
        device: Device,
        *,
        seed: int = 0,
        discount: float = DISCOUNT,
        policy: Sequence[int] | None = None,
        options: EvaluationOptions = SWEEPING,
        others: Sequence[Device] = (),
    ) -> None:
        self.store, self.discount = store, discount
        self.model: ModelFacts = ModelFacts.of(store.facts, discount)
        self.plain = Plain.of(store, discount)
        self.values = 10 * np.random.default_rng(seed).normal(size=store.n_states)
        self.backend = TiledBackend(device, TILE_STATES, others)
        chosen = None if policy is None else np.array(policy, np.int32)
        self.layout = self.backend.layout(self.model, Needs())
        self.backend.start(self.model, self.layout, self.values, chosen, store.loader(self.backend.name))
        self.residents: list[Resident] = [
            self.backend.admit(self.backend.fetch(p)[0]) for p in range(store.n_partitions)
        ]
        self.backend.open_rows(store.facts.coupling)
        assert self.backend._rows is not None
        self.backend._rows.options = options

    def improve(self, partitions: Sequence[int], margin: float = 0.0) -> Improvement:
        """Partitions swept and improved; `values` are those that this leaves."""
        residents, before = [self.residents[p] for p in partitions], self.backend.values()
        swept = self.backend.back_up(residents)
        self.values = self.backend.values()
        assert_that_a_sweep_is_true(self.plain, swept, before, self.values, [self.states(p) for p in partitions])
        found = self.backend.improve(residents, margin)
        assert (self.backend.values() == self.values).all()
        return found

    def states(self, p: int) -> slice:
        return slice(int(self.store.facts.partition_ptr[p]), int(self.store.facts.partition_ptr[p + 1]))

    def of_states(self, name: str, dtype: npt.DTypeLike) -> FloatArray:
        """What rows have once a state, in store order."""
        found, placed = np.empty(self.store.n_states), self._array(name, self.store.n_states, dtype)
        for stored, place, count in self.backend._division.pieces(0, found.size):
            found[stored : stored + count] = placed[place : place + count]
        return found

    def _array(self, name: str, size: int, dtype: npt.DTypeLike, start: int = 0) -> npt.NDArray[Any]:
        rows = self.backend._rows
        assert rows is not None
        host = np.empty(size, dtype)
        at = rows.at[name] + start * host.itemsize
        if rows.on_device:
            for piece in rows._group.pieces(at, host.nbytes):
                part = host.view(np.uint8)[piece.at - at :][: piece.nbytes]
                rows._streams[piece.member].download(part, piece.at)
            rows.launches.wait()
            return host
        for pinned in rows._pinned:
            begin = at - pinned.ctypes.data
            if 0 <= begin < pinned.size:
                return pinned[begin : begin + host.nbytes].view(dtype).copy()
        raise AssertionError(f"{name} is not in the host's memory")

    def backup(self, values: FloatArray) -> FloatArray:
        """float64 [n]: r + g P V by the rows that are kept."""
        rows = self.backend._rows
        assert rows is not None
        reward = self.of_states("rewards", reward_dtype(self.model))
        own = varies(self.model)
        g = self.of_states("discounts", "f8") if own else np.full(values.size, self.discount)
        expected, placed = np.zeros(values.size), np.empty(values.size)
        for stored, place, count in self.backend._division.pieces(0, values.size):
            placed[place : place + count] = values[stored : stored + count]
        for p, place in enumerate(rows._descriptors):
            own, size = self.states(p), int(place["width"]) * int(place["pitch"])
            n = own.stop - own.start
            planes = [
                self._array(name, size, dtype, int(place["entries"])).reshape(-1, int(place["pitch"]))[:, :n]
                for name, dtype in (("successors", "u4"), ("probabilities", self.model.probability_dtype))
            ]
            expected[own] = (planes[1].astype(float) * placed[planes[0]]).sum(axis=0)
        return reward + g * expected


def solved(work: DeviceEvaluation) -> bool:
    """Whether its solver, let run, made values any better."""
    steps = work._solve()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def assert_that_rows_are_the_policy_s(kept: Kept, scale: float = 1.0) -> None:
    """At the values where it was improved, and at others."""
    values, policy = kept.backend.values(), kept.backend.policy()
    assert kept.of_states("second_best", "f8") == pytest.approx(
        kept.plain.best_other(values, policy), rel=1e-12, abs=1e-12 * scale
    )
    for at in (values, np.random.default_rng(1).normal(size=values.size)):
        assert kept.backup(at) == pytest.approx(kept.plain.backup(at, policy), rel=1e-12, abs=1e-12 * scale)


def assert_that_an_evaluation_is_true(
    kept: Kept, found: Evaluation, before: FloatArray, others: FloatArray, partitions: Sequence[int]
) -> None:
    """All fields, at the values that resulted."""
    values, policy = kept.backend.values(), kept.backend.policy()
    residual = kept.plain.backup(values, policy) - values
    g = np.zeros(values.size)
    rows = kept.plain.chosen(policy)
    g[kept.plain.state[rows]] = kept.plain.discount[rows]
    close = {"rel": 1e-6, "abs": 1e-12 * np.abs(values).max()}
    for p in partitions:
        own = kept.states(p)
        assert found.rise[p] == (values - before)[own].max()
        assert found.fall[p] == -(values - before)[own].min()
        normalised = residual[own] / (1 - g[own] * kept.model.row_sums[p])
        expected = (normalised.max(), -normalised.min(), residual[own].max(), -residual[own].min())
        assert found.measured[:, p] == pytest.approx(expected, **close)
        assert found.second_best[p] == (others - values)[own].max()
        assert (found.largest_value[p], found.smallest_value[p]) == (values[own].max(), values[own].min())
