"""Plans on stdout: what a solve, or the generation of a store, will take. Computes nothing: it renders figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ooc_mdp.options import format_bytes
from ooc_mdp.report.rows import print_rows
from ooc_mdp.sizes import counted, format_seconds

__all__ = ["print_conversion", "print_forecast", "print_generation"]


def print_forecast(figures: dict[str, Any], command: str) -> None:
    """The plan of a solve, from `SolveForecast.summary`; `command` begins the solve."""
    p = figures["n_partitions"]
    share = figures["cache_bytes"] / max(figures["table_bytes"], 1)
    rows = [
        ("table", f"{figures['n_states']:,} states, {figures['n_state_actions']:,} state-action pairs, "
                  f"{figures['n_transitions']:,} transitions"),
        ("", f"{format_bytes(figures['table_bytes'])} decoded; {counted(p, 'partition')} of "
             f"{format_bytes(figures['table_bytes'] // p)}"
             + (f", which read {figures['partitions_read']:.1f} others each" if p > 1 else "")),
        ("method", f"{figures['method']} on {figures['device']}; cache {format_bytes(figures['cache_bytes'])}"
                   + (f" ({share:.1%} of the table)" if share < 1 else ", which holds the whole table")),
        *_memory(figures),
        ("disk", _disk(figures)),
        ("one pass", _pass(figures)),
        ("expected", _expected(figures)),
        ("run it", command),
    ]  # fmt: skip
    print_rows(figures["table"], rows)


def _memory(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Needed and free bytes, with the largest buffers by name."""
    rows = []
    free = {"host": figures["free_memory_bytes"], "device": None}
    for place, name in (("host", "memory"), ("device", "device")):
        buffers = figures["memory"].get(place) or {}
        if not buffers:
            continue
        largest = sorted(buffers.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in largest if size)
        limit = "" if free[place] is None else f" of {format_bytes(free[place] + buffers.get('process', 0))}"
        rows.append((name, f"{format_bytes(sum(buffers.values()))}{limit}: {parts}"))
    return rows


def _disk(figures: dict[str, Any]) -> str:
    free = "" if figures["free_disk_bytes"] is None else f" of {format_bytes(figures['free_disk_bytes'])} free"
    if not figures["output_bytes"]:
        return "nothing is written without --output"
    return f"at most {format_bytes(figures['output_bytes'])}{free} for result and checkpoint"


def _pass(figures: dict[str, Any]) -> str:
    read = f"{format_bytes(figures['bytes_per_pass'])} read" if figures["bytes_per_pass"] else "nothing read"
    loading, sweeping = figures["load_seconds"], figures["sweep_seconds"]
    if loading is None:
        return f"{read}; nothing was loaded in the trial"
    sweeps = "" if sweeping is None else f", and {format_seconds(sweeping)} to back every state up once"
    return (
        f"{read}, {format_seconds(loading)} to load{sweeps} (measured: {counted(figures['trial_loads'], 'load')} in "
        f"{figures['trial_seconds']:.1f} s of a trial)"
    )


def _expected(figures: dict[str, Any]) -> str:
    if figures["passes"] is None:
        return "the number of passes of this method is not known before the solve"
    passes, backups = (_spread(_number, figures[name]) for name in ("passes", "backups_per_state"))
    time = "" if figures["seconds"] is None else f": {_spread(format_seconds, figures['seconds'])}"
    noun = "pass" if passes == "1" else "passes"
    return f"{passes} {noun} over the table, {backups} backups per state{time}; from {figures['basis']}"


def _number(number: float) -> str:
    """A number to three digits, in full."""
    return f"{float(f'{number:.3g}'):,.10g}"


def _spread(text_of: Callable[[float], str], numbers: Sequence[float]) -> str:
    """What a number is as a rule, and in brackets least and most."""
    least, usual, most = (text_of(number) for number in numbers)
    return usual if least == most else f"{usual} ({least} to {most})"


def print_generation(figures: dict[str, Any], command: str) -> None:
    """The plan of a generation, from `GenerationEstimate.summary`; `command` begins it."""
    least, most = (format_bytes(size) for size in figures["solve_memory_bytes"])
    rows = [
        ("table", f"{figures['n_states']:,} states, {figures['n_state_actions']:,} state-action pairs, "
                  f"{figures['n_transitions']:,} transitions, {counted(figures['n_partitions'], 'partition')}"),
        ("disk", _needed(figures["disk_bytes"], figures["free_disk_bytes"]) if figures["disk_bytes"] else "nothing"),
        ("memory", _needed(figures["memory_bytes"], figures["free_memory_bytes"])),
        ("time", f"{format_seconds(figures['seconds'])} on {figures['threads']} threads, from a sample"),
        ("a solve", f"holds {least} to {most} besides its cache"),
        ("verdict", figures["refusal"] or "it fits"),
        ("run it", command),
    ]  # fmt: skip
    print_rows(figures["problem"], rows)


def _needed(needed: int, free: int | None) -> str:
    return format_bytes(needed) + ("" if free is None else f" of {format_bytes(free)} free")


def print_conversion(figures: dict[str, Any], command: str) -> None:
    """The plan of a conversion, from `ConversionEstimate.summary`; `command` begins it."""
    basis = "the whole file" if figures["whole"] else "its first blocks"
    rows = [
        ("file", f"{format_bytes(figures['source_bytes'])}; the numbers below are from {basis}"),
        ("table", f"{figures['n_states']:,} states, {figures['n_state_actions']:,} state-action pairs, "
                  f"{figures['n_transitions']:,} transitions"),
        ("disk", f"{format_bytes(figures['spool_bytes'])} on the way, and a store of at most "
                 f"{_needed(figures['store_bytes'], figures['free_disk_bytes'])}"),
        ("time", f"{format_seconds(figures['seconds'])} on {figures['threads']} threads"),
        ("verdict", figures["refusal"] or "it fits"),
        ("run it", command),
    ]  # fmt: skip
    print_rows(figures["source"], rows)
