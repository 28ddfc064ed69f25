"""Stores of models in memory or in a file: `from_arrays`, `from_gymnasium`, and `open_model`."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from ooc_mdp.arguments import ARRAYS, FLAG, FUNCTION, PATH, TEXT, Kind, check_types, described, is_array_like, maybe
from ooc_mdp.errors import OptionsError
from ooc_mdp.table_options import TableKeywords, options_of, with_table_keywords
from ooc_mdp.tables import AnyPath, convert, open_store

if TYPE_CHECKING:
    from ooc_mdp.events import Watcher
    from ooc_mdp.io.arrays.memory import Terminal
    from ooc_mdp.io.given_annotations import GivenStates, GivenValues
    from ooc_mdp.io.recomputed_table import RecomputedTable
    from ooc_mdp.store import Store
    from ooc_mdp.store.reward_store import RewardStore

__all__ = ["Arrays", "from_arrays", "from_gymnasium", "is_array", "open_model", "rewards_apart", "stored_at"]

TERMINAL = Kind(
    lambda value: isinstance(value, Mapping | Set | Sequence | np.ndarray) and not isinstance(value, str | bytes),
    "a list of states, or a dict of their values",
)
ENVIRONMENT = Kind(
    lambda value: hasattr(value, "unwrapped") or hasattr(value, "P"),
    "an environment, such as gymnasium.make('FrozenLake-v1')",
)
LABELS = Kind(lambda value: isinstance(value, Mapping), "a dict of states by name")
NAMES = Kind(lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes), "a list of names")
VARIABLES = Kind(lambda value: isinstance(value, Mapping), "a dict of arrays by name")
Arrays = np.ndarray[Any, Any] | Sequence[Any]
"""P or R: an array, a SciPy matrix, or a list of them."""


def is_array(value: Any) -> bool:
    """Whether a value is P of a model in memory, rather than a table or a path."""
    return isinstance(value, list) or is_array_like(value)


def _plain(value: Any) -> Any:
    """Arrays of other packages, such as a DataFrame, as NumPy's, by position; what else is given as it is."""
    if isinstance(value, list | tuple):
        return [_plain(each) if is_array_like(each) else each for each in value]
    foreign = is_array_like(value) and not isinstance(value, np.ndarray) and not hasattr(value, "tocsr")
    return np.asarray(value) if foreign else value


def rewards_apart(table: Any, second: Any, third: Any) -> tuple[Any, Any]:
    """R and the criterion of ``solve(table, second, third)``: after P comes R, after any other table the criterion.

    Raises
    ------
    OptionsError : P is given without an array of rewards, or two things follow another table.
    """
    if not is_array(table):
        if is_array(second):
            raise OptionsError(
                f"solve: criterion is an array (of type {type(second).__name__}), and the table {described(table)} has "
                "rewards of its own; for others give solve(ooc_mdp.with_rewards(table, R, 'NAME.store'), discount=0.9)"
            )
        if third is not None:
            raise OptionsError(
                f"arrays_criterion is {described(third)}, which comes after arrays P and R, and the table is "
                f"{described(table)}; give solve(table, FiniteHorizon(40))"
            )
        return None, second
    if not is_array(second):
        raise OptionsError(
            f"solve: table is {described(table)}, but {described(second)} follows it, which is no array of rewards; "
            "give solve(P, R, discount=0.9), or with another criterion solve(P, R, FiniteHorizon(40))"
        )
    return second, third


@with_table_keywords
@check_types(
    P=ARRAYS,
    R=ARRAYS,
    s_indices=maybe(ARRAYS),
    a_indices=maybe(ARRAYS),
    layout=maybe(TEXT),
    terminal=maybe(TERMINAL),
    labels=maybe(LABELS),
    variables=maybe(VARIABLES),
    action_names=maybe(NAMES),
    normalize=FLAG,
    path=maybe(PATH),
    overwrite=FLAG,
    progress=maybe(FUNCTION),
)
def from_arrays(
    P: Any,
    R: Any,
    *,
    s_indices: Any = None,
    a_indices: Any = None,
    layout: Literal["action-first", "state-first"] | None = None,
    terminal: Terminal = None,
    labels: Mapping[str, GivenStates] | None = None,
    initial: int | GivenStates | None = None,
    variables: Mapping[str, GivenValues] | None = None,
    action_names: Sequence[str] | None = None,
    normalize: bool = False,
    path: AnyPath | None = None,
    overwrite: bool = False,
    progress: Watcher | None = None,
    **table: Unpack[TableKeywords],
) -> Store:
    """Build a store from arrays in memory, for :func:`solve` and :func:`verify`.

    Parameters
    ----------
    P : probabilities: an array (actions, states, states) or (states, actions, states), or a list of matrices along its
        first axis, dense or SciPy sparse; or (pairs, states) with `s_indices` and `a_indices`. The last axis is the
        next state. Arrays of other packages that NumPy reads, such as a pandas DataFrame, are read by
        position, whatever their labels. A row that is None, in nested lists, is of an action that is not available.
    R : rewards: (states,), r(s); (states, actions), r(s,a), or (pairs,); or in the layout of P, r(s,a,s'). None, or
        -inf as r(s,a) (inf where the sense is "min"), is of an action that is not available, whose row of P is not
        read.
    s_indices, a_indices : state and action of each row of P, in any order.
    layout : "action-first" or "state-first"; needed where there are as many actions as states.
    terminal : states where the process ends, all that have no available action; a dict gives their values, 0 else or
        r(s). Rows of P of a terminal state are zeros or stay there, and their rewards are 0.
    labels : for each name the states that have it: their numbers, a mask (states,), or a function of an int64 array of
        states that returns a bool for each. What questions about goals name.
    initial : the initial states, likewise, or one number; their label is "init".
    variables : for each name the values that a state variable has, integers, bools, floats or texts (states,), or a
        function of an int64 array of states that returns theirs: questions about goals compare them, as
        'x = 3 & !done & speed < 0.5 & mode = "idle"'.
    action_names : a name for each number of an action, which `Solution.action_names` and exports have for the policy.
    normalize : divide rows by their sums instead of refusing those that do not sum to 1 within 1e-6.
    path : directory of the store; None for a temporary one, which is removed when the store is no longer used.
    overwrite : replace an existing store.
    progress : called with (what, done, of how many).
    **table : see `ooc_mdp.table_options`.

    Returns
    -------
    Store : where some actions are not available, ``Solution.actions`` has the actions by the numbers of P.

    Raises
    ------
    InputError : a shape, index or number of the arrays breaks a rule.
    OptionsError : options contradict each other or the arrays.
    StoreError : the store exists, is in use or cannot be written.
    MemoryBudgetError : partitions under way take more than the RAM that is available.
    """
    from ooc_mdp.io.arrays.memory import ArrayModel, open_arrays
    from ooc_mdp.io.conversion import convert as convert_source
    from ooc_mdp.io.given_annotations import GivenAnnotations
    from ooc_mdp.io.source import ReadOptions

    options = options_of(table, default_dtype="float64", overwrite=overwrite)
    sense = options.sense or "max"
    model = ArrayModel(
        _plain(P),
        _plain(R),
        s_indices,
        a_indices,
        layout,
        terminal,
        sense,
        GivenAnnotations(labels, initial, variables),
        action_names,
    )
    source = open_arrays(model, ReadOptions(normalize=normalize))
    provenance = {"normalize": normalize}
    build = partial(convert_source, source, options=options, provenance=provenance, progress=progress)
    return stored_at(path, "the table of P and R", build)


@with_table_keywords
@check_types(
    env=ENVIRONMENT,
    normalize=FLAG,
    path=maybe(PATH),
    overwrite=FLAG,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def from_gymnasium(
    env: Any,
    *,
    normalize: bool = False,
    path: AnyPath | None = None,
    overwrite: bool = False,
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
    **table: Unpack[TableKeywords],
) -> Store:
    """Build a store from the transition table P of a Gymnasium environment.

    Parameters
    ----------
    env : an environment whose ``unwrapped`` has P, such as FrozenLake, CliffWalking or Taxi; it is not stepped, and
        stays open. Wrappers such as TimeLimit do not matter; those that change rewards or actions are refused.
        P[s][a] is a list of (probability, next state, reward, done); an action that is missing or None, or whose
        rewards are -inf (inf where the sense is "min"), is not available.
    note : called with what the environment has and the store does not keep, and with the memory plan.
    normalize, path, overwrite, progress : as for :func:`from_arrays`.
    **table : see `ooc_mdp.table_options`.

    Returns
    -------
    Store : with one more state, the last, where an episode ends in a state that it could also go on from.

    Raises
    ------
    InputError : the environment has no table P, or one that breaks a rule.
    OptionsError : options contradict each other.
    StoreError : the store exists, is in use or cannot be written.
    """
    from ooc_mdp.io.conversion import convert as convert_source
    from ooc_mdp.io.gymnasium import environment_name, open_environment
    from ooc_mdp.io.source import ReadOptions

    options = options_of(table, default_dtype="float64", overwrite=overwrite)
    source = open_environment(env, ReadOptions(normalize=normalize, sense=options.sense or "max"))
    provenance = {"normalize": normalize}
    build = partial(convert_source, source, options=options, provenance=provenance, progress=progress, note=note)
    store = stored_at(path, f"the table of {environment_name(env)}", build)
    left_out = source.left_out.sentence(source.path)
    if note is not None and left_out is not None:
        note(left_out)
    return store


def stored_at(path: AnyPath | None, name: str, build: Callable[[Path], Store]) -> Store:
    """Build a store at a path; at None in a temporary directory, which is removed when the store is no longer used.

    Parameters
    ----------
    name : what messages and reports call a temporary store, whose place no user has chosen.
    """
    if path is not None:
        return build(Path(path))
    folder = tempfile.mkdtemp(prefix="ooc-mdp-")
    try:
        built = build(Path(folder) / "table.store")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    store = replace(built, facts=replace(built.facts, name=name))
    weakref.finalize(store.directory, _remove, folder, os.getpid())  # which other views of the store hold as well
    return store


def open_model(
    path: AnyPath, *, trust: bool = False, note: Callable[[str], None] | None = None
) -> Store | RewardStore | RecomputedTable:
    """`open_store`; of a model file, :func:`~ooc_mdp.convert` makes a temporary store, removed when it is unused."""
    if not Path(path).is_file():
        return open_store(path, trust=trust, note=note)
    store = stored_at(None, os.fspath(path), partial(convert, path))
    if note is not None:
        note(f"{path} was converted to a temporary store; keep one with ooc-mdp convert {path} STORE")
    return store


def _remove(folder: str, owner: int) -> None:
    """Remove a temporary store, but not from a process that was forked from its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
