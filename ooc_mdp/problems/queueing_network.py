"""Three queues under control: arrivals are routed to one of two stations, whose departures queue at a third.

                    ┌─▶ station 1, rate mu_1 ─┐
    arrivals, rate ─┤                         ├─▶ station 3, rate slow or fast ─▶
                    └─▶ station 2, rate mu_2 ─┘

A state is the number of customers at each station, at most `capacity`. An action is a route for the next arrival and a
speed of the third station: 0 and 1 route to station 1, slow and fast, 2 and 3 to station 2. An arrival that finds its
station full is lost; a customer who finds station 3 full stays where he was served, and is served again. The costs are
those of a unit of time: of each customer who waits, of the fast speed, and of the arrivals that are lost.

Times are exponential, and the chain is uniformised (Lippman 1975): a step is an event of a Poisson process of rate

    Lambda = arrival + mu_1 + mu_2 + fast,

which leaves the state alone where the event is of an empty station, or of the speed that was not chosen. The steady
state is that of the process in continuous time, so the mean cost per step is the mean cost per unit of time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numba
import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.problems.parameters import check_states, in_range
from ooc_mdp.problems.problem import RowBounds

__all__ = ["QueueingNetwork", "QueueingNetworkOptions"]

_STATIONS = 3
_ACTIONS = 4
_EVENTS = 5
"""An arrival, three departures, and none of them."""


@dataclass(frozen=True, slots=True)
class QueueingNetworkOptions:
    """Sizes, rates and costs."""

    capacity: int = 46
    """Customers at a station at most, 1 .. 2**13; (capacity + 1)**3 states."""
    arrival: float = 1.0
    """Rate of arrivals, above 0 like all rates."""
    service_1: float = 0.7
    """mu_1."""
    service_2: float = 0.5
    """mu_2."""
    slow: float = 0.9
    """Rate of station 3 at its slow speed."""
    fast: float = 1.4
    """Rate of station 3 at its fast speed, at least the slow one."""
    holding_1: float = 1.0
    """Cost of a customer at station 1 per unit of time."""
    holding_2: float = 1.0
    """Likewise at station 2."""
    holding_3: float = 2.0
    """Likewise at station 3."""
    speed_cost: float = 4.0
    """Cost of the fast speed per unit of time."""
    loss: float = 50.0
    """Cost of an arrival that is lost."""

    def __post_init__(self) -> None:
        in_range("queueing-network", "capacity", self.capacity, 1, 2**13)
        for name in ("arrival", "service_1", "service_2", "slow"):
            if not 0 < getattr(self, name) < np.inf:
                raise OptionsError(
                    f"problem 'queueing-network': {name} = {getattr(self, name)} is no rate; give a number above 0"
                )
        if not self.slow <= self.fast < np.inf:
            raise OptionsError(
                f"problem 'queueing-network': fast = {self.fast} is no rate, or below slow = {self.slow}; give at "
                "least as much"
            )
        for name in ("holding_1", "holding_2", "holding_3", "speed_cost", "loss"):
            if not np.isfinite(getattr(self, name)):
                raise OptionsError(f"problem 'queueing-network': {name} = {getattr(self, name)} is no cost")


class QueueingNetwork:
    """The network as a :class:`~ooc_mdp.problems.problem.Problem`."""

    sense = "min"
    dyadic_probabilities = False
    default_dtype: Literal["float32", "float64"] = "float64"

    def __init__(self, options: QueueingNetworkOptions) -> None:
        self.name = "queueing-network"
        self.options = options
        self.n_states = (options.capacity + 1) ** _STATIONS
        self.shape: tuple[int, ...] | None = (options.capacity + 1,) * _STATIONS

    @property
    def row_bounds(self) -> RowBounds:
        """4 actions a state, up to 5 transitions each."""
        return RowBounds(_ACTIONS, _EVENTS, uniform_actions=True)

    def rows(self, states: IntArray) -> Rows:
        """Rows of `states` (int64 [n]): 4 a state."""
        o = self.options
        states = check_states(states, self.n_states, self.name)
        rates = np.array([o.arrival, o.service_1, o.service_2, o.slow, o.fast])
        costs = np.array([o.holding_1, o.holding_2, o.holding_3, o.speed_cost, o.arrival * o.loss])
        lengths, successors, probabilities, rewards = _rows(states, o.capacity, rates, costs)
        successor_ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        action_ptr = np.arange(0, _ACTIONS * states.size + 1, _ACTIONS, dtype=np.int64)
        return Rows(action_ptr, successor_ptr, successors, probabilities, rewards)

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Every option."""
        return asdict(self.options)

    def geometry(self) -> dict[str, Any]:
        """Customers at each station."""
        top = float(self.options.capacity)
        return {
            "axes": [
                {"name": f"station {i + 1}", "low": 0.0, "high": top, "periodic": False, "unit": "customers"}
                for i in range(_STATIONS)
            ]
        }


@numba.njit(cache=True, nogil=True)
def _rows(states, capacity, rates, costs):  # type: ignore[no-untyped-def]
    """Lengths int64 [4n], successors int64, probabilities float64, rewards float64 [4n] of the rows."""
    side = capacity + 1
    strides = (side * side, side, 1)
    total = rates[0] + rates[1] + rates[2] + rates[4]
    lengths = np.empty(4 * states.size, np.int64)
    rewards = np.empty(4 * states.size, np.float64)
    successors = np.empty(20 * states.size, np.int64)
    probabilities = np.empty(20 * states.size, np.float64)
    end = 0
    for i in range(states.size):
        s = states[i]
        x = (s // strides[0], s // side % side, s % side)
        for action in range(4):
            route, fast = action // 2, action % 2
            full = x[route] == capacity
            holding = costs[0] * x[0] + costs[1] * x[1] + costs[2] * x[2]
            rewards[4 * i + action] = holding + costs[3] * fast + (costs[4] if full else 0.0)
            begin = end
            stays = total
            # In the order of the successors: departures to station 3 lower the state by most, and arrivals raise it.
            for event in range(4):
                if event < 2 and x[event] > 0 and x[2] < capacity:
                    rate, to = rates[1 + event], s - strides[event] + 1
                elif event == 2 and x[2] > 0:
                    rate, to = rates[3 + fast], s - 1
                elif event == 3 and not full:
                    rate, to = rates[0], s + strides[route]
                else:
                    continue
                if to > s:  # the state itself comes before
                    successors[end], probabilities[end] = s, 0.0
                    end += 1
                successors[end], probabilities[end] = to, rate / total
                end += 1
                stays -= rate
            stays = max(stays, 0.0) / total
            last = end - 1
            if successors[last] > s and end > begin:
                probabilities[last - 1] = stays
            else:
                successors[end], probabilities[end] = s, stays
                end += 1
            lengths[4 * i + action] = end - begin
    return lengths, successors[:end].copy(), probabilities[:end].copy(), rewards
