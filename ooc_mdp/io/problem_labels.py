"""Labels of generated problems: sets of states that a problem computes, for a store or on demand.

A problem that has labels has a property ``labels``: for each name a function of states (int64 [n], any order) that
returns which of them have the label (bool [n]), on any thread. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.annotations import Annotations, unknown_name
from ooc_mdp.problems.problem import LabelFunction, Problem
from ooc_mdp.runtime.threads import map_on_threads, slices

__all__ = ["ProblemAnnotations", "packed_label", "packed_labels"]

_PIECE = 1 << 16
"""States whose labels are computed at a time; a multiple of 8."""


def _labels_of(problem: Problem) -> Mapping[str, LabelFunction]:
    """The labels of a problem; none where it has no such property."""
    found: Mapping[str, LabelFunction] = getattr(problem, "labels", {})
    return found


def packed_label(label: LabelFunction, n_states: int) -> npt.NDArray[np.uint8]:
    """uint8 [ceil(n/8)]; the states with a label, one bit each, the first in the lowest bit of a byte."""
    bits = np.empty(-(-n_states // 8), np.uint8)

    def fill(part: slice) -> None:
        found = label(np.arange(part.start, part.stop, dtype=np.int64))
        bits[part.start // 8 : (part.stop - 1) // 8 + 1] = np.packbits(found, bitorder="little")

    map_on_threads(fill, slices(n_states, _PIECE))
    return bits


def packed_labels(problem: Problem) -> dict[str, npt.NDArray[np.uint8]]:
    """For each label, in alphabetical order, the states packed into bits as stores keep them."""
    return {name: packed_label(label, problem.n_states) for name, label in sorted(_labels_of(problem).items())}


class ProblemAnnotations(Annotations):
    """Labels of a problem, computed when they are asked for."""

    def __init__(self, problem: Problem) -> None:
        self._labels, self.n_states = _labels_of(problem), problem.n_states
        self.labels: Sequence[str] = tuple(sorted(self._labels))

    def label_bits(self, name: str) -> npt.NDArray[np.uint8]:
        """Compute a label of all states."""
        if name not in self._labels:
            raise unknown_name("label", name, self.labels)
        return packed_label(self._labels[name], self.n_states)
