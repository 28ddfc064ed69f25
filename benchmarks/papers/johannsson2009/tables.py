"""The tables of README.md from figures: each a title, which names its place there, and lines of Markdown.

A place in a file is what stands between ``<!-- TITLE -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cells import NOT, Run, Table, count, if_solved, mean_seconds, number, run_of, speed_up
from claims import SPEED_UPS
from resident import markdown
from verdicts import verdicts

__all__ = ["tables_of"]

_WORDS = ("sequential", "plain", "bdi", "bdi-buffered", "bdi-priority", "rdi", "rdi-actions")


def tables_of(figures: Mapping[str, Any]) -> dict[str, Table]:
    """All tables whose parts were measured, by title."""
    made: list[tuple[str, str, Callable[[Mapping[str, Any]], Table]]] = [
        ("claims", "worlds", verdicts),
        ("table 6.1", "worlds", _characteristics),
        ("table 6.2", "worlds", _speed_ups),
        ("figures 6.1 and 6.2", "worlds", _seconds),
        ("figure 6.3", "worlds", _sweeps),
        ("figures 6.4 and 6.7", "worlds", _sweep_seconds),
        ("figure 6.6", "locality", _locality),
        ("2048 x 2048", "large", _large),
        ("own test", "own-test", _own_test),
        ("priorities", "priority", _priorities),
        ("default kernel", "default", _defaults),
    ]
    return {"made with": _made_with(figures)} | {
        title: make(figures) for title, part, make in made if figures.get(part)
    }


def _made_with(figures: Mapping[str, Any]) -> Table:
    lines = [_made_on(figures)]
    if not figures["machine"].get("device"):
        side = figures["settings"]["schedule_side"]
        lines.append(
            f"Kernels ran as their schedules in NumPy, in worlds up to {side} x {side}: sweeps are measured, and "
            f'seconds of kernels, which need a GPU, are not. "{NOT}" stands where nothing was measured.'
        )
    lines += [f"{', '.join(each['parts'])}: {_made_on(each)}" for each in figures.get("further", [])]
    return lines + [f"Left out: {each}." for each in figures["left_out"]]


def _made_on(figures: Mapping[str, Any]) -> str:
    """The machine, the versions and the settings of one file of figures."""
    machine, versions, settings = figures["machine"], figures["versions"], figures["settings"]
    device = machine.get("device")
    return (
        f"Made on {machine['cpu']} ({machine['cores']} cores), seconds {machine['seconds_are']}; "
        + (f"kernels on one {device}; " if device else "no GPU; ")
        + f"ooc-mdp {versions['commit']}, Python {versions['python']}, Numba {versions['numba']}; "
        f"--repeat {settings['repeat']}, --time-limit {settings['time_limit']:g}."
    )


def _by_word(
    worlds: Sequence[Mapping[str, Any]],
    first: str,
    value: Callable[[Run], float | None],
    write: Callable[[float | None], str],
) -> Table:
    """A row for each world, a column for each solver that some world has."""
    words = [word for word in _WORDS if any(run["what"] == word for world in worlds for run in world["runs"])]
    rows = []
    for world in worlds:
        name = f"{100 * world['random']:.0f}%" if first == "random" else world["name"]
        rows.append([name, *(if_solved(run_of(world, word), value, write) for word in words)])
    return markdown((first, *words), rows)


def _milliseconds(run: Run) -> float | None:
    seconds = mean_seconds(run)
    return None if seconds is None else 1e3 * seconds


def _characteristics(figures: Mapping[str, Any]) -> Table:
    rows = [
        (w["name"], f"{w['states']:,}", "4", str(w["successors"]), f"{w['reward_states']:,}", f"{w['cost']:,}")
        for w in figures["worlds"]
    ]
    return markdown(("world", "states", "actions", "successors", "reward states", "computational cost"), rows)


def _speed_ups(figures: Mapping[str, Any]) -> Table:
    rows = []
    for world in figures["worlds"]:
        cells = [world["name"]]
        for word in ("bdi", "rdi"):
            claimed = SPEED_UPS.get(world["name"], {}).get(word, (None, None))
            for said, key in zip(claimed, ("seconds", "sweep_seconds"), strict=True):
                ours = speed_up(world, word, key)
                cells.append(f"{number(said)} / {number(ours)} / {number(ours / said if said and ours else None)}")
        rows.append(cells)
    return markdown(("thesis / ours / ratio", "bdi, solve", "bdi, sweep", "rdi, solve", "rdi, sweep"), rows)


def _seconds(figures: Mapping[str, Any]) -> Table:
    return _by_word(figures["worlds"], "milliseconds", _milliseconds, number)


def _sweeps(figures: Mapping[str, Any]) -> Table:
    return _by_word(figures["worlds"], "sweeps", lambda run: run["sweeps"], count)


def _sweep_seconds(figures: Mapping[str, Any]) -> Table:
    rows = []
    for world in figures["worlds"]:
        cells = [world["name"]]
        for word in _WORDS:
            seconds = run_of(world, word).get("sweep_seconds")
            both = "" if seconds is None else f"{number(1e6 * seconds)} / {number(1e9 * seconds / world['cost'])}"
            cells.append(both or NOT)
        rows.append(cells)
    return markdown(("µs a sweep / ns a unit of cost", *_WORDS), rows)


def _locality(figures: Mapping[str, Any]) -> Table:
    return _by_word(figures["locality"], "random", lambda run: run["sweeps"], count)


def _large(figures: Mapping[str, Any]) -> Table:
    (world,) = figures["large"]
    rows = []
    for run in world["runs"]:
        planned = run.get("device_bytes")
        rows.append(
            (
                run["what"],
                if_solved(run, mean_seconds),
                if_solved(run, lambda run: run["sweeps"], count),
                NOT if planned is None else f"{planned / 2**20:,.0f} MiB",
                if_solved(run, lambda run: run.get("loads_per_partition"), count),
            )
        )
    said = (
        f"The thesis's arrays take {world['thesis_bytes'] / 2**20:,.0f} MiB (8 bytes per state, 16 per transition) and "
        f"its card has {world['card_bytes'] / 2**20:,.0f}; the table of the kernels takes "
        f"{world['table_bytes'] / 2**20:,.0f} MiB here."
    )
    headers = (world["name"], "seconds", "backups per state", "memory plan of the GPU", "loads per partition")
    return [said, "", *markdown(headers, rows)]


def _own_test(figures: Mapping[str, Any]) -> Table:
    rows = [
        (f["name"], str(f["passes_by_change"]), f"{f['residual_by_change']:.2g}", str(f["passes_by_residual"]))
        for f in figures["own-test"]
    ]
    headers = ("bdi", "launches by the thesis's test", "residual then", "launches until the residual is 1e-4")
    return markdown(headers, rows)


def _priorities(figures: Mapping[str, Any]) -> Table:
    found = figures["priority"]
    rows = []
    for states in dict.fromkeys(f["states"] for f in found):
        rows.append([str(states), *(str(f["sweeps"]) for f in found if f["states"] == states)])
    constants = (f"U = {u:g}" for u in dict.fromkeys(f["u"] for f in found))
    return markdown((f"{found[0]['name']}: states a thread", *constants), rows)


def _defaults(figures: Mapping[str, Any]) -> Table:
    runs: dict[str, dict[str, Run]] = {}
    for part in figures["default"]:
        runs.setdefault(part["name"], {})[part["what"]] = part
    words = list(dict.fromkeys(part["what"] for part in figures["default"]))
    base = {world["name"]: mean_seconds(run_of(world, "sequential")) for world in figures["worlds"]}
    rows = []
    for name, found in runs.items():
        cells = [name]
        for word in words:
            run = found.get(word, {"outcome": "not run"})
            seconds, sequential = mean_seconds(run), base.get(name)
            ratio = sequential / seconds if seconds and sequential else None
            solved = if_solved(run, _milliseconds), if_solved(run, lambda run: run["sweeps"], count)
            cells += [*solved, if_solved(run, lambda run, ratio=ratio: ratio)]
        rows.append([*cells, number(SPEED_UPS.get(name, {}).get("bdi", (None,))[0])])
    heads = [f"{word}, {what}" for word in words for what in ("ms", "backups per state", "speed-up")]
    return markdown(("world", *heads, "speed-up of bdi in the thesis"), rows)
