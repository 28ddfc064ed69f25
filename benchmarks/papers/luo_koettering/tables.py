"""The tables of README.md as Markdown, from what run.py wrote; "-" stands where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from claims import FIGURE_5, LARGEST, MAX_ITERATIONS, SPEED_UPS, WIDE
from resident import markdown

__all__ = ["LOADED", "VERSIONS", "Point", "lines_of", "seconds_after", "tables_of"]

_NOT = "-"
_Case = dict[str, Any]
Point = tuple[_Case, int]
"""A size, and a number of iterations."""
LOADED = "dense, with its load"
"""The kernel dense and what brings the table to the device."""
VERSIONS = ("sequential", "state by state", LOADED, "dense")


def tables_of(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Lines of each table by its title."""
    cases = figures["cases"]
    return {
        "made with": _made_with(figures),
        "claims": _claims(cases, figures["workers"]),
        **{name: _figure(points) for name, (_, points) in lines_of(cases).items()},
        "several GPUs": _workers(figures["workers"]),
        "default kernel": _defaults(cases),
    }


def _made_with(figures: dict[str, Any]) -> list[str]:
    machine, versions = figures["machine"], figures["versions"]
    device = f"one or more {machine['device']}" if "device" in machine else "no GPU"
    lines = [
        f"Made on {machine['cpu']} ({machine['cores']} cores), {machine['seconds_are']}; {device}; "
        f"ooc-mdp {versions['commit']}, Python {versions['python']}, Numba {versions['numba']}."
    ]
    return lines + [f"Left out: {each}." for each in figures["left_out"]]


# ---------------------------------------------------------------------------------------------- sizes and figures


def _size(case: _Case) -> tuple[int, int]:
    return case["states"], case["actions"]


def lines_of(cases: Sequence[_Case]) -> dict[str, tuple[str, list[Point]]]:
    """Each of the paper's figures: what it varies, and its points."""
    every = [(c, n) for c in cases for n in c["iterations"]]
    return {
        "figure 2": ("iterations", [(c, n) for c, n in every if _size(c) == _wide(cases)]),
        "figure 3": ("actions", _line(cases, "actions", "states")),
        "figure 4": ("states", _line(cases, "states", "actions")),
        "figure 5": ("iterations", [(c, n) for c, n in every if c["states"] <= FIGURE_5["states"]]),
    }


def _wide(cases: Sequence[_Case]) -> tuple[int, int]:
    """The size of figure 2: of toys, the one with the most iterations."""
    sizes = {_size(c): len(c["iterations"]) for c in cases}
    return WIDE if WIDE in sizes or not sizes else max(sizes, key=lambda size: sizes[size])


def _line(cases: Sequence[_Case], varied: str, fixed: str) -> list[Point]:
    """Sizes that differ in one of both from that of figure 2, at the number of iterations that they share."""
    wide = dict(zip(("states", "actions"), _wide(cases), strict=True))
    chosen = sorted((c for c in cases if c[fixed] == wide[fixed]), key=lambda c: c[varied])
    shared = set.intersection(*(set(c["iterations"]) for c in chosen)) if chosen else set()
    return [(c, max(shared)) for c in chosen] if shared else []


def seconds_after(case: _Case, version: str, iterations: int) -> float | None:
    """The median, where a version came so far."""
    run = _run(case, version)
    if run is None or "seconds" not in run or iterations not in run["iterations"]:
        return None
    seconds = float(run["seconds"][run["iterations"].index(iterations)]["median"])
    return seconds + run["load_seconds"] + run["expand_seconds"] if version == LOADED else seconds


def _run(case: _Case, version: str) -> dict[str, Any] | None:
    what = "dense" if version == LOADED else version
    return next((run for run in case["runs"] if run["what"] == what), None)


def _cell(value: float | None, form: str = ".3g", scale: float = 1.0) -> str:
    return _NOT if value is None else format(scale * value, form)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _speed_up(case: _Case, version: str, iterations: int) -> float | None:
    return _ratio(seconds_after(case, "sequential", iterations), seconds_after(case, version, iterations))


def _rate_ratio(case: _Case, version: str, iterations: int) -> tuple[float | None, str]:
    """The speed-up after so many iterations; of an iteration where one of both was stopped before."""
    found = _speed_up(case, version, iterations)
    sequential, run = _run(case, "sequential"), _run(case, version)
    if found is not None or version == LOADED or sequential is None or run is None:
        return found, ""
    stopped = ", ".join(f"{r['what']} after {r['done']}" for r in (sequential, run) if r["outcome"] == "time_limit")
    rates = (r.get("seconds_an_iteration") for r in (sequential, run))
    return _ratio(*rates), f"of an iteration: the time limit stopped {stopped}; "


def _figure(points: Sequence[Point]) -> list[str]:
    rows = []
    for case, n in points:
        seconds = [seconds_after(case, version, n) for version in VERSIONS]
        rows.append([
            f"{case['states']} / {case['actions']} / {n}",
            f"{case['array_bytes']:.2e}",
            *(_cell(s, ".4g", 1e3) for s in seconds),
            *(_cell(_speed_up(case, version, n)) for version in VERSIONS[1:]),
        ])  # fmt: skip
    headers = ("states / actions / iterations", "bytes of T", *(f"{version}, ms" for version in VERSIONS))
    return markdown((*headers, *(f"speed-up: {version}" for version in VERSIONS[1:])), rows)


# -------------------------------------------------------------------------------------------------------- claims


def _claims(cases: Sequence[_Case], workers: Sequence[_Case]) -> list[str]:
    rows = [*_speed_ups(cases), *_orders(cases), *_growth(cases), *_others(cases, workers)]
    return markdown(("claim", "paper", "ours", "ratio", "why"), rows)


def _speed_ups(cases: Sequence[_Case]) -> list[list[str]]:
    case = next((c for c in cases if _size(c) == LARGEST), None)
    at, rows = f"1.07e9 bytes, {MAX_ITERATIONS} iterations", []
    found: dict[str, float | None] = {}
    why = {
        "state by state": "two copies, two launches and two waits a state, as in the paper; other host, link and GPU",
        LOADED: "one GPU in place of two; the table is copied once",
        "dense": "the same without the copy, which the paper's unified memory makes page by page",
    }
    for version in VERSIONS[1:]:
        claimed = SPEED_UPS["state by state" if version == "state by state" else "dense"]
        found[version], note = _rate_ratio(case, version, MAX_ITERATIONS) if case else (None, "")
        rows.append([
            f"speed-up of {version} over the CPU, {at}", f"{claimed:g}", _cell(found[version]),
            _cell(_ratio(found[version], claimed)), note + why[version],
        ])  # fmt: skip
    gap, ours = SPEED_UPS["dense"] / SPEED_UPS["state by state"], _ratio(found[LOADED], found["state by state"])
    rows.append([
        "resident tables over state by state, the same", f"{gap:g}", _cell(ours), _cell(_ratio(ours, gap)),
        "ours with the load, on one GPU",
    ])  # fmt: skip
    return rows


def _orders(cases: Sequence[_Case]) -> list[list[str]]:
    points = [(c, n) for c in cases for n in c["iterations"]]

    def held(faster: str, slower: str) -> tuple[str, list[str]]:
        pairs = [(seconds_after(c, faster, n), seconds_after(c, slower, n), c, n) for c, n in points]
        known = [(a < b, c, n) for a, b, c, n in pairs if a is not None and b is not None]
        failed = [f"{c['states']} / {c['actions']} / {n}" for holds, c, n in known if not holds]
        return f"{len(known) - len(failed)} of {len(known)}" if known else _NOT, failed

    rows = []
    for version in ("state by state", LOADED):
        count, failed = held(version, "sequential")
        claim = f"{version} is faster than the CPU in every configuration"
        rows.append([claim, "yes", count, _NOT, f"not for {'; '.join(failed)}" if failed else ""])
    count, failed = held(LOADED, "state by state")
    rows.append([
        "resident tables are faster than state by state in every configuration", "yes, but for figure 5", count, _NOT,
        "",
    ])  # fmt: skip
    only = "A <= {actions}, S <= {states}, N < {iterations}".format(**FIGURE_5)
    where = "; ".join(failed) or ("nowhere" if count != _NOT else _NOT)
    rows.append([f"state by state pays only where {only}", "yes", where, _NOT, "states / actions / iterations"])
    return rows


def _growth(cases: Sequence[_Case]) -> list[list[str]]:
    """Time by size, and the gap between both versions for a GPU by each variable."""
    rows = []
    measured = [(c, n) for c in cases for n in c["iterations"]]
    for version, said in (("sequential", "linear"), ("state by state", "not linear"), (LOADED, "not linear")):
        units = [
            1e9 * s / (c["states"] ** 2 * c["actions"] * n)
            for c, n in measured
            if (s := seconds_after(c, version, n)) is not None
        ]
        found = f"{min(units):.3g} to {max(units):.3g} ns" if units else _NOT
        why = "nanoseconds of S S A N, least and most; linear would be one number"
        rows.append([f"{version}: time by S S A N", said, found, _NOT, why])
    lines = lines_of(cases)
    for name, line in (lines[f"figure {number}"] for number in (2, 3, 4)):
        gaps = [_ratio(seconds_after(c, "state by state", n), seconds_after(c, LOADED, n)) for c, n in line]
        known = [gap for gap in gaps if gap is not None]
        found = " to ".join(f"{gap:.3g}" for gap in (known[0], known[-1])) if known else _NOT
        why = "state by state / resident with its load, from the smallest to the largest"
        rows.append([f"the gap between both versions widens with {name}", "yes", found, _NOT, why])
    return rows


def _others(cases: Sequence[_Case], workers: Sequence[_Case]) -> list[list[str]]:
    differences = [d for c in cases for d in c.get("largest_difference", {}).values()]
    share: float | None = None
    for case in cases:
        run = _run(case, "state by state")
        if run and run.get("copies_an_iteration"):
            share = run["copies_an_iteration"] / run["seconds_an_iteration"]  # of the largest table in the end
    known = [w for w in workers if w["workers"] and _solved_in(w)]
    first, last = (known[0], known[-1]) if known else (None, None)
    gain = _ratio(first["seconds"], last["seconds"]) if first and last and first is not last else None
    count = last["workers"] if gain and last else 2
    alone = "" if gain else " (only one GPU was measured)"
    return [
        ["all versions produce the same values", "yes", _cell(max(differences, default=None), ".1e"), _NOT,
         "the largest difference of a value, of all sizes; sums are in other orders"],
        ["the copies make state by state slow", "yes", _cell(share, ".0f", 100) + ("" if share is None else "%"), _NOT,
         "copies alone, of the seconds of an iteration, for the largest table"],
        [f"{count} GPUs are {count} times as fast as one (expected)", f"{count}", _cell(gain),
         _cell(_ratio(gain, count)), f"workers of the distributed solve; see the table of several GPUs{alone}"],
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- several GPUs, default kernel


def _solved_in(solve: _Case) -> float | None:
    """Seconds of a solve by workers, where they are known and it met its target."""
    return solve.get("seconds") if solve["outcome"] == "residual_reached" else None


def _workers(workers: Sequence[_Case]) -> list[str]:
    one = next((_solved_in(w) for w in workers if w["workers"] == 1), None)
    rows = []
    for w in workers:
        seconds, count = _solved_in(w), w["workers"]
        rows.append([
            f"{count} worker{'s' * (count != 1)}" if count else "no workers",
            f"{w['states']} / {w['actions']} / {w['partitions']}",
            _cell(seconds, ".3f") if w["outcome"] == "residual_reached" else w["outcome"],
            _cell(_ratio(one, seconds) if count else None),
            f"{w['passes']:.1f}",
            _cell(_ratio(seconds, w["passes"]), ".3g", 1e3),
            f"{w['residual']:.1e}",
        ])  # fmt: skip
    headers = ("dense to a residual of 1e-4", "states / actions / partitions", "seconds", "over one worker")
    return markdown((*headers, "passes", "ms a pass, with its measurement", "residual bound"), rows)


def _defaults(cases: Sequence[_Case]) -> list[str]:
    rows = []
    write: Callable[[float | None], str] = lambda s: _cell(s, ".4g", 1e3)  # noqa: E731
    for case in cases:
        if "default" not in case:
            continue
        found, n = case["default"], case["iterations"][-1]
        solved = found["outcome"] == "residual_reached"
        seconds = found["seconds"]["median"] if solved else None
        loaded = seconds_after(case, LOADED, n)
        rows.append([
            f"{case['states']} / {case['actions']} / {n}",
            *(write(seconds_after(case, version, n)) for version in VERSIONS),
            f"{write(seconds)} ({found['what']})" if solved else f"{found['what']}: {found['outcome']}",
            _cell(_ratio(seconds_after(case, "sequential", n), seconds)),
            _cell(_ratio(loaded, seconds)),
            f"{found['sweeps']:.1f}" if solved else _NOT,
            f"{case['residual']:.1e}",
        ])  # fmt: skip
    headers = ("states / actions / iterations", *(f"{version}, ms" for version in VERSIONS), "default, ms")
    more = ("sequential / default", "dense with its load / default", "backups per state, default", "residual of both")
    return markdown((*headers, *more), rows)
