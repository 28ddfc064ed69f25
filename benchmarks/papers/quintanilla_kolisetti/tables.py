"""The tables of README.md as Markdown, from what run.py wrote; "-" stands where nothing was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from claims import (
    AVERAGE_SHARES,
    CONFIGURATIONS,
    ERRORS,
    SEQUENTIAL,
    SIDES,
    SINGLE_STEPS,
    SUMMATION,
    TRANSITIONS,
    UPDATE,
)
from resident import markdown

__all__ = ["tables_of"]

_NOT = "-"
_ATOMICS, _SEGMENTS, _PLAIN = "transition-atomics", "transition-segments", "plain"


def tables_of(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Lines of each table by its title."""
    worlds: dict[str, Any] = figures["worlds"]
    return {
        "made with": _made_with(figures),
        "claims": _claims(worlds),
        "tables 1 and 2": _steps(worlds),
        "tables 3 to 7": _wholes(worlds),
        "default kernel": _defaults(worlds),
    }


def _made_with(figures: dict[str, Any]) -> list[str]:
    machine, versions = figures["machine"], figures["versions"]
    device = (
        f"kernels on one {machine['device']}" if "device" in machine else "kernels as their schedules, without a GPU"
    )
    lines = [
        f"Made on {machine['cpu']} ({machine['cores']} cores), {machine['seconds_are']}; {device}; "
        f"ooc-mdp {versions['commit']}, Python {versions['python']}, Numba {versions['numba']}."
    ]
    return lines + [f"Left out: {each}." for each in figures["left_out"]]


def seconds_of(run: dict[str, Any] | None, key: str = "seconds") -> float | None:
    """The median, where there is one and the run came to its end."""
    if not run or key not in run or run.get("outcome", "converged") not in ("converged", "residual_reached"):
        return None
    return float(run[key]["median"])


def _run(world: dict[str, Any], kernel: str, configuration: tuple[int, int] | None) -> dict[str, Any] | None:
    wanted = None if configuration is None else list(configuration)
    found = [r for r in world.get("runs", []) if r["kernel"] == kernel and _list(r["configuration"]) == wanted]
    return found[0] if found else None


def _list(configuration: Iterable[int] | None) -> list[int] | None:
    return None if configuration is None else list(configuration)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _cell(value: float | None, form: str = ".3g", scale: float = 1.0) -> str:
    return _NOT if value is None else format(scale * value, form)


def _milliseconds(value: float | None) -> str:
    return _cell(value, ".3f", 1e3)


def _mean(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return sum(found) / len(found) if found else None


def _share(world: dict[str, Any], kernel: str, configuration: tuple[int, int] | None) -> float | None:
    """Seconds of a run over those of the sequential algorithm."""
    return _ratio(seconds_of(_run(world, kernel, configuration)), seconds_of(world.get("sequential")))


def _step(world: dict[str, Any], step: str, kernel: str | None = None) -> float | None:
    """Seconds of one step, by the sequential algorithm unless a kernel is named."""
    if kernel is None:
        return seconds_of(world.get("sequential"), step)
    launch = world.get("launches", {}).get(f"{step}, {kernel}")
    return launch and float(launch["median"])


def _step_share(world: dict[str, Any], step: str, kernel: str) -> float | None:
    return _ratio(_step(world, step, kernel), _step(world, step))


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _claims(worlds: dict[str, Any]) -> list[str]:
    rows: list[list[str]] = []

    def claim(what: str, theirs: str, ours: str, ratio: float | None, why: str) -> None:
        rows.append([what, theirs, ours, _cell(ratio), why])

    for name, world in worlds.items():
        theirs, ours = TRANSITIONS[name], world["transitions"]
        same = "outcomes that end in one cell are one transition; only the count can be compared, not who pays"
        claim(f"transitions of {name}", f"{theirs:,}", f"{ours:,}", ours / theirs, same)
    for name, (sequential, parallel) in SUMMATION.items():
        share = _step_share(worlds.get(name, {}), "summation", "atomics")
        why = "seconds of launches that follow each other; the paper times one, with the wait for it"
        claim(f"table 1, {name}: parallel / sequential", f"{parallel / sequential:.2f}", _cell(share),
              _ratio(share, parallel / sequential), why)  # fmt: skip
    losses = [
        _less(_step(worlds.get(name, {}), "summation"), _step(worlds.get(name, {}), "summation", "atomics"))
        for name in SUMMATION
    ]
    known = [1e3 * loss for loss in losses if loss is not None]
    claim("table 1: what the parallel summation takes more, ms", "about 1.5 in every world",
          f"{min(known):.3g} to {max(known):.3g}" if known else _NOT, None,
          "no wait for a launch, as above")  # fmt: skip
    for name, (sequential, parallel) in UPDATE.items():
        share = _step_share(worlds.get(name, {}), "update", "atomics")
        claim(f"table 2, {name}: parallel / sequential", f"{parallel / sequential:.2f}", _cell(share),
              _ratio(share, parallel / sequential), "as for table 1")  # fmt: skip
    for what, kernel, i in (("sequential", None, 0), ("parallel", "atomics", 1)):
        first, last = (_step(worlds.get(name, {}), "update", kernel) for name in ("Sample1", "Sample4"))
        theirs = UPDATE["Sample4"][i] / UPDATE["Sample1"][i]
        claim(f"table 2, {what}: Sample4 / Sample1", f"{theirs:.3g}", _cell(_ratio(last, first)),
              _ratio(_ratio(last, first), theirs),
              "56 times the states, of which a GPU updates many at a time")  # fmt: skip
    slower = [name for name in SUMMATION if (_step_share(worlds.get(name, {}), "summation", "atomics") or 0) > 1]
    claim("the summation loses time, which the update makes up for", "yes",
          (", ".join(slower) or "no: it is quicker in every world") if known else _NOT, None,
          "no wait for a launch, as above")  # fmt: skip
    for name, share in AVERAGE_SHARES.items():
        ours = _mean(_share(worlds.get(name, {}), _ATOMICS, c) for c in CONFIGURATIONS)
        why = "2 to 8 blocks leave most of a GPU of today idle; machines are not the paper's"
        claim(f"tables 3 to 7, {name}: parallel, % of sequential, mean", f"{share:.1f}", _cell(ours, ".3g", 100),
              _ratio(ours, share / 100), why)  # fmt: skip
    slower = [
        f"({blocks}, {threads}) {name}"
        for blocks, threads in CONFIGURATIONS
        for name in worlds
        if (_share(worlds[name], _ATOMICS, (blocks, threads)) or 0.0) > 1
    ]
    measured = any(_share(worlds[name], _ATOMICS, c) is not None for name in worlds for c in CONFIGURATIONS)
    claim("slower than sequential", "(2, 1024) Sample2", ("; ".join(slower) or "none") if measured else _NOT, None,
          "of the 20 runs of tables 3 to 7; blocks, threads")  # fmt: skip
    for name, error in ERRORS.items():
        runs = [r["error_percent"] for r in worlds.get(name, {}).get("runs", []) if r["kernel"] == _ATOMICS]
        ours = max(runs) if runs else None
        claim(f"error against sequential, {name}, %", f"{error:g}", _cell(ours, ".1e"), _ratio(ours, error),
              "float64; the largest difference over the largest value, of all configurations")  # fmt: skip
    first, last = (_share(worlds.get(name, {}), _ATOMICS, None) for name in ("Sample1", "Sample4"))
    claim("speed-up grows with the world: share of Sample4 / share of Sample1", "0.81", _cell(_ratio(last, first)),
          _ratio(_ratio(last, first), 0.81), "ours with as many blocks as there is work for")  # fmt: skip
    for name in SIDES:
        world = worlds.get(name, {})
        gain = _ratio(seconds_of(_run(world, _SEGMENTS, None)), seconds_of(_run(world, _ATOMICS, None)))
        claim(f"future work, {name}: segmented reduction / atomics, seconds", "below 1", _cell(gain), None,
              "a thread a transition in both; no clearing and no atomics, but five shuffles")  # fmt: skip
    return markdown(("claim", "paper", "ours", "ratio", "why"), rows)


def _steps(worlds: dict[str, Any]) -> list[str]:
    rows = []
    for step, claims in (("summation", SUMMATION), ("update", UPDATE)):
        for name, world in worlds.items():
            launches = world.get("launches", {})
            theirs = claims.get(name)
            cells = [launches.get(f"{step}, {kernel}", {}).get("median") for kernel in ("atomics", "segments")]
            whole = launches.get("sweep, plain", {}).get("median")
            rows.append([
                f"{step}, {name}",
                *([f"{x:.3f}" for x in theirs] if theirs else ["not given"] * 2),
                _milliseconds(seconds_of(world.get("sequential"), step)),
                *map(_milliseconds, [*cells, whole if step == "update" else None]),
            ])  # fmt: skip
    headers = ("milliseconds of one step", "paper, sequential", "paper, parallel", "sequential", "atomics", "segments")
    return markdown((*headers, "both steps, plain"), rows)


def _wholes(worlds: dict[str, Any]) -> list[str]:
    rows = []
    configurations: list[tuple[int, int] | None] = [*CONFIGURATIONS, SINGLE_STEPS, None]
    for number, configuration in enumerate(configurations, 3):
        table = f"{number}: " if configuration in CONFIGURATIONS else ""
        title = "a thread for each" if configuration is None else "{} blocks of {}".format(*configuration)
        for name, world in worlds.items():
            atomics, segments = (_run(world, kernel, configuration) for kernel in (_ATOMICS, _SEGMENTS))
            share = _share(world, _ATOMICS, configuration)
            theirs = CONFIGURATIONS.get(configuration, {}).get(name)  # type: ignore[arg-type]
            claimed = None if theirs is None else theirs / SEQUENTIAL[name]
            rows.append([
                f"{table}{title}, {name}",
                f"{SEQUENTIAL[name]:.1f} / {theirs:.1f}" if theirs is not None else "not given",
                f"{_milliseconds(seconds_of(world.get('sequential')))} / {_milliseconds(seconds_of(atomics))}",
                _milliseconds(seconds_of(segments)),
                f"{atomics['passes']} / {world['sequential']['sweeps']}" if atomics and "sequential" in world else _NOT,
                f"{_cell(claimed, '.2f')} / {_cell(share)}",
                _cell(_ratio(share, claimed)),
            ])  # fmt: skip
    headers = ("table: configuration, world", "paper, ms: sequential / parallel", "ours, ms: sequential / atomics")
    more = ("segments, ms", "passes / sequential sweeps", "share of sequential: paper / ours", "ratio")
    return markdown((*headers, *more), rows)


def _defaults(worlds: dict[str, Any]) -> list[str]:
    rows = []
    for name, world in worlds.items():
        default, sequential = world.get("default"), seconds_of(world.get("sequential"))
        best = [seconds_of(_run(world, kernel, None)) for kernel in (_PLAIN, _ATOMICS, _SEGMENTS)]
        seconds = seconds_of(default)
        rows.append([
            f"{name}, {world['states']:,} states",
            f"{SEQUENTIAL[name]:.1f} / {min(c[name] for c in CONFIGURATIONS.values()):.1f}",
            *map(_milliseconds, [sequential, *best]),
            f"{_milliseconds(seconds)} ({default['what']})" if default else _NOT,
            _cell(_ratio(sequential, seconds)),
            f"{default['sweeps']:.1f}" if default else _NOT,
            f"{default['residual']:.1e}" if default else _NOT,
        ])  # fmt: skip
    headers = ("milliseconds to convergence", "paper: sequential / best parallel", "sequential", "plain", "atomics")
    more = ("segments", "default", "sequential / default", "backups per state, default", "residual bound, default")
    return markdown((*headers, *more), rows)
