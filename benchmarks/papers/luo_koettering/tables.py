"""The tables of README.md as Markdown, from what run.py wrote; "-" stands where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from claims import FIGURE_5, MAX_ITERATIONS, SPEED_UPS, WIDE
from resident import markdown

__all__ = ["VERSIONS", "Point", "all_runs", "lines_of", "name_of", "seconds_after", "tables_of", "versions_of"]

_NOT = "-"
_POINT = "states / actions / iterations"
_Case = dict[str, Any]
Point = tuple[_Case, int]
"""A size, and a number of iterations."""
_WITH_LOAD = ", with its load"
"""Ends the name of a version whose seconds include bringing the tables to the devices."""
LOADED = f"dense{_WITH_LOAD}"
VERSIONS = ("sequential", "state by state", LOADED, "dense")
"""For one device or none."""
PAPERS = f"algorithm 3 on 2 GPUs{_WITH_LOAD}"
"""What the paper measured on several."""


def tables_of(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Lines of each table by its title."""
    cases = all_runs(figures)
    versions, lines = versions_of(cases), lines_of(cases)
    return {
        "made with": _made_with(figures),
        "claims": _claims(cases),
        **{name: _figure(points, versions) for name, (_, points) in lines.items()},
        **{f"{name}, speed-up": _figure_speed_ups(points, versions) for name, (_, points) in lines.items()},
        "several GPUs": _groups(cases, group_sizes_of(cases)),
        "default kernel": _defaults(cases),
    }


def all_runs(figures: dict[str, Any]) -> list[_Case]:
    """Each size with its runs on one device and on groups."""
    found: dict[tuple[int, int], _Case] = {}
    for case in (*figures["cases"], *figures["largest"], *figures["devices"]):
        known = found.get(_size(case), {"runs": [], "largest_difference": {}})
        runs = {"runs": known["runs"] + case["runs"]}
        off = {"largest_difference": known["largest_difference"] | case.get("largest_difference", {})}
        found[_size(case)] = known | case | runs | off
    return list(found.values())


def name_of(run: dict[str, Any]) -> str:
    """A run's version."""
    count = run.get("devices")
    return run["what"] if count is None else f"{run['what']} on {count} GPU{'s' * (count != 1)}"


def group_sizes_of(cases: Sequence[_Case]) -> list[int]:
    """Numbers of devices of the groups that were measured."""
    return sorted({run["devices"] for case in cases for run in case["runs"] if "devices" in run})


def versions_of(cases: Sequence[_Case]) -> tuple[str, ...]:
    """All that were measured, those for one device first."""
    groups = [{"what": what, "devices": n} for what in ("algorithm 3", "dense") for n in group_sizes_of(cases)]
    return *VERSIONS, *map(name_of, groups)


def _made_with(figures: dict[str, Any]) -> list[str]:
    most = max(group_sizes_of(figures["devices"]), default=1)
    link = figures.get("link_bytes_per_second")
    lines = [f"Made on {_made_on(figures, most)}" + (f" One GPU to another: {link / 1e9:.0f} GB/s." if link else "")]
    lines += [f"Left out: {each}." for each in figures["left_out"]]
    return lines + [f"{', '.join(each['parts'])}: {_made_on(each, 1)}" for each in figures.get("further", [])]


def _made_on(figures: dict[str, Any], devices: int) -> str:
    machine, versions = figures["machine"], figures["versions"]
    device = f"{devices} {machine['device']}" if "device" in machine else "no GPU"
    return (
        f"{machine['cpu']} ({machine['cores']} cores), {machine['seconds_are']}; {device}; "
        f"ooc-mdp {versions['commit']}, Python {versions['python']}, Numba {versions['numba']}."
    )


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
    return seconds + run["load_seconds"] + run.get("expand_seconds", 0.0) if version.endswith(_WITH_LOAD) else seconds


def _run(case: _Case, version: str) -> dict[str, Any] | None:
    name = version.removesuffix(_WITH_LOAD)
    return next((run for run in case["runs"] if name_of(run) == name), None)


def _cell(value: float | None, form: str = ".3g", scale: float = 1.0) -> str:
    return _NOT if value is None else format(scale * value, form)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _speed_up(case: _Case, version: str, iterations: int) -> float | None:
    return _ratio(seconds_after(case, "sequential", iterations), seconds_after(case, version, iterations))


def _figure(points: Sequence[Point], versions: Sequence[str]) -> list[str]:
    rows = [
        [_point(case, n), f"{case['array_bytes']:.2e}"]
        + [_cell(seconds_after(case, version, n), ".4g", 1e3) for version in versions]
        for case, n in points
    ]
    return markdown((_POINT, "bytes of T", *(f"{version}, ms" for version in versions)), rows)


def _figure_speed_ups(points: Sequence[Point], versions: Sequence[str]) -> list[str]:
    compared = [version for version in versions if version != "sequential"]
    rows = [[_point(case, n), *(_cell(_speed_up(case, version, n)) for version in compared)] for case, n in points]
    return markdown((_POINT, *compared), rows)


def _point(case: _Case, iterations: int) -> str:
    return f"{case['states']} / {case['actions']} / {iterations}"


# -------------------------------------------------------------------------------------------------------- claims


def _claims(cases: Sequence[_Case]) -> list[str]:
    rows = [*_speed_ups(cases), *_orders(cases), *_growth(cases), *_gains(cases), *_others(cases)]
    return markdown(("claim", "paper", "ours", "ratio", "why"), rows)


def _speed_ups(cases: Sequence[_Case]) -> list[list[str]]:
    """Each at the largest size and number of iterations that both versions were measured at."""
    why = {
        "state by state": "two copies, two launches and two waits a state, as in the paper; other host, link and GPU",
        PAPERS: "a kernel for each state has a thread for each action, few for such a GPU; other CPU, link and GPUs",
        LOADED: "one GPU in place of two; the table is copied once",
        "dense": "the same without the copy, which the paper's managed memory makes page by page",
        f"dense on 2 GPUs{_WITH_LOAD}": "half the bytes, a recorded graph in place of a launch for each state",
    }
    rows = []
    for version, reason in why.items():
        claimed = SPEED_UPS["state by state" if version == "state by state" else "algorithm 3"]
        rows.append(_ratio_row(cases, version, "sequential", claimed, reason))
    gap = SPEED_UPS["algorithm 3"] / SPEED_UPS["state by state"]
    return rows + [_ratio_row(cases, version, "state by state", gap, why[version]) for version in (PAPERS, LOADED)]


def _ratio_row(cases: Sequence[_Case], version: str, base: str, claimed: float, why: str) -> list[str]:
    points = [(c, n) for c in cases for n in c["iterations"]]
    known = [(c, n) for c, n in points if all(seconds_after(c, each, n) is not None for each in (version, base))]
    case, n = max(known, key=lambda point: point[0]["array_bytes"] * point[1], default=(None, 0))
    ours = _ratio(seconds_after(case, base, n), seconds_after(case, version, n)) if case else None
    at = f"{case['array_bytes']:.3g} bytes, {n} iterations" if case else "not measured"
    claim = f"speed-up of {version} over {base}, 1.07e9 bytes, {MAX_ITERATIONS} iterations"
    return [claim, f"{claimed:g}", _cell(ours), _cell(_ratio(ours, claimed)), f"at {at}; {why}" if case else at]


def _orders(cases: Sequence[_Case]) -> list[list[str]]:
    points = [(c, n) for c in cases for n in c["iterations"]]

    def held(faster: str, slower: str) -> tuple[str, list[str]]:
        pairs = [(seconds_after(c, faster, n), seconds_after(c, slower, n), c, n) for c, n in points]
        known = [(a < b, c, n) for a, b, c, n in pairs if a is not None and b is not None]
        failed = [_point(c, n) for holds, c, n in known if not holds]
        return f"{len(known) - len(failed)} of {len(known)}" if known else _NOT, failed

    rows = []
    for version in ("state by state", PAPERS, LOADED):
        count, failed = held(version, "sequential")
        claim = f"{version} is faster than the CPU in every configuration"
        rows.append([claim, "yes", count, _NOT, f"not for {'; '.join(failed)}" if failed else ""])
    for version in (LOADED, PAPERS):
        count, failed = held(version, "state by state")
        claim = f"{version} is faster than state by state in every configuration"
        rows.append([claim, "yes, but for figure 5", count, _NOT, f"not for {'; '.join(failed)}" if failed else ""])
    only = "A <= {actions}, S <= {states}, N < {iterations}".format(**FIGURE_5)
    where = "; ".join(failed) or ("nowhere" if count != _NOT else _NOT)
    rows.append([f"state by state pays only where {only}", "yes", where, _NOT, _POINT])
    return rows


def _growth(cases: Sequence[_Case]) -> list[list[str]]:
    """Time by size, and by each variable how much faster resident tables are than those sent state by state."""
    rows = []
    measured = [(c, n) for c in cases for n in c["iterations"]]
    for version in ("sequential", "state by state", PAPERS, LOADED):
        said = "linear" if version == "sequential" else "not linear"
        units = [
            1e9 * s / (c["states"] ** 2 * c["actions"] * n)
            for c, n in measured
            if (s := seconds_after(c, version, n)) is not None
        ]
        found = f"{min(units):.3g} to {max(units):.3g} ns" if units else _NOT
        why = "nanoseconds of S S A N, least and most; linear would be one number"
        rows.append([f"{version}: time by S S A N", said, found, _NOT, why])
    lines = lines_of(cases)
    for version in (PAPERS, LOADED):
        for name, line in (lines[f"figure {number}"] for number in (2, 3, 4)):
            gaps = [_ratio(seconds_after(c, "state by state", n), seconds_after(c, version, n)) for c, n in line]
            known = [gap for gap in gaps if gap is not None]
            found = f"{known[0]:.3g} to {known[-1]:.3g}" if known else _NOT
            claim = f"the gap between state by state and {version} widens with {name}"
            rows.append([claim, "yes", found, _NOT, "ratio of their seconds, from the smallest to the largest"])
    return rows


def _gains(cases: Sequence[_Case]) -> list[list[str]]:
    """What the paper expects of more GPUs: of the largest table that was measured on groups."""
    rows = []
    for what in ("algorithm 3", "dense"):
        for count in (2, 4):
            known = [c for c in cases if _gain(c, what, count, c["iterations"][-1]) is not None]
            case = max(known, key=lambda c: c["array_bytes"], default=None)
            gain = _gain(case, what, count, case["iterations"][-1]) if case else None
            claim = f"{what}: {count} GPUs are {count} times as fast as one (expected)"
            at = f"{_point(case, case['iterations'][-1])}, without the load" if case else "not measured"
            rows.append([claim, f"{count}", _cell(gain), _cell(_ratio(gain, count)), at])
    return rows


def _gain(case: _Case, what: str, count: int, iterations: int) -> float | None:
    """How many times as fast a group is as one of its devices; by an iteration, where one was stopped before."""
    one, more = (_run(case, name_of({"what": what, "devices": n})) for n in (1, count))
    if one is None or more is None:
        return None
    seconds = [seconds_after(case, name_of(run), iterations) for run in (one, more)]
    return _ratio(*seconds) or _ratio(one["seconds_an_iteration"], more["seconds_an_iteration"])


def _others(cases: Sequence[_Case]) -> list[list[str]]:
    differences = [d for c in cases for d in c["largest_difference"].values()]
    share: float | None = None
    for case in cases:
        run = _run(case, "state by state")
        if run and run.get("copies_an_iteration"):
            share = run["copies_an_iteration"] / run["seconds_an_iteration"]  # of the largest table in the end
    return [
        ["all versions produce the same values", "yes", _cell(max(differences, default=None), ".1e"), _NOT,
         "the largest difference of a value, of all sizes; sums are in other orders"],
        ["the copies make state by state slow", "yes", _cell(share, ".0f", 100) + ("" if share is None else "%"), _NOT,
         "copies alone, of the seconds of an iteration, for the largest table"],
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- several GPUs, default kernel


def _groups(cases: Sequence[_Case], sizes: Sequence[int]) -> list[str]:
    """Milliseconds of an iteration, of the most iterations of each size; and of bringing the tables there."""
    rows = []
    for case in cases:
        for what in ("algorithm 3", "dense"):
            runs = [_run(case, name_of({"what": what, "devices": count})) for count in sizes]
            if not any(runs):
                continue
            rows.append([
                _point(case, case["iterations"][-1]),
                what,
                *(_cell(run and run["seconds_an_iteration"], ".4g", 1e3) for run in runs),
                *(_cell(_gain(case, what, count, case["iterations"][-1])) for count in sizes if count > 1),
                *(_cell(run and run["load_seconds"], ".4g", 1e3) for run in runs),
            ])  # fmt: skip
    names = [f"{count} GPU{'s' * (count != 1)}" for count in sizes]
    headers = (_POINT, "version", *(f"ms an iteration, {name}" for name in names))
    gains = (f"{name} over one" for name, count in zip(names, sizes, strict=True) if count > 1)
    return markdown((*headers, *gains, *(f"load, ms, {name}" for name in names)), rows)


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
            _point(case, n),
            *(write(seconds_after(case, version, n)) for version in VERSIONS),
            f"{write(seconds)} ({found['what']})" if solved else f"{found['what']}: {found['outcome']}",
            _cell(_ratio(seconds_after(case, "sequential", n), seconds)),
            _cell(_ratio(loaded, seconds)),
            f"{found['sweeps']:.1f}" if solved else _NOT,
            f"{case['residual']:.1e}",
        ])  # fmt: skip
    headers = (_POINT, *(f"{version}, ms" for version in VERSIONS), "default, ms")
    more = ("sequential / default", "dense with its load / default", "backups per state, default", "residual of both")
    return markdown((*headers, *more), rows)
