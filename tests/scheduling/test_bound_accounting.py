"""After any sequence of events, every bound is at least the true residual, which is computed in rational arithmetic.

A small model in partitions is solved in NumPy: partitions are swept alone, in turn or together, policies are improved
and evaluated, all values are shifted, and values of other solvers arrive late. After each event the solve's state
receives what a backend would report of it. Each of the four bounds of a partition, plus the rounding that a solve adds
to it, must then be at least the partition's residual at the present values, and no larger than what was just measured.
Only `solve_accounting.Accounting` knows how the bounds are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from bound_faults import FAULTS
from exact_residuals import World, rise_and_fall
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from small_mdps import models
from solve_accounting import SOUND, Accounting, Kept
from store_models import Model

from ooc_mdp.model.mdp import FloatArray, IntArray

KINDS = ("rise", "fall", "plain rise", "plain fall")
KNOWN = 16 * 2.0**-53
"""Roundings of 1 - g rho, as `ResidualBounds.apply_shift` takes them."""


class Replay:
    """A world, its accounting, and the events that change both."""

    def __init__(self, world: World, accounting: Accounting, owned: np.ndarray) -> None:
        self.world, self.accounting = world, accounting
        self.ours, self.remote = np.flatnonzero(owned), np.flatnonzero(~owned)

    def sweep(self, p: int, rng: np.random.Generator, sweeps: int) -> tuple[FloatArray, FloatArray]:
        """Full sweeps, each in an order of its own; values before them and before the last one."""
        before = self.world.values.copy()
        last = before
        for _ in range(sweeps):
            last = self.world.values.copy()
            for s in rng.permutation(self.world.own(p)).tolist():
                self.world.back_up(s)
        return before, last

    def some(self, rng: np.random.Generator) -> list[int]:
        """Some of our partitions, in any order."""
        return rng.permutation(self.ours)[: int(rng.integers(1, self.ours.size + 1))].tolist()

    def jump(self, states: IntArray, rng: np.random.Generator) -> None:
        """Other values, of any size, for some of the states; often all move alike, as far as the bounds allow for."""
        changed = states[rng.random(states.size) < 0.7]
        alike = np.full(changed.size, rng.choice([-1.0, 1.0]))
        step = alike if rng.random() < 0.7 else rng.normal(size=changed.size)
        self.world.values[changed] += rng.choice([1e-3, 1.0, 1e3]) * step

    def visit(self, rng: np.random.Generator, sweeps: int, measure: bool = False) -> int:
        p = int(rng.choice(self.ours))
        found = self.world.swept(p, sweeps, *self.sweep(p, rng, sweeps), measure)
        self.accounting.visit([p], [found])
        if found.residuals is not None:
            self.assert_tight([p], found.residuals[:, None])
        return p

    def measured_visit(self, rng: np.random.Generator, sweeps: int) -> None:
        self.visit(rng, sweeps, measure=True)

    def visit_with_exact_priorities(self, rng: np.random.Generator, sweeps: int) -> None:
        """One partition is swept, and each that reads it is measured."""
        for p in set(self.accounting.dependents(self.visit(rng, sweeps))) & set(self.ours.tolist()):
            self.measure_one(p)

    def visits_in_turn(self, rng: np.random.Generator, sweeps: int) -> None:
        """One report of all; some were measured, before the next one was swept."""
        chosen = self.some(rng)
        found = [self.world.swept(p, sweeps, *self.sweep(p, rng, sweeps), bool(rng.integers(2))) for p in chosen]
        self.accounting.visit(chosen, found)

    def joint_visit(self, rng: np.random.Generator, sweeps: int) -> None:
        """Single backups in any order, and jumps, as of extrapolation; then all are improved and measured."""
        chosen, before = self.some(rng), self.world.values.copy()
        states = np.concatenate([self.world.own(p) for p in chosen])
        for s in rng.permutation(np.tile(states, sweeps)).tolist():
            self.world.back_up(s)
        if rng.random() < 0.5:
            self.jump(states, rng)
        self.world.improve(chosen, everything=bool(rng.integers(2)))
        found = [self.world.swept(p, sweeps, before, before, measure=True) for p in chosen]
        self.accounting.joint_visit(chosen, found)
        self.assert_tight(chosen, np.transpose([f.residuals for f in found]))

    def measure(self, rng: np.random.Generator, sweeps: int) -> None:
        self.measure_one(int(rng.choice(self.ours)))

    def measure_one(self, p: int) -> None:
        self.world.improve([p], everything=False)
        self.accounting.measure(p, self.world.residuals(p))
        self.assert_tight([p], self.world.residuals(p)[:, None])

    def improve(self, rng: np.random.Generator, sweeps: int) -> list[int]:
        """Each state's backup from the values before, and the greedy policy at the values that result."""
        world, chosen = self.world, self.some(rng)
        states, before = np.concatenate([world.own(p) for p in chosen]), world.values.copy()
        world.values[states] = [world.backup(s)[0] for s in states.tolist()]
        world.improve(chosen)
        residuals = np.transpose([world.residuals(p) for p in chosen])
        ends = self.changes(before)[:, chosen]
        self.accounting.improve(chosen, ends, residuals, world.largest()[chosen], world.smallest()[chosen])
        self.assert_tight(chosen, residuals)
        return chosen

    def changes(self, before: FloatArray) -> FloatArray:
        """float64 [2, P]; largest and smallest change of each partition's values since."""
        change, starts = self.world.values - before, self.world.ptr[:-1]
        return np.stack([np.maximum.reduceat(change, starts), np.minimum.reduceat(change, starts)])

    def evaluate(self, rng: np.random.Generator, sweeps: int) -> None:
        """Whatever an evaluation makes of the values of some partitions, which have just been improved."""
        world, chosen = self.world, self.improve(rng, sweeps)
        before = world.values.copy()
        self.jump(np.concatenate([world.own(p) for p in chosen]), rng)
        changes, evaluated = self.changes(before), np.isin(np.arange(world.partitions), chosen)
        residuals = np.transpose([world.residuals(p) for p in range(world.partitions)])
        self.accounting.evaluate(evaluated, changes, residuals, world.largest(), world.smallest())
        self.assert_tight(chosen, residuals[:, chosen])

    def sweep_synchronously(self, rng: np.random.Generator, sweeps: int) -> None:
        if self.remote.size:
            return
        world = self.world
        world.improve(range(world.partitions))
        residuals = np.transpose([world.residuals(p) for p in range(world.partitions)])
        before, world.values = world.values, np.array([world.backup(s)[0] for s in range(world.n)])
        ends = [rise_and_fall((world.values - before)[world.own(p)]) for p in range(world.partitions)]
        self.accounting.sweep_synchronously(residuals, *np.transpose(ends), world.largest(), world.smallest())

    def shift(self, rng: np.random.Generator, sweeps: int) -> None:
        if not self.remote.size:
            by = float(rng.normal() * 10.0 ** rng.uniform(-6, 4))
            self.world.values += by
            self.accounting.shift(by)

    def centre(self, rng: np.random.Generator, sweeps: int) -> None:
        if not self.remote.size:
            self.world.values += self.accounting.centre()

    def apply_remote(self, rng: np.random.Generator, sweeps: int) -> None:
        """Values of peers' boundary states arrive in some messages, each of which moves them on in the same way."""
        world, seed = self.world, int(rng.integers(2**16))
        for _ in range(sweeps if self.remote.size else 0):
            same = np.random.default_rng(seed)
            chosen = same.permutation(self.remote)[: int(same.integers(1, self.remote.size + 1))]
            before = world.values.copy()
            for p in chosen.tolist():
                self.jump(world.own(p)[world.boundary[world.own(p)]], same)
            rise, fall = np.transpose([rise_and_fall((world.values - before)[world.own(p)]) for p in chosen.tolist()])
            self.accounting.apply_remote(chosen, rise, fall, world.largest()[chosen], world.smallest()[chosen])

    def assert_tight(self, partitions: Sequence[int], measured: FloatArray) -> None:
        """Bounds of partitions are what was measured of them (float64 [4, k]) at the present values, or less."""
        known = measured + 1e-11 * abs(measured)
        assert (self.accounting.upper()[:, partitions] <= known).all(), "the bounds are loose"

    def check(self) -> None:
        """Every bound of ours is at least the true residual.

        A bound below 0 proves nothing but that a shift helps, and is known as well as 1 - g rho is in float64.
        """
        upper, rounding = self.accounting.upper(), self.accounting.rounding().tolist()
        values = [Fraction(v) for v in self.world.values.tolist()]
        for p in self.ours.tolist():
            true = self.world.true_residuals(p, values)
            for kind, exact, bound, slack in zip(KINDS, true, upper[:, p].tolist(), rounding, strict=True):
                if bound != np.inf:
                    known = KNOWN * self.world.normaliser[p] * max(-bound, 0.0)
                    assert exact <= sum(map(Fraction, (bound, slack, known))), (kind, p, float(exact), bound)


EVENTS: dict[str, Callable[[Replay, np.random.Generator, int], object]] = {
    "visit": Replay.visit,
    "measured visit": Replay.measured_visit,
    "visit with exact priorities": Replay.visit_with_exact_priorities,
    "visits in turn": Replay.visits_in_turn,
    "joint visit": Replay.joint_visit,
    "measure": Replay.measure,
    "improve": Replay.improve,
    "evaluate": Replay.evaluate,
    "sweep synchronously": Replay.sweep_synchronously,
    "shift": Replay.shift,
    "centre": Replay.centre,
    "apply remote": Replay.apply_remote,
}


@dataclass(frozen=True)
class Scenario:
    model: Model
    ends: tuple[int, ...]
    remote: frozenset[int]
    discount: float
    priority: str
    events: tuple[tuple[str, int, int], ...]
    """Name, sweeps, seed."""


@st.composite
def scenarios(draw: st.DrawFn, events: Sequence[str] = ()) -> Scenario:
    """Of these events; or else of any, or of a few, so that some recur."""
    model = draw(models(max_states=10))
    n = len(model.states)
    cuts = draw(st.sets(st.integers(1, n - 1), max_size=4)) if n > 1 else set()
    partitions = len(cuts) + 1
    remote = set[int]()
    if partitions > 2 and ("apply remote" in events or (not events and draw(st.booleans()))):
        remote = draw(st.sets(st.integers(0, partitions - 1), min_size=1, max_size=2))
    few = st.lists(st.sampled_from(list(EVENTS)), min_size=1, max_size=4, unique=True)
    kinds = list(events or EVENTS)
    if not events and draw(st.booleans()):
        kinds = draw(few) + ["apply remote"] * bool(remote)
    event = st.tuples(st.sampled_from(kinds), st.integers(1, 3), st.integers(0, 2**16))
    return Scenario(
        model,
        (*sorted(cuts), n),
        frozenset(remote),
        draw(st.sampled_from([0.0, 0.5, 0.9, 0.9999])),
        draw(st.sampled_from(["joint", "h1", "h2", "hybrid"])),
        tuple(draw(st.lists(event, min_size=3, max_size=16))),
    )


def replay(scenario: Scenario, kept: Kept = SOUND) -> None:
    """Apply all events in order, and check the bounds after each event."""
    world = World(scenario.model, scenario.ends, scenario.discount)
    owned = np.array([p not in scenario.remote for p in range(world.partitions)])
    replayed = Replay(world, Accounting(world.facts, scenario.priority, owned, world.values, kept), owned)
    for name, sweeps, seed in scenario.events:
        EVENTS[name](replayed, np.random.default_rng(seed), sweeps)
        replayed.check()


EXAMPLES = 250
MANY = 2500
FIXED = settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(MANY, marks=pytest.mark.slow)])
def test_every_bound_is_at_least_the_true_residual_after_every_event(examples: int) -> None:
    @settings(FIXED, max_examples=examples, phases=[Phase.generate, Phase.shrink])
    @given(scenario=scenarios())
    def check_all(scenario: Scenario) -> None:
        replay(scenario)

    check_all()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_bookkeeping_is_found(name: str) -> None:
    kept = FAULTS[name]

    @settings(FIXED, max_examples=2 * EXAMPLES)
    @given(scenario=scenarios(kept.events))
    def with_fault(scenario: Scenario) -> None:
        replay(scenario, kept)

    with pytest.raises(AssertionError, match="bounds are loose" if kept.loose else r"^\('(plain )?(rise|fall)'"):
        with_fault()
