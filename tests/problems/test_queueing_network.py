"""The queueing network's rows, against the network written out event by event, and its mean cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp import AverageReward
from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.queueing_network import QueueingNetwork, QueueingNetworkOptions


def written_out(o: QueueingNetworkOptions, state: tuple[int, ...], action: int) -> tuple[float, dict[int, float]]:
    """The cost of a row, and its probabilities by state."""
    route, fast = divmod(action, 2)
    total = o.arrival + o.service_1 + o.service_2 + o.fast
    full = state[route] == o.capacity
    events: list[tuple[float, tuple[int, ...]]] = []
    if not full:
        events.append((o.arrival, tuple(x + (i == route) for i, x in enumerate(state))))
    for station, rate in ((0, o.service_1), (1, o.service_2)):
        if state[station] > 0 and state[2] < o.capacity:
            moved = list(state)
            moved[station] -= 1
            moved[2] += 1
            events.append((rate, tuple(moved)))
    if state[2] > 0:
        events.append((o.fast if fast else o.slow, (*state[:2], state[2] - 1)))
    row = {number(o, state): 1 - sum(rate for rate, _ in events) / total}
    for rate, to in events:
        row[number(o, to)] = rate / total
    holding = o.holding_1 * state[0] + o.holding_2 * state[1] + o.holding_3 * state[2]
    return holding + fast * o.speed_cost + full * o.arrival * o.loss, row


def number(o: QueueingNetworkOptions, state: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index(state, (o.capacity + 1,) * 3))


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_rows_are_those_of_the_network(capacity: int) -> None:
    o = QueueingNetworkOptions(capacity=capacity, arrival=0.8, service_1=0.3, slow=0.4, fast=0.9)
    problem = QueueingNetwork(o)
    rows = problem.rows(np.arange(problem.n_states))
    assert np.diff(rows.action_ptr).tolist() == [4] * problem.n_states
    for s in range(problem.n_states):
        state = tuple(int(x) for x in np.unravel_index(s, (capacity + 1,) * 3))
        for action in range(4):
            j = 4 * s + action
            span = slice(rows.successor_ptr[j], rows.successor_ptr[j + 1])
            cost, row = written_out(o, state, action)
            assert rows.rewards[j] == pytest.approx(cost)
            assert rows.successors[span].tolist() == sorted(row)
            assert rows.probabilities[span] == pytest.approx([row[t] for t in sorted(row)], abs=1e-15)


def test_rows_come_in_the_order_that_is_asked_for() -> None:
    problem = QueueingNetwork(QueueingNetworkOptions(capacity=3))
    every, some = problem.rows(np.arange(64)), problem.rows(np.array([63, 0, 21]))
    for i, s in enumerate((63, 0, 21)):
        for j, k in zip(range(4 * i, 4 * i + 4), range(4 * s, 4 * s + 4), strict=True):
            own = slice(some.successor_ptr[j], some.successor_ptr[j + 1])
            whole = slice(every.successor_ptr[k], every.successor_ptr[k + 1])
            assert some.successors[own].tolist() == every.successors[whole].tolist()


def test_a_network_of_which_nothing_is_asked_costs_what_its_third_station_does(tmp_path: Path) -> None:
    """Of one place each, with services that take no time but the third, which is an M/M/1/3 queue: its customers wait
    at the other two, and arrivals are lost where all places are taken."""
    parameters = {
        "capacity": 1, "arrival": 0.5, "service_1": 1e5, "service_2": 1e5, "slow": 1.0, "fast": 1.0,
        "holding_1": 0.0, "holding_2": 0.0, "holding_3": 0.0, "speed_cost": 1.0, "loss": 1.0,
    }  # fmt: skip
    store = ooc_mdp.generate("queueing-network", tmp_path / "q.store", parameters=parameters)
    certificate = ooc_mdp.solve(store, AverageReward(), epsilon=1e-6).certificate
    weights = 0.5 ** np.arange(4)
    lost = float(0.5 * weights[-1] / weights.sum())
    assert certificate.lower <= lost + 1e-4
    assert certificate.upper >= lost - 1e-4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capacity": 0}, "capacity"),
        ({"arrival": 0.0}, "arrival = 0.0 is no rate"),
        ({"slow": float("inf")}, "slow = inf is no rate"),
        ({"slow": 2.0, "fast": 1.0}, "fast = 1.0"),
        ({"loss": float("nan")}, "loss = nan is no cost"),
    ],
)
def test_numbers_that_make_no_network_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        QueueingNetworkOptions(**given)  # type: ignore[arg-type]
