"""Summaries of solves, stores, verifications and kernels on stdout. Computes nothing: it renders what it is given."""

from __future__ import annotations

from itertools import starmap
from typing import Any

from rich.console import Console
from rich.table import Table

from ooc_mdp.options import format_bytes
from ooc_mdp.quoting import listed, quote
from ooc_mdp.report.rows import FILE_WIDTH, print_rows
from ooc_mdp.report.solve_summary import error_words, gain_rows, policy_words, solution_rows
from ooc_mdp.report.workers_table import print_workers
from ooc_mdp.sizes import counted

__all__ = [
    "print_checkpoint",
    "print_inspection",
    "print_kernels",
    "print_result",
    "print_returns",
    "print_verification",
]


def print_result(facts: dict[str, Any], option: str) -> None:
    """What a result proves and where it came from, from `inspect_result`; `option` asks for what it answers."""
    rows = [("question", option), *solution_rows(facts, verbose=True)]
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


def print_kernels(kernels: list[dict[str, str]]) -> None:
    """What can sweep, a row each."""
    table = Table(box=None, pad_edge=False)
    for title in kernels[0]:
        table.add_column(title, no_wrap=title == "kernel", overflow="fold")
    for kernel in kernels:
        table.add_row(*kernel.values())
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    console.print(table)


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
        ("halo", f"{counted(halo['states'], 'state')}, {halo['share']:.1%} of all{leaving}"),
        ("coupling", f"{counted(coupling['entries'], 'pair')} of partitions, {coupling['density']:.1%} of all"),
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
        rows.append(
            ("labels", ", ".join(f"{name} ({counted(count, 'state')})" for name, count in facts["labels"].items()))
        )
    if facts["variables"]:
        rows.append(("variables", ", ".join(starmap(_variable, facts["variables"].items()))))
    if facts["reward_models"]:
        own = facts["table_rewards"]
        named = (f"{name} (the table's)" if name == own else name for name in facts["reward_models"])
        rows.append(("reward models", ", ".join(named)))
    if facts["action_names"]:
        rows.append(("action names", listed(facts["action_names"])))
    if facts["geometry"]:
        rows.append(("geometry", _geometry(facts["geometry"])))
    print_rows(facts["path"], [*rows, *_origin(facts["provenance"])])


def _variable(name: str, variable: dict[str, Any]) -> str:
    """A variable with its range, its texts, or its type."""
    if variable["type"] == "string":
        return f"{name} ({listed([quote(text, 20) for text in variable['texts']])})"
    return f"{name} (bool)" if variable["type"] == "bool" else f"{name} ({variable['low']} to {variable['high']})"


def _origin(provenance: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of a table's provenance, the source before what belongs to it."""
    rows = [("made from", str(provenance["source"]))] if "source" in provenance else []
    return [*rows, *((f"  {name}", _fact(value)) for name, value in provenance.items() if name != "source")]


def _fact(value: Any) -> str:
    """A value as it is; several under names as on the command line, NAME=VALUE."""
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


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
    error = error_words(figures, "gain" if "gain_lower" in figures else "value", f"{figures['error_bound']:.3e}")
    verdict = "the certificate holds" if figures["holds"] else "THE CERTIFICATE DOES NOT HOLD"
    rows = [
        ("verdict", verdict),
        *gain_rows(figures),
        ("residual", f"{figures['residual']:.3e}, measured over all states"),
        ("error", f"{error} (certificate: {figures['claimed_bound']:.3e})"),
        *([("value", text)] if (text := policy_words(figures)) else []),
        ("policy", _policy_check(figures["invalid_policy_states"])),
        *([("violated", ", ".join(figures["violated_claims"]))] if figures["violated_claims"] else []),
        ("read", format_bytes(figures["bytes_read"])),
    ]
    print_rows("", rows)


def _policy_check(invalid: int) -> str:
    return f"no available action in {invalid:,} states" if invalid else "an available action in every state"


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
        ("loads", counted(figures["loads"], "partition")),
    ]
    print_rows("", rows)
