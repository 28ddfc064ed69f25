"""What the graph alone decides of a question: in which states the answer is 0, 1 or infinite, and by which rows.

    Pmax = 0    no row leads on towards the goal        Pmax = 1    some policy reaches it for certain
    Pmin = 0    some policy never reaches the goal      Pmin = 1    no row leads on towards states of Pmin = 0
    rewards     infinite where the goal can be missed (the largest), or must be (the least), with positive probability

(de Alfaro 1997, chapter 3; Baier and Katoen 2008, section 10.6; Forejt et al. 2011, section 4.) The process ends in
these states from then on, so that what is left has proper policies. Marks of all states are in RAM, partitions are read
as long as one of their neighbours has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.properties.table import CONTINUES, GOAL, INFINITE, STOPPED, AskedTable, Ends
from ooc_mdp.undiscounted.end_components import end_components
from ooc_mdp.undiscounted.kernels.end_components import NO_REWARD
from ooc_mdp.undiscounted.kernels.reachability import choose_away, choose_paying, spread_marks
from ooc_mdp.undiscounted.refusals import named
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, Work

__all__ = ["GRAPH_BYTES", "Decided", "decide", "load_code", "reward_sign"]

GRAPH_BYTES = 48
"""Bytes of marks, labels and rows for each state."""
Marks = npt.NDArray[np.uint8]
"""uint8 [n]; 1 in the states of a set."""
Labels = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Decided:
    """What is known before values are computed."""

    ends: Ends
    policy: npt.NDArray[np.int32]
    """int32 [n]; rows by which the answer is reached in states whose answer is decided; -1 where any row does."""
    penalty: float = 0.0
    """As in :class:`~ooc_mdp.properties.table.AskedTable`."""
    staying: float = 0.0
    """Value of staying for ever where nothing is paid: 0, or minus infinity where the goal must be reached."""


def load_code(rows: TableRows) -> None:
    """Load the compiled loops, on rows of no state, so that a memory plan counts them."""
    marks, labels, policy = np.zeros(1, np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    spread_marks(rows, marks, marks, labels, True, True, True, policy)
    choose_away(rows, marks, marks, policy)
    choose_paying(rows, labels, 1.0, marks, policy)


def reward_sign(table: Table) -> int:
    """1 where no reward is below 0, -1 where none is above; OptionsError where there are both signs."""
    low, high = _reward_ends(table)
    if has_both_signs(table):
        raise OptionsError(
            f"rewards of {table.name} lie between {low:g} and {high:g}: a total that may be infinite is defined for "
            f"rewards of one sign; leave out --infinite, or give rewards of one sign"
        )
    return -1 if low < 0 else 1


def has_both_signs(table: Table) -> bool:
    """Whether some rewards are above 0 and some below."""
    low, high = _reward_ends(table)
    return low < 0 < high


def _reward_ends(table: Table) -> tuple[float, float]:
    return float(table.facts.reward_range[:, 0].min()), float(table.facts.reward_range[:, 1].max())


def decide(tables: Streamed, neighbours: Neighbours) -> Work[Decided]:
    """Decide what the graph decides of the question of an `AskedTable`."""
    graph = _Graph(tables, neighbours)
    table = graph.table
    if table.pays_goal:
        return (yield from (graph.largest() if table.sense == "max" else graph.least()))
    if table.has_goal and has_both_signs(table):
        return (yield from graph.sure())
    gains = reward_sign(table) * (1 if table.sense == "max" else -1) > 0
    if not table.has_goal:
        return (yield from (graph.endless_gain() if gains else graph.endless_cost()))
    return (yield from (graph.gain() if gains else graph.cost()))


class _Graph:
    """The searches of one question."""

    def __init__(self, tables: Streamed, neighbours: Neighbours) -> None:
        source = tables.source
        assert isinstance(source, AskedTable)
        self.table = source
        self._tables, self._neighbours = tables, neighbours
        n = source.n_states
        self._ends = np.full(n, CONTINUES) if source.ends is None else source.ends.copy()
        self._goal = (self._ends == GOAL).astype(np.uint8)
        self._open = (self._ends == CONTINUES).astype(np.uint8)
        self._policy = np.full(n, -1, np.int32)

    def largest(self) -> Work[Decided]:
        """Pmax: states that cannot reach the goal, and those that reach it for certain."""
        reaching = yield from self._spread(self._goal)
        certain = yield from self._certain(self._goal)
        return self._decided(stopped=reaching == 0, goal=certain != 0)

    def least(self) -> Work[Decided]:
        """Pmin: states that can avoid the goal for ever, and those that cannot reach such states."""
        avoiding = yield from self._avoiding()
        missing = yield from self._spread(avoiding, eligible=self._open & (1 - avoiding), lost=True)
        return self._decided(stopped=avoiding != 0, goal=missing == 0)

    def gain(self) -> Work[Decided]:
        """The largest reward to a goal: infinite where some policy may miss the goal."""
        avoiding = yield from self._avoiding()
        missing = yield from self._spread(avoiding, eligible=self._open & (1 - avoiding), lost=True)
        return self._decided(infinite=missing != 0)

    def sure(self) -> Work[Decided]:
        """A reward to a goal with rewards of both signs: OptionsError where some policy may miss the goal."""
        avoiding = yield from self._avoiding()
        missing = yield from self._spread(avoiding, eligible=self._open & (1 - avoiding), lost=True)
        states = np.flatnonzero((missing != 0) & (self._open != 0))
        if states.size:
            low, high = _reward_ends(self.table)
            raise OptionsError(
                f"rewards of {self.table.name} lie between {low:g} and {high:g}, and from "
                f"{named(self.table, states)} a policy may miss the goal: a reward until a goal is defined for rewards "
                f"of one sign, or where every policy reaches the goal; --reachable (in Python reachable=True) asks "
                f"only about states that initial ones lead to"
            )
        return self._decided()

    def cost(self) -> Work[Decided]:
        """The least reward to a goal: infinite where no policy reaches it for certain."""
        certain = yield from self._certain(self._goal)
        return self._decided(infinite=certain == 0, penalty=self._penalty(), staying=-np.inf)

    def endless_gain(self) -> Work[Decided]:
        """The largest total: infinite where an end component in which something is paid can be reached."""
        blocks = yield from end_components(self._tables, self._neighbours)
        paying, sign = np.zeros(blocks.size, np.uint8), float(reward_sign(self.table))
        for _, rows, _ in self._tables.in_order(np.ones(self.table.n_partitions, np.bool_)):
            choose_paying(rows, blocks, sign, paying, self._policy)
            yield
        rich = yield from self._spread(paying, eligible=(blocks != 0).astype(np.uint8), inside=blocks, sure=True)
        infinite = yield from self._spread(rich)
        return self._decided(infinite=infinite != 0)

    def endless_cost(self) -> Work[Decided]:
        """The least total: infinite where no policy comes for certain to where nothing is paid, or ends."""
        resting = yield from end_components(self._tables, self._neighbours, NO_REWARD)
        target = (resting != 0).astype(np.uint8)
        for p in range(self.table.n_partitions):
            first = int(self.table.facts.partition_ptr[p])
            counts = self.table.action_counts(p)
            target[first : first + counts.size] |= counts == 0
        certain = yield from self._certain(target, lost=True)
        return self._decided(infinite=certain == 0, penalty=self._penalty())

    def _decided(
        self,
        stopped: npt.NDArray[np.bool_] | None = None,
        goal: npt.NDArray[np.bool_] | None = None,
        infinite: npt.NDArray[np.bool_] | None = None,
        penalty: float = 0.0,
        staying: float = 0.0,
    ) -> Decided:
        """End the process in states that are open and whose answer is known."""
        is_open = self._open != 0
        for states, code in ((stopped, STOPPED), (goal, GOAL), (infinite, INFINITE)):
            if states is not None:
                self._ends[is_open & states] = code
        return Decided(self._ends, self._policy, penalty, staying)

    def _penalty(self) -> float:
        """A reward of the rewards' sign that is worse than any."""
        size = float(np.abs(self.table.facts.reward_range).max())
        return reward_sign(self.table) * max(1.0, size)

    def _avoiding(self) -> Work[Marks]:
        """States where some policy never reaches the goal; a row that does goes to the policy."""
        forced = yield from self._spread(self._goal, every=True)
        avoiding = 1 - forced
        for _, rows, _ in self._tables.in_order(np.ones(self.table.n_partitions, np.bool_)):
            choose_away(rows, forced, avoiding, self._policy)
            yield
        return avoiding

    def _certain(self, target: Marks, lost: bool = False) -> Work[Marks]:
        """States where some policy reaches the target (or, if `lost`, an end) with probability 1.

        States that cannot reach it inside a set are taken out, with those that every row may lead from the set, until
        all that are left can: the second is local, and saves long searches.
        """
        inside: Marks = np.ones_like(target)
        while True:
            reached = yield from self._spread(target, inside=inside.astype(np.uint32), sure=True, lost=lost)
            if np.array_equal(reached, inside):
                return reached
            kept = self._open & reached & (1 - target)
            outside = yield from self._spread(1 - reached, eligible=kept, every=True, lost=not lost)
            inside = 1 - outside

    def _spread(
        self,
        target: Marks,
        *,
        eligible: Marks | None = None,
        inside: Labels | None = None,
        every: bool = False,
        sure: bool = False,
        lost: bool = False,
    ) -> Work[Marks]:
        """The target and the states that may, or must, lead to it: `spread_marks` until nothing changes."""
        marked = target.copy()
        among = self._open if eligible is None else eligible
        within = np.ones(target.size, np.uint32) if inside is None else inside

        def visit(p: int, rows: TableRows) -> IntArray | None:
            seen = spread_marks(rows, marked, among, within, every, sure, lost, self._policy)
            return self._neighbours.dependents(p) if seen else None

        yield from self._tables.until_clean(np.ones(self.table.n_partitions, np.bool_), visit)
        return marked
