"""Labels of generated problems: sets of states that a problem computes, for a store or on demand.

A problem that has labels has a method ``labels(states)``, which returns for each name bool [n] of the given states
(int64 [n], any order), and always the same names. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.annotations import Annotations, StateSet, unknown_name
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.problems.problem import Problem

__all__ = ["ProblemAnnotations", "packed_labels"]

_PIECE = 1 << 16
"""States whose labels are computed at a time; a multiple of 8."""


def _labels_at(problem: Problem, states: IntArray) -> dict[str, StateSet]:
    """The labels of some states; none where the problem has no labels."""
    labels = getattr(problem, "labels", None)
    return {} if labels is None else dict(labels(states))


def _pieces(problem: Problem) -> Iterator[IntArray]:
    for first in range(0, problem.n_states, _PIECE):
        yield np.arange(first, min(first + _PIECE, problem.n_states), dtype=np.int64)


def packed_labels(problem: Problem) -> dict[str, npt.NDArray[np.uint8]]:
    """For each label the states, packed into bits, uint8 [ceil(n/8)]; the first in the lowest bit of a byte."""
    names = sorted(_labels_at(problem, np.zeros(1, np.int64)))
    if not names:
        return {}
    bits = {name: np.empty(-(-problem.n_states // 8), np.uint8) for name in names}
    for states in _pieces(problem):
        found = _labels_at(problem, states)
        own = slice(int(states[0]) // 8, int(states[-1]) // 8 + 1)
        for name in names:
            bits[name][own] = np.packbits(found[name], bitorder="little")
    return bits


class ProblemAnnotations(Annotations):
    """Labels of a problem, computed when they are asked for."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.labels: Sequence[str] = tuple(sorted(_labels_at(problem, np.zeros(1, np.int64))))

    def label(self, name: str) -> StateSet:
        """Compute a label of all states."""
        if name not in self.labels:
            raise unknown_name("label", name, self.labels)
        return np.concatenate([_labels_at(self._problem, states)[name] for states in _pieces(self._problem)])
