"""The tables of README.md as Markdown, from what run.py wrote; "-" stands where nothing was measured."""

from __future__ import annotations

from typing import Any

from claims import BLOCKS, CLAIMS, STATES, TECHNIQUES
from resident import markdown

__all__ = ["FIGURES", "seconds_of", "tables_of"]

_NOT = "-"
FIGURES = {"animat": 1, "mountain-car": 2}


def tables_of(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Lines of each table by its title."""
    worlds: dict[str, Any] = figures["worlds"]
    return {
        "made with": _made_with(figures),
        "claims": _claims(worlds),
        **{f"figure {number}": _figure(worlds.get(name, {})) for name, number in FIGURES.items()},
        "bound on sweeps": _bounds(worlds),
        "default kernel": _defaults(worlds),
    }


def _made_with(figures: dict[str, Any]) -> list[str]:
    machine, versions = figures["machine"], figures["versions"]
    device = (
        f"kernels on one {machine['device']}" if "device" in machine else "kernels as their schedules, without a GPU"
    )
    lines = [
        f"Made on {machine['cpu']} ({machine['cores']} cores), {machine['seconds_are']}; {device}; looks at intervals "
        f"every {figures['settings']['interval']} passes; ooc-mdp {versions['commit']}, Python {versions['python']}."
    ]
    return lines + [f"Left out: {each}." for each in figures["left_out"]]


def seconds_of(run: dict[str, Any] | None) -> float | None:
    """The median, where there is one and the run came to its end."""
    if not run or "seconds" not in run or run["outcome"] not in ("converged", "residual_reached"):
        return None
    return float(run["seconds"]["median"])


def _run(world: dict[str, Any], technique: int, block: int | None) -> dict[str, Any] | None:
    found = [r for r in world.get("runs", []) if (r["technique"], r["block"]) == (technique, block)]
    return found[0] if found else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _cell(value: float | None, form: str = ".3g", scale: float = 1.0) -> str:
    return _NOT if value is None else format(scale * value, form)


def _shares(world: dict[str, Any], above: int, below: int) -> dict[int, float]:
    """Seconds of one technique over those of another, by block size."""
    pairs = {b: _ratio(seconds_of(_run(world, above, b)), seconds_of(_run(world, below, b))) for b in BLOCKS}
    return {block: ratio for block, ratio in pairs.items() if ratio is not None}


def _claims(worlds: dict[str, Any]) -> list[str]:
    rows = []
    for problem, above, below, percent in CLAIMS:
        shares = _shares(worlds.get(problem, {}), above, below)
        ours = sum(shares.values()) / len(shares) if shares else None
        rows.append([
            f"{problem}: seconds of technique {above} / technique {below}, mean over block sizes",
            "not given" if percent is None else f"{percent}%",
            _NOT if ours is None else f"{100 * ours:.4g}%",
            _cell(_ratio(ours, None if percent is None else percent / 100)),
            "another card, link and host; 8 bytes per state or block are copied, and NumPy finds the largest",
        ])  # fmt: skip
    shares = _shares(worlds.get("animat", {}), 4, 2)
    slower = ", ".join(str(block) for block, share in shares.items() if share > 1) or "none"
    rows.append([
        "animat: block sizes at which technique 2 is quicker than 4",
        "4, 16, 32",
        slower if shares else _NOT,
        _NOT,
        "the maxima of blocks are a launch of their own here, not a part of the sweep's",
    ])  # fmt: skip
    every = {problem: _shares(worlds.get(problem, {}), 3, 1) for problem in FIGURES}
    rows.append([
        "technique 3 is quicker than 1 at every block size, for both problems",
        "yes",
        _NOT if not all(every.values()) else "yes" if all(s < 1 for e in every.values() for s in e.values()) else "no",
        _NOT,
        "",
    ])  # fmt: skip
    for problem in FIGURES:
        world = worlds.get(problem, {})
        needed, counted = _sweeps_needed(world), world.get("sweep_bound")
        rows.append([
            f"{problem}: sweeps that equation 17 counts, of those that are needed",
            "usually far too many",
            _cell(_ratio(None if counted is None else counted + 1, needed)),
            _NOT,
            "some state pays the largest cost in every sweep, which is the case that the equation bounds",
        ])  # fmt: skip
    for problem, said in STATES.items():
        states = worlds.get(problem, {}).get("states")
        row = [f"{problem}: states", said, _NOT if states is None else f"{states:,}", _NOT]
        rows.append([*row, "problems as `ooc-mdp generate` has them"])
    return markdown(("claim", "paper", "ours", "ratio", "why"), rows)


def _figure(world: dict[str, Any]) -> list[str]:
    rows = []
    for technique, what in TECHNIQUES.items():
        passes = {r["passes"] for r in world.get("runs", []) if r["technique"] == technique}
        cells = [_cell(seconds_of(_run(world, technique, block)), ".3f", 1e3) for block in BLOCKS]
        rows.append([f"{technique}: {what}", *cells, ", ".join(map(str, sorted(passes))) or _NOT])
    device = world.get("device_test")
    at = BLOCKS.index(256)
    cells = [_cell(seconds_of(device), ".3f", 1e3) if i == at else "" for i in range(len(BLOCKS))]
    rows.append(
        [
            "without `--stopping`: on the device, after 8, 16, 32 passes",
            *cells,
            str(device["passes"]) if device else _NOT,
        ]
    )
    return markdown(("technique; milliseconds with blocks of", *map(str, BLOCKS), "passes"), rows)


def _sweeps_needed(world: dict[str, Any]) -> int | None:
    """Until a look after every sweep ends the run."""
    runs = [r for r in world.get("runs", []) if r["technique"] in (1, 3) and r["outcome"] == "converged"]
    return runs[0]["passes"] if runs else None


def _bounds(worlds: dict[str, Any]) -> list[str]:
    rows = []
    for name, world in worlds.items():
        bound, needed = world["sweep_bound"], _sweeps_needed(world)
        rows.append([
            name,
            f"{world['largest_cost']:.4g}",
            f"{bound} + 1",
            _NOT if needed is None else str(needed),
            _cell(_ratio(needed, bound + 1)),
        ])  # fmt: skip
    return markdown(("problem", "C", "I(alpha, epsilon, C) + 1", "sweeps until equation 15 holds", "ratio"), rows)


def _defaults(worlds: dict[str, Any]) -> list[str]:
    rows = []
    for name, world in worlds.items():
        best = {t: [seconds_of(_run(world, t, b)) for b in BLOCKS] for t in TECHNIQUES}
        cells = [_cell(min((s for s in best[t] if s is not None), default=None), ".3f", 1e3) for t in TECHNIQUES]
        default, seconds = world.get("default"), seconds_of(world.get("default"))
        known = [s for each in best.values() for s in each if s is not None]
        rows.append([
            f"{name}, {world['states']:,} states",
            *cells,
            f"{_cell(seconds, '.3f', 1e3)} ({default['what']})" if default else _NOT,
            _cell(_ratio(min(known, default=None), seconds)),
            f"{default['sweeps']:.1f}" if default else _NOT,
            f"{default['residual']:.1e}" if default else _NOT,
        ])  # fmt: skip
    headers = ["milliseconds, best block size", *(f"technique {t}" for t in TECHNIQUES), "default"]
    more = ("best technique / default", "backups per state, default", "residual bound, default")
    return markdown((*headers, *more), rows)
