"""What is decided before a solve begins: its method, and every large buffer in bytes.

    table, options ─▶ load_code ─▶ plan_solve ─▶ SolvePlan (method, layout of the backend, memory plan)

Nothing large is allocated here, and planning changes no backend: `Backend.layout` is a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_mdp.backends.base import Backend, Features, Loops
from ooc_mdp.backends.compiling import load_until
from ooc_mdp.backends.cpu.double_double import load_code as load_residuals
from ooc_mdp.backends.cpu.policy_rows import PolicyRows
from ooc_mdp.backends.cpu.warm_up import small_models
from ooc_mdp.backends.layout import Layout, Needs, check_free_memory
from ooc_mdp.backends.select import cuda_numbers
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.table import Table
from ooc_mdp.options import DEFAULT_KERNEL, MethodName, SolveOptions, format_bytes
from ooc_mdp.runtime import quotas
from ooc_mdp.runtime.memory import KEPT_PER_THREAD, available_bytes, resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER, MemoryPlan
from ooc_mdp.scheduling.loops import load_code as load_scheduling
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.sweep_bound import describe_sweep_bound
from ooc_mdp.solver.history import history_bytes
from ooc_mdp.store.check_load import check_bytes

__all__ = [
    "NEAR_ROUNDING",
    "MethodChoice",
    "SolvePlan",
    "beside_tables",
    "choose_method",
    "choose_shared_method",
    "first_loops",
    "fitting_cache",
    "load_code",
    "plan_solve",
    "staging_depth",
    "writing_bytes",
]

_MAX_STAGED = 12
_STAGING = {"store": "staging", "recomputed": "recomputation"}
"""What the plan calls the memory of tables on their way, by the kind of source."""
_RESIDENT_OBJECT = 3 << 10
"""Bytes of the Python objects that stand for a partition in the cache: a table, ten arrays, addresses."""
_REFINED_STATE = 56
"""Bytes per state of a refinement beside a policy's rows: values in twice the precision, the best so far, corrections,
and their policies."""
NEAR_ROUNDING = 64.0
"""Bounds of so many times the rounding of a backup may be all that float64 has to give."""
_WRITE_BUFFERS = 16 << 20
"""Bytes at most for values on their way into a result: a chunk (8 MiB), and the same compressed."""


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """Which method begins, and which may follow."""

    first: str
    """A word of `ooc_mdp.solver.local.METHODS`, as the next two."""
    then: str | None
    """Where the first costs more than this usually does."""
    shared: str
    """While other solvers have partitions."""
    reason: str
    """For the caller, and the trace."""


@dataclass(frozen=True, slots=True)
class SolvePlan:
    """What was decided before a solve begins."""

    options: SolveOptions
    facts: ModelFacts
    choice: MethodChoice
    layout: Layout
    """How the backend holds the model; with larger slots once a partition has not fitted into one."""
    staging_depth: int
    """Partitions that are read at a time."""
    memory: MemoryPlan

    def describe(self) -> str:
        """Lines for the caller: the memory, and for simple kernels how many sweeps are enough."""
        lines = [self.memory.describe()]
        if self.layout.devices > 1:
            lines.append(f"each of the {self.layout.devices} devices takes at most what the device's plan names")
        if self.options.kernel != DEFAULT_KERNEL:
            lines.append(describe_sweep_bound(self.facts, self.options))
        return "\n".join(lines)


def load_code(
    table: Table,
    backend: Backend,
    facts: ModelFacts,
    options: SolveOptions,
    writes: bool,
    ended: Callable[[], Outcome | None] = lambda: None,
) -> Outcome | None:
    """Load code now, so that the plan counts it: compiled loops take some 60 MB, Zarr's writer some 10; compiling them
    100 to 200 more, which the process keeps.

    Loaded is what the method is likely to call first; what a change of the method needs is loaded when it comes to it.

    Parameters
    ----------
    ended : what asks the solve to end early, before each function that is compiled.

    Returns
    -------
    The outcome that ended it, where not everything is loaded; None otherwise.
    """
    if writes:
        import zarr.codecs  # noqa: F401
    refines = _near_rounding(options, facts)
    loops = first_loops(options, facts)
    if refines and backend.policy_rows is not None:
        loops |= Loops.POLICY_ROWS

    def load() -> None:
        table.load_code()
        load_scheduling()
        backend.load_code(facts, loops)
        if refines:
            for _, rows in small_models(facts):
                load_residuals(rows)

    return load_until(ended, load)


def first_loops(options: SolveOptions, facts: ModelFacts) -> Loops:
    """What the method that is likely to begin calls of its backend; :func:`choose_method` decides it later."""
    if options.exact_priorities:
        return Loops.MEASURE | Loops.SINGLE
    method, loops = options.effective_method, Loops.MEASURE
    if method == "policy-iteration" or (method == "auto" and facts.strongly_coupled):
        loops |= Loops.POLICY_ROWS
    else:
        loops |= Loops.SINGLE if method == "vi" else Loops.BATCHES
    if method != "policy-iteration" and facts.densely_coupled and options.sweeps_per_visit == 1:
        loops |= Loops.PASSES | Loops.SINGLE  # which follow where passes do not help
    return loops


def plan_solve(table: Table, options: SolveOptions, backend: Backend, facts: ModelFacts, writes: bool) -> SolvePlan:
    """The method, and every large buffer of the solve in bytes; `writes`: checkpoints and a result are written.

    The process as it is now counts as "process", so it should have loaded its code (:func:`load_code`).

    Raises
    ------
    OptionsError : a device's budget is given, and the backend is the CPU; or as :func:`choose_method` raises it.
    MemoryBudgetError : the cache, or what a device's budget leaves for it, cannot hold the largest partition, or the
        device has not so much memory free.
    """
    loader, depth = table.loader(backend.name), staging_depth(backend.features)
    largest, staging = facts.largest_table_bytes, _STAGING[table.facts.kind]
    needs = Needs(
        cache=options.cache_size,
        device_memory=options.device_memory,
        free=backend.free_bytes(),
        staging={staging: depth * (largest + loader.scratch_bytes)} if loader.on_device else {},
        policy_rows=options.effective_method == "policy-iteration",
    )
    choice, layout = _choose(options, backend, facts, needs)
    # Decoded, and packed for the device; on the CPU decoded into the cache, but for halos that sweeps do not need.
    beside_entry = 2 * largest if layout.device else int((facts.partition_bytes - layout.entries).max())
    staged = {} if loader.on_device else {staging: depth * (beside_entry + loader.scratch_bytes)}
    host = _host_buffers(table, facts, staged, writes) | {"freed buffers": (1 + depth) * KEPT_PER_THREAD}
    if layout.device and needs.free is not None:
        check_free_memory(layout.device, needs.free, backend.name, options.device_memory, layout.largest_entry)
    padding, caches = 0.0 if layout.device else loader.padding, layout.devices * layout.cache_bytes
    beside = {"padding and objects of tables": beside_tables(layout.entries, caches, padding)}
    later = _later(options, backend, facts, choice, layout)
    memory = MemoryPlan({**host, **layout.host, **beside}, dict(layout.device), later)
    memory.check_available(f"this solve of {table.name}", fitting_cache(memory, largest))
    return SolvePlan(options, facts, choice, layout, depth, memory)


def _later(
    options: SolveOptions, backend: Backend, facts: ModelFacts, choice: MethodChoice, layout: Layout
) -> dict[str, int]:
    """Bytes in RAM, beside the plan, of what begins in some cases only: a change of the method, and refinement."""
    later = dict(layout.later)
    if choice.then is not None and backend.policy_rows is not None and not layout.device:
        later["a change to policy iteration"] = backend.policy_rows.rows_bytes(facts)
    if _near_rounding(options, facts):
        again = sum(size for name, size in layout.host.items() if name != "cache")
        rows = 0 if choice.first == "policy-iteration" else PolicyRows.nbytes(facts)
        later["refinement beyond float64"] = _REFINED_STATE * facts.n_states + again + rows
    return later


def _near_rounding(options: SolveOptions, facts: ModelFacts) -> bool:
    """Whether a target that is given may be below what float64 sweeps prove, so that values have to be refined."""
    target = options.epsilon if options.residual is None else options.residual
    if target is None:
        return False
    c, plain = facts.contraction, options.residual is not None
    size = float((np.abs(facts.reward_range).max(axis=1) * c.normaliser).max())
    return target <= NEAR_ROUNDING * ResidualBounds.rounding_of(c, facts.reward_range, facts.row_widths, size, plain)


def beside_tables(entries: IntArray, cache_bytes: int, padding: float) -> int:
    """Bytes that residents take beside their entries: padding of arrays, and the objects that stand for tables."""
    residents = int(np.searchsorted(np.cumsum(np.sort(entries)), cache_bytes, side="right"))
    return residents * _RESIDENT_OBJECT + int(min(cache_bytes, int(entries.sum())) * padding)


def fitting_cache(memory: MemoryPlan, largest: int) -> str:
    """What to do where the plan is more than the RAM that there is."""
    fitting = memory.host.get("cache", 0) - (memory.new_bytes - (available_bytes() or 0))
    if fitting >= largest:
        return f"lower --cache to at most {fitting}"
    return (
        f"beside all else no cache is left that holds the largest partition ({format_bytes(largest)}): {SMALLER}, or "
        "use a machine with more memory"
    )


def _choose(options: SolveOptions, backend: Backend, facts: ModelFacts, needs: Needs) -> tuple[MethodChoice, Layout]:
    """The method, and the layout that it needs; auto takes another method where a budget has no room for rows."""
    layout = backend.layout(facts, needs)
    all_is_cached = layout.holds_all
    choice = choose_method(options, backend, facts, all_is_cached)
    if choice.first == "policy-iteration" and not needs.policy_rows:  # it was not asked for by name
        try:
            return choice, backend.layout(facts, replace(needs, policy_rows=True))
        except MemoryBudgetError:
            choice = choose_method(options, backend, facts, all_is_cached, rows_fit=False)
    if choice.first == "synchronous vi":
        layout = backend.layout(facts, replace(needs, synchronous=True))
    return choice, layout


def _host_buffers(table: Table, facts: ModelFacts, staging: Mapping[str, int], writes: bool) -> dict[str, int]:
    """Bytes in RAM that every solve of the table takes, by name."""
    n = facts.n_states
    host = {
        PROCESS: resident_bytes(),
        "values": 8 * n,
        "policy": 4 * n,
        "marks of loaded states": check_bytes(n),
        "bounds and coupling": 208 * facts.n_partitions + 80 * facts.coupling.mass.size,
        "history": history_bytes(facts.n_partitions),
        "result": 12 * n,
        **staging,
    }
    return host | ({"output buffers": writing_bytes(table)} if writes else {})


def choose_method(
    options: SolveOptions, backend: Backend, facts: ModelFacts, all_is_cached: bool, rows_fit: bool = True
) -> MethodChoice:
    """The method for a table, by what is asked, how partitions depend on each other, and what the backend can do.

    =====================  ============================  ===============================  ============================
    asked                  everything reads everything   a partition reads 12 or more     else
    =====================  ============================  ===============================  ============================
    vi, one sweep a visit  synchronous vi *              vi                               vi
    p-eva                  synchronous vi *              p-eva                            p-eva
    auto, all is cached    s. vi *, then p. iteration ** policy iteration **              p-eva, then p. iteration **
    auto                   policy iteration **           policy iteration **              p-eva, then p. iteration **
    =====================  ============================  ===============================  ============================

    * where the backend has synchronous sweeps, else as in the last column; ** where it keeps a policy's rows and a
    device's budget has room for evaluations (for the change of the method: where no such budget is given). While other
    solvers have partitions, the method is p-eva, or what was asked for.

    Parameters
    ----------
    all_is_cached : whether the cache holds the whole table.
    rows_fit : whether there is room for a policy's rows.

    Raises
    ------
    OptionsError : policy iteration was asked for, and the kernels keep no rows.
    """
    others = (
        f"a partition reads {facts.mean_partitions_read:.1f} of the {facts.n_partitions - 1} others on average"
        if facts.n_partitions > 1
        else "there is one partition"
    )
    p_eva = "p-eva on device" if backend.features.overlaps_loads else "p-eva"
    if options.exact_priorities:
        return MethodChoice("exact p-eva", None, "exact p-eva", "exact priorities were asked for")
    if options.effective_method == "policy-iteration":
        if backend.policy_rows is None:
            raise OptionsError(
                f"policy iteration needs kernels that keep a policy's rows, and --kernel {options.kernel} has none; "
                f"leave --kernel out, or take --method p-eva"
            )
        return MethodChoice("policy-iteration", None, "policy-iteration", "it was asked for")
    keeps_rows = backend.policy_rows is not None and rows_fit
    synchronous = backend.synchronous is not None and facts.densely_coupled and options.sweeps_per_visit == 1
    synchronous &= options.effective_method in ("auto", "p-eva", "vi")
    shared = p_eva if options.effective_method in ("auto", "p-eva") else options.effective_method
    coupled = options.effective_method == "auto" and facts.strongly_coupled
    if coupled and keeps_rows and not (synchronous and all_is_cached):
        return MethodChoice("policy-iteration", None, shared, others)
    later = options.effective_method == "auto" and backend.policy_rows is not None and options.device_memory is None
    then = "policy-iteration" if later else None
    if synchronous:
        return MethodChoice("synchronous vi", then, shared, others)
    if options.effective_method not in ("auto", "p-eva"):
        return MethodChoice(options.effective_method, None, options.effective_method, "it was asked for")
    return MethodChoice(p_eva, then, p_eva, others)


def choose_shared_method(facts: ModelFacts, options: SolveOptions, workers: int) -> MethodName:
    """The method of workers that own partitions, so many of them, for which "auto" stands.

    Policy iteration saves loads. Where the caches of all workers hold the table there are none to save, and it
    evaluates the policy again after each message (a double pendulum of 64^4 states on four GPUs: p-eva 1.7 s, policy
    iteration not finished in 15 s). Where partitions read most of the others, one worker does as one process would.
    """
    if options.effective_method != "auto":
        return options.effective_method
    if facts.densely_coupled:
        rows = workers == 1 and options.device != "cpu" and options.device_memory is None
        return "policy-iteration" if rows else "p-eva"
    whole, largest = facts.table_bytes, facts.largest_table_bytes
    caches = workers * max(1, len(cuda_numbers(options.device)))
    fits = options.device_memory is None and caches * options.cache_size.resolve(whole, largest) >= whole
    return "policy-iteration" if facts.strongly_coupled and not fits else "p-eva"


def writing_bytes(table: Table) -> int:
    """What writing a checkpoint or a result takes: buffers, and the source's numbers and names of actions."""
    actions = 8 * table.n_states if "action_labels" in table.facts.dtypes else 0
    names = 4 * table.n_states if table.annotations.action_names else 0
    return min(16 * table.n_states, _WRITE_BUFFERS) + actions + names


def staging_depth(features: Features) -> int:
    """Partitions that are read at a time: half the cores, or all of them where sweeps need none."""
    cores = quotas.cores()
    return min(_MAX_STAGED, cores if features.overlaps_loads else max(2, cores // 2))
