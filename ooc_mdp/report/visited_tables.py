"""Which visits an animation shows, and where their partitions are: from a trace or result, and a store or result."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.table import Table
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.report.maps.slices import axes_of
from ooc_mdp.report.visit_frames import Plane, Visits, block_plane, folded_plane
from ooc_mdp.store.result import Result
from ooc_mdp.store.result_attributes import grid_partitions
from ooc_mdp.store.result_grid import grid_of

__all__ = ["visits_of"]


def visits_of(
    solve: Result | AccessTrace, of: Result | Table | None, axes: Sequence[str] | None
) -> tuple[Visits, str, Plane]:
    """The visits of a solve, a title, and the plane on which they are drawn.

    Parameters
    ----------
    of : the table, which places partitions on the grid; a result does so by itself.
    axes : names of the axes across and up.

    Raises
    ------
    OptionsError : the two are of different tables, no visit is recorded, or there are no such axes.
    """
    if isinstance(solve, Result):
        if solve.solution.history is None:
            raise OptionsError(f"{solve.path} carries no history: the visits of its solve were not recorded")
        visits, method = Visits.of_history(solve.solution.history), solve.solution.method
        fingerprint = solve.identity.get("fingerprint")
        place: Result | Table | None = solve if of is None else of
    else:
        visits, method = Visits.of_trace(solve), solve.method
        fingerprint, place = solve.facts.get("fingerprint"), of
    title = f"{_name(place)}{method}"
    if place is None:
        return visits, title, _folded(visits, axes, "a trace alone does not say where partitions are: give the store")
    _check_same(fingerprint, place, visits)
    order, geometry, n_states = _order(place)
    grid = grid_of(geometry, n_states, frozenset())
    if order is None or len(grid.shape) < 2 or tuple(order["shape"]) != grid.shape:
        return visits, title, _folded(visits, axes, "the partitions are no blocks of a grid of two axes or more")
    return visits, title, block_plane(axes_of(grid, geometry), order, None if axes is None else list(axes))


def _folded(visits: Visits, axes: Sequence[str] | None, why: str) -> Plane:
    if axes is not None:
        raise OptionsError(f"there are no axes {', '.join(axes)} to draw: {why}")
    return folded_plane(visits.n_partitions)


def _name(place: Result | Table | None) -> str:
    if place is None:
        return ""
    provenance = place.provenance if isinstance(place, Result) else place.facts.attributes.get("provenance") or {}
    source = provenance.get("source")
    return "" if source is None else f"{source}: "


def _order(place: Result | Table) -> tuple[dict | None, dict | None, int]:  # type: ignore[type-arg]
    """Blocks of the grid, geometry, number of states."""
    if isinstance(place, Result):
        return place.partitions, place.geometry, place.values.size
    geometry = place.facts.attributes.get("geometry")
    return grid_partitions(place), None if geometry is None else dict(geometry), place.n_states


def _check_same(fingerprint: str | None, place: Result | Table, visits: Visits) -> None:
    if isinstance(place, Result):
        other, count = place.identity.get("fingerprint"), place.solution.statistics.n_partitions
    else:
        other, count = place.fingerprint, place.n_partitions
    if fingerprint is not None and other is not None and fingerprint != other:
        raise OptionsError(
            f"the solve is of the table {fingerprint[:12]}, and what places its partitions of {other[:12]}; give the "
            f"store or result of the same table"
        )
    if count != visits.n_partitions:
        raise OptionsError(
            f"the solve has {visits.n_partitions} partitions, and what places them {count}; give the store or result "
            f"of the same solve"
        )
