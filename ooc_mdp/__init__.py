"""ooc-mdp: Markov decision processes whose transition tables are larger than memory, solved to a proved error."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ooc_mdp.answers import q_values, simulate_policy
    from ooc_mdp.api import convert, generate, open_problem, open_result, open_store, simulate, solve, verify
    from ooc_mdp.array_tables import from_arrays, from_gymnasium
    from ooc_mdp.average.criterion import AverageReward
    from ooc_mdp.errors import (
        ClusterError,
        InputError,
        MemoryBudgetError,
        MissingExtraError,
        OocMdpError,
        OptionsError,
        StoreError,
        UndefinedTotalError,
    )
    from ooc_mdp.finite_horizon.criterion import FiniteHorizon
    from ooc_mdp.io.state_rows import StateRows
    from ooc_mdp.measuring import cache_sweep
    from ooc_mdp.model.criterion import Discounted, TotalReward
    from ooc_mdp.model.q_values import QValues
    from ooc_mdp.model.solution import Certificate, Outcome, Solution
    from ooc_mdp.model.statistics import SolveStatistics
    from ooc_mdp.planning import plan
    from ooc_mdp.problems.control.definition import Axis, ControlProblem
    from ooc_mdp.properties.criterion import Reachability, RewardToGoal
    from ooc_mdp.report.cache_sweep import CachePoint, CacheSweep, SameAccesses
    from ooc_mdp.reporting import animate_solve, plot_result, write_report
    from ooc_mdp.reward_tables import with_rewards
    from ooc_mdp.row_tables import StoreBuilder, from_rows
    from ooc_mdp.simulation.returns import Returns
    from ooc_mdp.solver.expected_work import ExpectedWork
    from ooc_mdp.solver.forecast import SolveForecast

__all__ = [
    "AverageReward",
    "Axis",
    "CachePoint",
    "CacheSweep",
    "Certificate",
    "ClusterError",
    "ControlProblem",
    "Discounted",
    "ExpectedWork",
    "FiniteHorizon",
    "InputError",
    "MemoryBudgetError",
    "MissingExtraError",
    "OocMdpError",
    "OptionsError",
    "Outcome",
    "QValues",
    "Reachability",
    "Returns",
    "RewardToGoal",
    "SameAccesses",
    "Solution",
    "SolveForecast",
    "SolveStatistics",
    "StateRows",
    "StoreBuilder",
    "StoreError",
    "TotalReward",
    "UndefinedTotalError",
    "__version__",
    "animate_solve",
    "cache_sweep",
    "convert",
    "from_arrays",
    "from_gymnasium",
    "from_rows",
    "generate",
    "open_problem",
    "open_result",
    "open_store",
    "plan",
    "plot_result",
    "q_values",
    "simulate",
    "simulate_policy",
    "solve",
    "verify",
    "with_rewards",
    "write_report",
]

__version__ = "0.1.0"

_ROOMS = {
    "ooc_mdp.answers": ("q_values", "simulate_policy"),
    "ooc_mdp.api": ("convert", "generate", "open_problem", "open_result", "open_store", "simulate", "solve", "verify"),
    "ooc_mdp.array_tables": ("from_arrays", "from_gymnasium"),
    "ooc_mdp.average.criterion": ("AverageReward",),
    "ooc_mdp.errors": (
        "ClusterError",
        "InputError",
        "MemoryBudgetError",
        "MissingExtraError",
        "OocMdpError",
        "OptionsError",
        "StoreError",
        "UndefinedTotalError",
    ),
    "ooc_mdp.finite_horizon.criterion": ("FiniteHorizon",),
    "ooc_mdp.io.state_rows": ("StateRows",),
    "ooc_mdp.measuring": ("cache_sweep",),
    "ooc_mdp.model.criterion": ("Discounted", "TotalReward"),
    "ooc_mdp.model.q_values": ("QValues",),
    "ooc_mdp.model.solution": ("Certificate", "Outcome", "Solution"),
    "ooc_mdp.model.statistics": ("SolveStatistics",),
    "ooc_mdp.planning": ("plan",),
    "ooc_mdp.problems.control.definition": ("Axis", "ControlProblem"),
    "ooc_mdp.properties.criterion": ("Reachability", "RewardToGoal"),
    "ooc_mdp.report.cache_sweep": ("CachePoint", "CacheSweep", "SameAccesses"),
    "ooc_mdp.reporting": ("animate_solve", "plot_result", "write_report"),
    "ooc_mdp.reward_tables": ("with_rewards",),
    "ooc_mdp.row_tables": ("StoreBuilder", "from_rows"),
    "ooc_mdp.simulation.returns": ("Returns",),
    "ooc_mdp.solver.expected_work": ("ExpectedWork",),
    "ooc_mdp.solver.forecast": ("SolveForecast",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    for module, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'ooc_mdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names too, so that they are completed before they are first used."""
    return sorted({*globals(), *__all__})
