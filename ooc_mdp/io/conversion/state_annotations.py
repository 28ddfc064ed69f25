"""Labels and variables of states beside the table of a store that is being written."""

from __future__ import annotations

import shutil
from pathlib import Path

from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.given_annotations import GivenAnnotations, add_annotations
from ooc_mdp.store.annotations import ANNOTATIONS, StateAnnotations, write_annotations
from ooc_mdp.store.sealed_group import group_attributes

__all__ = ["given_state_annotations", "state_annotations", "write_state_annotations"]


def state_annotations(found: SourceAnnotations, n_states: int) -> StateAnnotations:
    """The labels and variables of a source of so many states."""
    return StateAnnotations(found.labels(n_states), found.variables.variables(n_states), found.variables.read)


def given_state_annotations(path: str, given: GivenAnnotations, n_states: int) -> StateAnnotations:
    """The labels and variables that a user gives; arguments and errors are those of `add_annotations`."""
    found = SourceAnnotations()
    add_annotations(found, path, given, n_states)
    return state_annotations(found, n_states)


def write_state_annotations(root: Path, states: StateAnnotations) -> None:
    """Write labels and variables beside a table that is written, in place of those that a run that was stopped left."""
    if (root / ANNOTATIONS).exists():
        shutil.rmtree(root / ANNOTATIONS)
    if states.labels or states.variables:
        attributes = group_attributes(root)
        sizes = attributes["table"]["n_states"], attributes["table"]["n_rows"]
        write_annotations(root, attributes["fingerprint"], states, {}, sizes)
