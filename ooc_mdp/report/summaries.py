"""Summaries of solves, stores, verifications and kernels on stdout. Computes nothing: it renders what it is given."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import starmap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.solution import MAX_INITIAL, Outcome
from ooc_mdp.options import format_bytes
from ooc_mdp.quoting import printable
from ooc_mdp.report.rows import print_rows

__all__ = [
    "print_checkpoint",
    "print_inspection",
    "print_kernels",
    "print_result",
    "print_returns",
    "print_solution",
    "print_verification",
]

_ERRORS = {
    "value": "|V - V*| ≤ {} in every state",
    "stage_value": "|V - V*| ≤ {} in every stage and state",
    "gain": "|g - g*| ≤ {} in every state",
}
"""What an error bound says of each quantity that a certificate may bound."""
_MOST_INITIAL = 6
"""Initial states that have a row of their own."""
_FILE_WIDTH = 160
"""Columns of a table that goes to a file or pipe."""


def print_solution(figures: dict[str, Any], outcome: Outcome, output: Path | None) -> None:
    """The summary of a solve, from `Solution.summary`; `output` is what the user named."""
    message, result = _message(figures, outcome), str(output)
    if output is None:
        result = "not kept (name one with --output)"
        if outcome in (Outcome.TIME_LIMIT, Outcome.INTERRUPTED, Outcome.WORKERS_LOST):
            message = message.partition(";")[0]
    elif not outcome.proved:
        checkpoint = output.with_name(output.name + ".checkpoint")
        result = f"none yet; the checkpoint is {checkpoint}"
        if not checkpoint.exists():
            message, result = message.partition(";")[0], "none, and no checkpoint: nothing to continue from yet"
    print_rows("", [*_initial_rows(figures["initial"]), *_solution_rows(figures, message), ("result", result)])
    if figures["workers"]:
        print_workers(figures["workers"])


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


def print_result(facts: dict[str, Any], option: str) -> None:
    """What a result proves and where it came from, from `inspect_result`; `option` asks for what it answers."""
    message = next(outcome.message for outcome in Outcome if outcome.value == facts["outcome"])
    rows = [("question", option), *_solution_rows(facts, message)]
    rows.append(
        ("solved from", f"the store {facts['store']}, {facts['sense']}imise, fingerprint {facts['fingerprint']}")
    )
    rows.append(("written", f"{facts['written']} by version {facts['version']}"))
    if facts["geometry"]:
        rows.append(("geometry", _geometry(facts["geometry"])))
    print_rows(f"{facts['path']}: the result of a solve", [*rows, *_origin(facts["provenance"])])
    if facts["workers"]:
        print_workers(facts["workers"])


def print_checkpoint(facts: dict[str, Any], option: str) -> None:
    """What a checkpoint belongs to, from `inspect_checkpoint`, and how its solve continues: `option` asks for it."""
    identity, statistics = facts["identity"], facts["statistics"]
    rows = [
        ("continue with", f"ooc-mdp solve STORE {option} --output {facts['output']} --resume"),
        *((name, str(value)) for name, value in identity.items()),
        ("written", facts["written"]),
        *((name, str(value)) for name, value in statistics.items() if name != "workers"),
    ]
    print_rows(f"{facts['path']}: the checkpoint of a solve", rows)


def _solution_rows(figures: dict[str, Any], message: str) -> list[tuple[str, str]]:
    """What was proved and what it cost, from `Solution.summary`."""

    def bound(name: str) -> str:
        return "unknown" if figures[name] is None else f"{figures[name]:.3e}"

    stages = f"{figures['stages']} stages, " if "stages" in figures else ""
    return [
        *_gain(figures),
        ("outcome", f"{figures['outcome']}: {message}"),
        ("method", f"{figures['method']} on {figures['device']}, {stages}{_asked(figures)}"),
        ("error", f"{_error(figures, figures['quantity'], bound('error_bound'))} (target: {_target(figures)})"),
        ("policy", _policy(figures) or _loss(figures)),
        ("residual", f"≤ {bound('residual_bound')}"),
        ("table", f"{figures['n_states']:,} states, {figures['n_partitions']:,} partitions, "
                  f"{format_bytes(figures['table_bytes'])}; cache {format_bytes(figures['cache_bytes'])}"),
        ("loads", f"{figures['loads']:,} = {figures['loads_per_partition']:.2f} per partition; "
                  f"{figures['partitions_unread']:,} partitions never read"),
        ("cache", f"hit rate {figures['hit_rate']:.1%} of {figures['accesses']:,} accesses"
                  + (f" and {figures['auxiliary_accesses']:,} auxiliary" if figures["auxiliary_accesses"] else "")),
        _where_from(figures),
        ("work", f"{figures['visits']:,} visits, {figures['sweeps']:,} sweeps, {figures['backups']:,} backups, "
                 f"{figures['solve_seconds']:.1f} s"),
    ]  # fmt: skip


def _loss(figures: dict[str, Any]) -> str:
    most = figures["policy_loss_bound"]
    return "what it loses is not bounded" if most is None else f"loses at most {most:.3e}"


def _error(figures: dict[str, Any], quantity: str, bound: str) -> str:
    """What an error bound says: of the best value, or of that of a given policy."""
    words = _ERRORS[quantity].format(bound)
    return words.replace("*", "_π") if EVALUATED in figures else words


def _policy(figures: dict[str, Any]) -> str | None:
    """Of which given policy the value is; None where it is that of the best one."""
    digest = figures.get(EVALUATED)
    return None if digest is None else f"value of the given policy π (SHA-256 {digest}); no other was compared with it"


def _asked(figures: dict[str, Any]) -> str:
    return "average reward" if figures["quantity"] == "gain" else f"discount {figures['discount']}"


def _gain(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Of an average reward, between which numbers it lies; with all digits, since fewer would be others."""
    if "gain_lower" not in figures:
        return []
    low, high = figures["gain_lower"], figures["gain_upper"]
    if low is None or high is None:
        return [("gain", "unknown")]
    return [("gain", f"between {low!r} and {high!r} in every state")]


def _message(figures: dict[str, Any], outcome: Outcome) -> str:
    """What the outcome means, and what to try next; with the least target where the one that was given is below it."""
    least = figures["least_target"]
    if least is None:
        return outcome.message
    option = "--residual" if figures["stopping_rule"] == "residual" else "--epsilon"
    return f"{outcome.message.partition(';')[0]}; the least that is possible is {option} {least:g}"


def print_workers(workers: list[dict[str, Any]]) -> None:
    """What each of several workers did, a line each."""
    table = Table(box=None, pad_edge=False)
    staged = any(w["bytes_staged"] or w["bytes_read_shared"] for w in workers)
    staging = ("staged", "read staged", "read shared") if staged else ()
    for title in ("worker", "on", "partitions", "loads", "read", "hit rate", "idle", "messages", "sent", *staging):
        table.add_column(title, justify="left" if title in ("worker", "on") else "right")
    for w in workers:
        table.add_row(
            f"{w['worker']}{' (lost)' if w['lost'] else ''}",
            printable(f"{w['host']} {w['device']}"),
            f"{w['partitions']:,}",
            f"{w['loads']:,}",
            format_bytes(w["bytes_read"]),
            f"{w['hit_rate']:.1%}",
            f"{w['idle_seconds']:.1f} s",
            f"{w['messages']:,}",
            format_bytes(w["bytes_sent"]),
            *(format_bytes(w["bytes_" + title.replace(" ", "_")]) for title in staging),
        )
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    console.print(table)


def print_kernels(kernels: list[dict[str, str]]) -> None:
    """What can sweep, a row each."""
    table = Table(box=None, pad_edge=False)
    for title in kernels[0]:
        table.add_column(title, no_wrap=title == "kernel", overflow="fold")
    for kernel in kernels:
        table.add_row(*kernel.values())
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    console.print(table)


def _where_from(figures: dict[str, Any]) -> tuple[str, str]:
    """What loading took: bytes of a store, or seconds of recomputing."""
    decoded = format_bytes(figures["bytes_decoded"])
    if figures["source"] == "recomputed":
        return "recomputed", f"{decoded} of tables in {figures['load_seconds']:.1f} s of all threads; nothing was read"
    return "bytes", f"{format_bytes(figures['bytes_read'])} read, {decoded} decoded"


def _target(figures: dict[str, Any]) -> str:
    kind = "plain residual " if figures["stopping_rule"] == "residual" else ""
    target = figures["target"]
    return f"{kind}{'unlimited' if target is None else f'{target:.1e}'}"


def print_inspection(facts: dict[str, Any]) -> None:
    """What a store holds, from `inspect_store`."""
    parts, halo, cut, coupling = facts["partitions"], facts["halo"], facts["cut"], facts["coupling"]
    leaving = "" if cut["share"] is None else f"; {cut['share']:.1%} of the transitions leave their partition"
    rows = [
        ("states", f"{facts['n_states']:,}, {facts['n_state_actions']:,} state-action pairs, "
                   f"{facts['n_transitions']:,} transitions; "
                   f"{facts['sense']}imise, {facts['dtype']}"),
        ("partitions", f"{facts['n_partitions']:,} ({facts['partitioning'].get('method', '')}), "
                       f"{_spread(parts['states'], str)} states, "
                       f"{_spread(parts['decoded_bytes'], format_bytes)} decoded"),
        ("halo", f"{halo['states']:,} states, {halo['share']:.1%} of all{leaving}"),
        ("coupling", f"{coupling['entries']:,} pairs of partitions, {coupling['density']:.1%} of all"),
        ("bytes", f"{format_bytes(facts['decoded_bytes'])} decoded, {format_bytes(facts['stored_bytes'])} stored"),
    ]  # fmt: skip
    for name, field in facts["fields"].items():
        ratio = field["decoded_bytes"] / max(field["stored_bytes"], 1)
        rows.append(
            (
                f"  {name}",
                f"{format_bytes(field['decoded_bytes'])} → {format_bytes(field['stored_bytes'])} ({ratio:.1f}x); "
                f"{field['decoded_bytes_per_transition']:.2f} → {field['stored_bytes_per_transition']:.2f} bytes a "
                f"transition" + (f", {field['encoding']}" if field["encoding"] else ""),
            )
        )
    rows.append(("order", facts["state_order"]))
    if facts["labels"]:
        rows.append(("labels", ", ".join(f"{name} ({count:,} states)" for name, count in facts["labels"].items())))
    if facts["variables"]:
        rows.append(("variables", ", ".join(starmap(_variable, facts["variables"].items()))))
    if facts["reward_models"]:
        own = facts["table_rewards"]
        named = (f"{name} (the table's)" if name == own else name for name in facts["reward_models"])
        rows.append(("reward models", ", ".join(named)))
    if facts["geometry"]:
        rows.append(("geometry", _geometry(facts["geometry"])))
    print_rows(facts["path"], [*rows, *_origin(facts["provenance"])])


def _variable(name: str, variable: dict[str, Any]) -> str:
    """A variable with its type and, of integers, its range."""
    return f"{name} (bool)" if variable["type"] == "bool" else f"{name} ({variable['low']} to {variable['high']})"


def _origin(provenance: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of a table's provenance, the source before what belongs to it."""
    rows = [("made from", str(provenance["source"]))] if "source" in provenance else []
    return [*rows, *((f"  {name}", str(value)) for name, value in provenance.items() if name != "source")]


def _geometry(geometry: dict[str, Any]) -> str:
    """Points along each axis with its name and bounds where they are known; whatever else there is, as it is."""
    axes: Any = geometry.get("axes")
    shape: Any = geometry.get("shape")
    known = isinstance(axes, list) and isinstance(shape, list) and 0 < len(shape) == len(axes)
    if not known or not all(isinstance(axis, dict) for axis in axes):
        return ", ".join(f"{k} {v}" for k, v in geometry.items() if k != "controls")
    return "; ".join(
        f"{a.get('name', i)} {a.get('low', '?')} to {a.get('high', '?')} {a.get('unit', '')}".rstrip()
        + f"{', periodic' if a.get('periodic') else ''}, {n} points"
        for i, (a, n) in enumerate(zip(axes, shape, strict=True))
    )


def _spread(numbers: dict[str, Any], show: Any) -> str:
    least, most = numbers["min"], numbers["max"]
    return f"{show(least)}" if least == most else f"{show(least)} to {show(most)}"


def print_verification(figures: dict[str, Any]) -> None:
    """What a verification measured, from `Verification.summary`."""
    error = _error(figures, "gain" if "gain_lower" in figures else "value", f"{figures['error_bound']:.3e}")
    verdict = "the certificate holds" if figures["holds"] else "THE CERTIFICATE DOES NOT HOLD"
    rows = [
        ("verdict", verdict),
        *_gain(figures),
        ("residual", f"{figures['residual']:.3e}, measured over all states"),
        ("error", f"{error} (certificate: {figures['claimed_bound']:.3e})"),
        *([("value", text)] if (text := _policy(figures)) else []),
        ("policy", f"{figures['invalid_policy_states']:,} entries are no action of their state"),
        *([("violated", ", ".join(figures["violated_claims"]))] if figures["violated_claims"] else []),
        ("read", format_bytes(figures["bytes_read"])),
    ]
    print_rows("", rows)


def print_returns(figures: dict[str, Any]) -> None:
    """What runs of a policy earned, from `Returns.summary`."""
    low, high = figures["interval"]
    solved = figures["solved"]
    between = f"between {solved['lower']} and {solved['upper']}"
    rows = [
        ("mean", f"{figures['mean']:.8g}, standard error {figures['standard_error']:.3g} ({figures['quantity']})"),
        ("interval", f"{low:.8g} to {high:.8g} (95%)"),
        ("solved", f"{solved['value']:.8g}, {between}" if isinstance(solved["value"], float) else solved["value"]),
        ("runs", f"{figures['runs']:,} of at most {figures['steps']:,} steps, {figures['mean_steps']:,.1f} on average"),
        ("ended", f"{figures['ended']:,} runs; of the mean {figures['remaining']:.6g} is the value of last states"),
        ("loads", f"{figures['loads']:,} partitions"),
    ]
    print_rows("", rows)
