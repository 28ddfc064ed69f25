"""What a report states in words: outcome, certificate, time, workers, provenance. Texts only, nothing is drawn."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np

from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.statistics import WorkerStatistics
from ooc_mdp.options import format_bytes
from ooc_mdp.report.html.section import Row, Section, Table
from ooc_mdp.store.result import Result

__all__ = [
    "certificate_section",
    "headline",
    "provenance_section",
    "rows",
    "value_range",
    "warnings",
    "workers_section",
]

_USELESS_SHARE = 0.01
"""An error bound above this share of the value range is called large."""
_PROVED = {
    "value": "|V - V*| is at most {} in every state",
    "stage_value": "|V - V*| is at most {} in every stage and state",
    "gain": "|g - g*| is at most {} in every state",
}
"""What an error bound says of each quantity that a certificate may bound."""
_HEADLINES = {
    Outcome.PROVED: "PROVED",
    Outcome.RESIDUAL_REACHED: "RESIDUAL REACHED",
    Outcome.TIME_LIMIT: "STOPPED AT THE TIME LIMIT",
    Outcome.INTERRUPTED: "INTERRUPTED",
    Outcome.WORKERS_LOST: "STOPPED, NO WORKER WAS LEFT",
    Outcome.PRECISION_LIMIT: "STOPPED AT THE PRECISION LIMIT",
    Outcome.GAIN_DIFFERS: "THE GAIN DIFFERS BETWEEN STATES",
}


def _bound(x: float | None) -> str:
    return "unknown" if x is None or not math.isfinite(x) else f"{x:.3g}"


def value_range(solution: Solution) -> tuple[float, float] | None:
    """Least and largest finite value; None where there is none."""
    finite = solution.values[np.isfinite(solution.values)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def headline(solution: Solution) -> tuple[str, str, str]:
    """The outcome in a few words, what it proves in a sentence, and "good", "doubtful" or "bad"."""
    c, outcome = solution.certificate, solution.outcome
    if not math.isfinite(c.error_bound):
        return _HEADLINES[outcome], "No bound on the error of the values is proved.", "bad"
    proved = _proved(solution, f"{c.error_bound:.3g}")
    known = value_range(solution)
    if solution.gain is not None:
        proved = f"the gain is between {solution.gain[0]!r} and {solution.gain[1]!r} in every state"
    elif known is not None and known[1] > known[0]:
        proved += f", {c.error_bound / (known[1] - known[0]):.2g} of the range of the values"
    tone = "good" if outcome is Outcome.PROVED else "doubtful"
    return _HEADLINES[outcome], f"{proved} (target: {c.stopping_rule} {_bound(c.target)}).", tone


def warnings(solution: Solution) -> tuple[str, ...]:
    """What a reader should know before the values are used, a sentence each."""
    found, c = [], solution.certificate
    known = value_range(solution)
    if solution.outcome is not Outcome.PROVED:
        found.append(f"The outcome is {solution.outcome.value}: {solution.message}.")
    if (
        solution.gain is None
        and known is not None
        and c.error_bound > _USELESS_SHARE * max(known[1] - known[0], math.ulp(0.0))
    ):
        found.append(
            f"The error bound {_bound(c.error_bound)} is more than {_USELESS_SHARE:.0%} of the range of the values, "
            f"{known[1] - known[0]:.3g}."
        )
    lost = sum(worker.lost for worker in solution.statistics.workers)
    if lost:
        found.append(f"{lost} of {len(solution.statistics.workers)} workers were lost; others took their partitions.")
    return tuple(found)


def rows(summary: dict[str, Any]) -> list[Row]:
    """The figures at the top of the page, from `Solution.summary`."""
    recomputed = summary["source"] == "recomputed"
    return [
        Row("error bound", _bound(summary["error_bound"])),
        Row("policy loss bound", _bound(summary["policy_loss_bound"])),
        *([Row("stages", f"{summary['stages']:,}")] if "stages" in summary else []),
        Row("discount", f"{summary['discount']:g}" if summary["quantity"] != "gain" else "none: the average reward"),
        Row("states", f"{summary['n_states']:,}"),
        Row("partitions", f"{summary['n_partitions']:,}"),
        Row("loads per partition", f"{summary['loads_per_partition']:.2f}"),
        Row("hit rate", f"{summary['hit_rate']:.1%}"),
        Row("recomputed", format_bytes(summary["bytes_decoded"]))
        if recomputed
        else Row("read", format_bytes(summary["bytes_read"])),
        Row("cache", _cache(summary)),
        Row("time", f"{summary['solve_seconds']:.1f} s"),
        Row("method", summary["method"]),
        Row("device", summary["device"]),
    ]


def _cache(summary: dict[str, Any]) -> str:
    share = summary["cache_bytes"] / summary["table_bytes"] if summary["table_bytes"] else 1.0
    return f"{format_bytes(summary['cache_bytes'])} ({min(share, 1.0):.0%} of the table)"


def _proved(solution: Solution, bound: str) -> str:
    """What an error bound says: of the best value, or of that of a given policy."""
    words = _PROVED[solution.certificate.quantity].format(bound)
    return words.replace("*", "_π") if EVALUATED in solution.criterion else words


def _policy(solution: Solution) -> Row:
    digest = solution.criterion.get(EVALUATED)
    if digest is None:
        lost = _bound(solution.certificate.policy_loss_bound)
        return Row("policy loss bound", f"the greedy policy loses at most {lost}")
    return Row("policy", f"V_π is the value of the given policy π, of SHA-256 {digest}; no other was compared with it")


def _interval(solution: Solution) -> Row:
    c = solution.certificate
    if c.quantity == "gain":
        return Row("gain", f"between {c.lower!r} and {c.upper!r} in every state")
    value = "V_π" if EVALUATED in solution.criterion else "V*"
    between = f"between {c.error_lower:.3g} and {c.error_upper:.3g}"
    return Row("error interval", f"{value} - V is {between} (of a maximisation)")


def certificate_section(result: Result, store: str | None) -> Section:
    """What is proved, and the command that proves it again."""
    c = result.solution.certificate
    shown = [
        Row("error bound", _proved(result.solution, _bound(c.error_bound))),
        _interval(result.solution),
        Row("residual bound", f"the plain Bellman residual is at most {_bound(c.residual_bound)}"),
        Row("rounding bound", f"{_bound(c.rounding_bound)} of the error bound is an allowance for float64 rounding"),
        _policy(result.solution),
        Row("target", f"{c.stopping_rule} {_bound(c.target)}"),
        Row("proof", c.proof),
    ]
    known = value_range(result.solution)
    if known is not None:
        shown.append(Row("values", f"from {known[0]:.6g} to {known[1]:.6g}"))
    fingerprint = result.identity.get("fingerprint")
    if fingerprint:
        shown.append(Row("fingerprint of the table", str(fingerprint)))
    written = result.path.exists()
    named = shlex.quote(store or "STORE")
    return Section(
        "Certificate",
        "Data: the certificate of the result.",
        ("To measure the residual again from the table alone:",) if written else (),
        tuple(shown),
        f"ooc-mdp verify {named} {shlex.quote(str(result.path))}" if written else "",
    )


def workers_section(workers: list[WorkerStatistics]) -> Section:
    """What each worker did."""
    title, source = "Workers", "Data: the statistics of the result."
    if not workers:
        return Section(title, source, ("The solve ran in one process, without workers.",))
    header = ("worker", "on", "partitions", "loads", "read", "hit rate", "backups", "idle", "messages", "sent")
    return Section(
        title,
        source,
        table=Table(
            header,
            tuple(
                (
                    f"{w.worker}{' (lost)' if w.lost else ''}",
                    f"{w.host} {w.device}",
                    f"{w.partitions:,}",
                    f"{w.loads:,}",
                    format_bytes(w.bytes_read),
                    f"{w.hit_rate:.1%}",
                    f"{w.backups:,}",
                    f"{w.idle_seconds:.1f} s",
                    f"{w.messages:,}",
                    format_bytes(w.bytes_sent),
                )
                for w in workers
            ),
        ),
    )


def provenance_section(result: Result) -> Section:
    """Where the table came from."""
    source = "Data: the provenance of the table, which the result carries."
    if not result.provenance:
        return Section("Provenance", source, ("The table's provenance is not recorded.",))
    first = [Row("source", str(result.provenance["source"]))] if "source" in result.provenance else []
    rest = [Row(name, _plain(value)) for name, value in result.provenance.items() if name != "source"]
    return Section("Provenance", source, rows=(*first, *rest))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    return str(value)
