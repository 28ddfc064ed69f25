"""The summary of a solve on stdout: the answer first, then what it cost, then what to do next.

Computes nothing: it renders the figures of `Solution.summary`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.solution import MAX_INITIAL, Outcome
from ooc_mdp.options import format_bytes
from ooc_mdp.report.cache_trace import order_is_fixed
from ooc_mdp.report.rows import print_rows
from ooc_mdp.report.workers_table import print_workers
from ooc_mdp.sizes import counted

__all__ = ["error_words", "gain_rows", "policy_words", "print_solution", "solution_rows"]

_ERRORS = {
    "value": "|V - V*| ≤ {} in every state",
    "stage_value": "|V - V*| ≤ {} in every stage and state",
    "gain": "|g - g*| ≤ {} in every state",
}
"""What an error bound says of each quantity that a certificate may bound."""
_MOST_INITIAL = 6
"""Initial states that have a row of their own."""
_SHOWN_SECONDS = 0.05
"""Of compiling, from which on they are shown."""
_LARGE_SHARE = 0.05
"""Of the range of the values: an error from there on is given as a share of it."""


def print_solution(
    figures: dict[str, Any],
    outcome: Outcome,
    output: Path | None,
    store: str | None = None,
    verbose: bool = False,
    *,
    trace: Path | None = None,
    simulate: Sequence[str] | None = None,
) -> None:
    """The summary of a solve.

    Parameters
    ----------
    output, trace : what the user named.
    store : likewise; None where no command can name it.
    verbose : whether all counters and the memory plan follow.
    simulate : options with which `ooc-mdp simulate` runs the policy; None where it cannot.
    """
    rows = [*solution_rows(figures, verbose), ("result", _result(figures, outcome, output))]
    if trace is not None:
        rows.append(("trace", _trace(figures["method"], trace)))
    if output is not None and outcome.proved and store is not None:
        rows.append(("next", _next_commands(store, output, simulate)))
    print_rows("", rows)
    if figures["workers"]:
        print_workers(figures["workers"])


def _result(figures: dict[str, Any], outcome: Outcome, output: Path | None) -> str:
    """Where the result is, or what there is in its place."""
    if output is None:
        return "not kept (name one with --output)"
    if outcome.proved:
        return str(output)
    earlier = f"the earlier one, {output}, is as it was" if output.exists() else "none"
    if figures["checkpoint"] is None:
        return f"{earlier}, and no checkpoint"
    return f"{earlier}; the checkpoint is {figures['checkpoint']}"


def _trace(method: str, trace: Path) -> str:
    """Where the trace is, and what reads it."""
    if order_is_fixed(method):
        return f"{trace}; {shlex.join(['ooc-mdp', 'cache-curve', str(trace)])}"
    return (
        f"{trace}; its accesses depend on the size of the cache: ooc-mdp cache-sweep solves with other sizes, "
        f"cache-curve replays these with --same-accesses"
    )


def _next_commands(store: str, output: Path, simulate: Sequence[str] | None) -> str:
    commands = [["report", str(output)], ["verify", store, str(output)]]
    commands += [] if simulate is None else [["simulate", str(output), *simulate]]
    return "; ".join(shlex.join(["ooc-mdp", *words]) for words in commands)


def solution_rows(figures: dict[str, Any], verbose: bool = False) -> list[tuple[str, str]]:
    """The answer, and what it cost."""
    share = figures["cache_bytes"] / max(figures["table_bytes"], 1)
    return [
        *_answer_rows(figures, verbose),
        *_value_row(figures),
        ("policy", policy_words(figures) or _loss(figures)),
        ("method", f"{figures['method']} on {figures['device']}, {_asked(figures)}"),
        ("table", f"{counted(figures['n_states'], 'state')}, {counted(figures['n_partitions'], 'partition')}, "
                  f"{format_bytes(figures['table_bytes'])}; cache {format_bytes(figures['cache_bytes'])}"
                  + (f" ({share:.0%})" if 0.01 <= share < 1 else "")),
        ("loads", f"{figures['loads']:,} = {figures['loads_per_partition']:.2f} per partition; "
                  f"hit rate {figures['hit_rate']:.1%}; {_where_from(figures)}"),
        ("time", _time(figures)),
        *(_details(figures) if verbose else []),
    ]  # fmt: skip


def _answer_rows(figures: dict[str, Any], verbose: bool) -> list[tuple[str, str]]:
    """What is proved, and the answer at the initial states; in front of it where the question is about this number."""
    proved = figures["outcome"] == Outcome.PROVED.value
    proof = [("PROVED" if proved else "STOPPED", _error(figures))]
    if verbose or not proved:
        proof.append(("outcome", f"{figures['outcome']}: {figures['message']}"))
    answer = [*gain_rows(figures), *_initial_rows(figures["initial"])]
    return [*answer, *proof] if figures["quantity"] == "gain" or "goal" in figures else [*proof, *answer]


def _error(figures: dict[str, Any]) -> str:
    """What is proved, next to what was asked for; as a share of the range of the values where it is a large one."""
    bound = figures["error_bound"]
    if bound is None:
        yet = "" if figures["outcome"] == Outcome.PRECISION_LIMIT.value else " yet"
        return f"nothing is proved{yet} (target: {_target(figures)})"
    words, spread = error_words(figures, figures["quantity"], f"{bound:.3e}"), _value_range(figures)
    if spread and bound >= _LARGE_SHARE * spread:
        words += f", {bound / spread:.0%} of the value range" if bound < spread else ", more than the value range"
    return f"{words} (target: {_target(figures)})"


def _value_range(figures: dict[str, Any]) -> float:
    """Largest less least value; 0 where that is not known, or the values are relative."""
    least, largest = figures["value_min"], figures["value_max"]
    if figures["quantity"] == "gain" or least is None or largest is None:
        return 0.0
    return float(largest - least)


def _value_row(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Least, mean and largest value; nothing of relative values, and of a solve that has not read anything."""
    names = ("min", "mean", "max")
    found = {name: figures[f"value_{name}"] for name in names}
    if figures["quantity"] == "gain" or figures["error_bound"] is None or None in found.values():
        return []
    return [("values", ", ".join(f"{name} {value:.6g}" for name, value in found.items()))]


def _initial_rows(answers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The answer at the initial states, one row each; the range of them where there are many."""
    if len(answers) <= _MOST_INITIAL:
        return [
            (
                "initial",
                f"{float(each['value']):.12g} in {_interval(each['lower'], each['upper'])}, state {each['state']}",
            )
            for each in answers
        ]
    low, high = min(float(each["lower"]) for each in answers), max(float(each["upper"]) for each in answers)
    many = f"the first {MAX_INITIAL:,}" if len(answers) == MAX_INITIAL else f"{len(answers)}"
    return [("initial", f"in {_interval(low, high)}, {many} initial states")]


def _interval(low: float | str, high: float | str) -> str:
    """Of 12 digits, rounded outward."""
    return f"[{_twelve_digits(float(low), ROUND_FLOOR)}, {_twelve_digits(float(high), ROUND_CEILING)}]"


def _twelve_digits(x: float, rounding: str) -> str:
    if x == 0 or not math.isfinite(x):
        return f"{x:.12g}"
    exact = Decimal(x)
    mantissa, exponent = f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 11), rounding):.11e}".split("e")
    if -5 < int(exponent) < 12:
        mantissa = f"{Decimal(mantissa).scaleb(int(exponent)):f}"
    digits = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return digits if -5 < int(exponent) < 12 else f"{digits}e{int(exponent):+03d}"


def _loss(figures: dict[str, Any]) -> str:
    most = figures["policy_loss_bound"]
    return "no bound on what it loses is known" if most is None else f"loses at most {most:.3e}"


def error_words(figures: dict[str, Any], quantity: str, bound: str) -> str:
    """What an error bound says: of the best value, or of that of a given policy."""
    words = _ERRORS[quantity].format(bound)
    return words.replace("*", "_π") if EVALUATED in figures else words


def policy_words(figures: dict[str, Any]) -> str | None:
    """Of which given policy the value is; None where it is that of the best one."""
    digest = figures.get(EVALUATED)
    return None if digest is None else f"value of the given policy π (SHA-256 {digest}); no other was compared with it"


def _asked(figures: dict[str, Any]) -> str:
    if figures["quantity"] == "gain":
        return "average reward"
    if "goal" in figures:
        return f"goal {figures['goal']}"
    if figures["criterion"] == "total":
        return "total reward"
    return ", ".join(
        [*([f"{figures['stages']} stages"] if "stages" in figures else []), f"discount {figures['discount']}"]
    )


def gain_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Of an average reward, between which numbers it lies; with all digits, since fewer would be others."""
    if "gain_lower" not in figures:
        return []
    low, high = figures["gain_lower"], figures["gain_upper"]
    if low is None or high is None:
        return [("gain", "unknown")]
    return [("gain", f"between {low!r} and {high!r} in every state")]


def _target(figures: dict[str, Any]) -> str:
    kind = "plain residual " if figures["stopping_rule"] == "residual" else ""
    target = figures["target"]
    return f"{kind}{'unlimited' if target is None else f'{target:.1e}'}"


def _where_from(figures: dict[str, Any]) -> str:
    """What loading took: bytes of a store; nothing is read of tables that are recomputed."""
    if figures["source"] == "recomputed":
        return "tables recomputed, nothing read"
    return f"{format_bytes(figures['bytes_read'])} read"


def _time(figures: dict[str, Any]) -> str:
    """Seconds of work and, where there were some, of compiling and of loading."""
    parts = [f"{figures['solve_seconds']:.1f} s solving"]
    if figures["compile_seconds"] is not None and figures["compile_seconds"] >= _SHOWN_SECONDS:
        parts.append(f"{figures['compile_seconds']:.1f} s compiling (the first time only)")
    loading = "recomputing tables" if figures["source"] == "recomputed" else "reading and decoding"
    return ", ".join([*parts, f"{figures['load_seconds']:.1f} s of all threads in {loading}"])


def _details(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """All counters, and the memory plan."""
    auxiliary = f" and {figures['auxiliary_accesses']:,} auxiliary" if figures["auxiliary_accesses"] else ""
    bound, held = figures["residual_bound"], format_bytes(figures["cache_peak_bytes"])
    rows = [
        ("residual", "unknown" if bound is None else f"≤ {bound:.3e}"),
        ("cache", f"{figures['accesses']:,} accesses{auxiliary}; {held} held at most; "
                  f"{counted(figures['partitions_unread'], 'partition')} never read"),
        ("bytes", f"{format_bytes(figures['bytes_read'])} read, {format_bytes(figures['bytes_decoded'])} decoded"),
        ("work", f"{figures['visits']:,} visits, {figures['sweeps']:,} sweeps, {figures['backups']:,} backups, "
                 f"{figures['policy_evaluations']:,} evaluations of policies"),
    ]  # fmt: skip
    for place, buffers in figures["memory_plan"].items():
        if buffers:
            parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in buffers.items())
            rows.append(("memory", f"{place}: {format_bytes(sum(buffers.values()))} planned: {parts}"))
    return rows
