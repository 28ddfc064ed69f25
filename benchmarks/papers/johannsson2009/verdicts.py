"""The table of claims: what the thesis says in numbers and in words, and what the figures say to that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from cells import NOT, Table, mean_seconds, number, run_of, speed_up
from claims import CARD_BYTES, MEANS, MEANS_ABOVE_TWO_MILLION, SWEEP_TIME_GROWTH
from resident import markdown

__all__ = ["verdicts"]

_World = Mapping[str, Any]
_Row = tuple[str, ...]
_OURS = 2
_GPU = "a GPU and a core of today, values in float64 in place of float32"


def verdicts(figures: Mapping[str, Any]) -> Table:
    """Claim, thesis, ours, ratio, why."""
    worlds: Sequence[_World] = figures["worlds"]
    rows = [*_means(worlds), *_growth(worlds), *_costs(worlds), *_ranks(worlds), *_counts(worlds)]
    rows += _locality(figures.get("locality", [])) + _size(figures.get("large", []))
    explained = [row if row[_OURS] != NOT else (*row[:-1], "not measured") for row in rows]
    return markdown(("claim", "thesis", "ours", "ratio", "why"), explained)


def _row(claim: str, said: float, ours: float | None, why: str) -> _Row:
    return claim, number(said), number(ours), number(ours / said if ours else None), why


def _means(worlds: Sequence[_World]) -> list[_Row]:
    rows = []
    for word in ("bdi", "rdi"):
        for said, key, what in zip(MEANS[word], ("seconds", "sweep_seconds"), ("a solve", "a sweep"), strict=True):
            ours = _mean([speed_up(w, word, key) for w in worlds])
            rows.append(_row(f"{word}: mean speed-up of {what}, table 6.2", said, ours, _GPU))
    for word, said in MEANS_ABOVE_TWO_MILLION.items():
        ours = _mean([speed_up(w, word, "seconds") for w in worlds if w["cost"] > 2e6])
        rows.append(
            _row(
                f"{word}: the same of solves that cost above 2 million",
                said,
                ours,
                "as above; a larger world gives a GPU more to do at a time",
            )
        )
    return rows


def _growth(worlds: Sequence[_World]) -> list[_Row]:
    least, most = min(worlds, key=lambda w: w["cost"]), max(worlds, key=lambda w: w["cost"])
    rows, factor = [], most["cost"] / least["cost"]
    for word, said in SWEEP_TIME_GROWTH.items():
        a, b = (run_of(w, word).get("sweep_seconds") for w in (most, least))
        why = f"the cost grows by {factor:,.0f}; a launch takes microseconds however little it does"
        why = f"the cost grows by {factor:,.0f}" if word == "sequential" else why
        rows.append(
            _row(f"{word}: time of a sweep, {most['name']} over {least['name']}", said, a / b if a and b else None, why)
        )
    return rows


def _costs(worlds: Sequence[_World]) -> list[_Row]:
    """Section 6.5 and figure 6.7: seconds of a sweep over the computational cost."""
    ordered = sorted(worlds, key=lambda w: w["cost"])
    rows = []
    for word, said, why in (
        (
            "sequential",
            "increases with the cost",
            "the values of the most costly world, 4 MiB, fit into a cache of today",
        ),
        ("bdi", "decreases and almost levels out", "a launch of microseconds is shared by more states"),
        ("rdi", "decreases and almost levels out", "three launches of microseconds are shared by more states"),
    ):
        found = [run_of(w, word).get("sweep_seconds") for w in ordered]
        each = [1e9 * t / w["cost"] for t, w in zip(found, ordered, strict=True) if t]
        middle = each[len(each) // 2] if each else None
        least_first = f"{number(each[0])}, {number(middle)}, {number(each[-1])} ns" if each else NOT
        claim = f"{word}: time of a unit of cost, least, middle and most costly world"
        rows.append((claim, said, least_first, NOT, why))
    return rows


def _ranks(worlds: Sequence[_World]) -> list[_Row]:
    def seconds(world: _World, word: str) -> float | None:
        return mean_seconds(run_of(world, word))

    by_cost = sorted(worlds, key=lambda w: w["cost"])
    gaps = [(seconds(w, "rdi"), seconds(w, "bdi")) for w in (by_cost[0], by_cost[-1])]
    gap = " and ".join(number(rdi / bdi) if rdi and bdi else NOT for rdi, bdi in gaps)
    halves = _holds(
        worlds,
        lambda w: (speed_up(w, "rdi", "sweep_seconds"), speed_up(w, "bdi", "sweep_seconds")),
        lambda rdi, bdi: rdi < bdi / 2,
    )
    faster = _holds(worlds, lambda w: (seconds(w, "bdi"), seconds(w, "rdi")), lambda bdi, rdi: bdi < rdi)
    slower = _holds(worlds, lambda w: (seconds(w, "rdi"), seconds(w, "sequential")), lambda rdi, base: rdi > base)
    return [
        (
            "bdi solves faster than rdi",
            "12 of 12 worlds",
            faster,
            NOT,
            "8 sweeps a launch against 3 launches a sweep",
        ),
        ("rdi solves slower than the baseline", "1 of 12, GW-64x64x1", slower, NOT, "a look after every sweep"),
        (
            "rdi / bdi, time of a solve, in the least and in the most costly world",
            "almost closed: 5.9 and 1.3",
            NOT if NOT in gap else gap,
            NOT,
            "bdi needs three times the sweeps in the most costly one",
        ),
        (
            "speed-up of a sweep: rdi reaches less than half of bdi's",
            "yes",
            halves,
            NOT,
            "rdi writes and reads a value of every transition through device memory",
        ),
        ("occupancy of bdi and rdi", "67% and 100%", NOT, NOT, "not measured: no profiler was run"),
    ]


def _counts(worlds: Sequence[_World]) -> list[_Row]:
    def sweeps(world: _World, word: str) -> int | None:
        run = run_of(world, word)
        return run["sweeps"] if run["outcome"] == "residual_reached" else None

    rows = []
    for word in ("rdi", "bdi"):
        more = _holds(worlds, lambda w, word=word: (sweeps(w, word), sweeps(w, "sequential")), lambda a, b: a > b)
        why = "Jacobi against Gauss-Seidel" if word == "rdi" else "values from outside a block are up to 8 sweeps old"
        rows.append((f"{word} needs more sweeps than the baseline", "12 of 12 worlds", more, NOT, why))
    by = {(w["side"], w["successors"]): w for w in worlds}
    pairs = [(by[side, 1], by[side, 4]) for side, k in by if k == 1 and (side, 4) in by]
    for word, said, test in (
        ("sequential", "fewer", lambda few, many: many < few),
        ("rdi", "fewer", lambda few, many: many < few),
        ("bdi", "more", lambda few, many: many > few),
    ):
        held = _holds(pairs, lambda p, word=word: (sweeps(p[0], word), sweeps(p[1], word)), test)
        why = "here the reward states are the same for both, in the thesis that is not said"
        rows.append((f"{word}: {said} sweeps with four successors than with one", "yes", f"{held} (sides)", NOT, why))
    for word in ("sequential", "rdi"):
        ends = []
        for k, successors in ((1, "one successor"), (4, "four")):
            grown = sorted((w["side"], sweeps(w, word)) for w in worlds if w["successors"] == k and sweeps(w, word))
            ends += [f"{grown[0][1]} to {grown[-1][1]} ({successors})"] if grown else []
        found = ", ".join(ends) or NOT
        why = "reward states are drawn anew for each side, as in the thesis"
        rows.append((f"{word}: sweeps increase slightly with the side", "yes", found, NOT, why))
    known = sorted((w["side"], sweeps(w, "bdi")) for w in worlds if w["successors"] == 4 and sweeps(w, "bdi"))
    grown = " to ".join(f"{n} ({side})" for side, n in (known[0], known[-1])) if known else NOT
    rows.append(
        (
            "bdi: sweeps grow with the side, four successors",
            "yes",
            grown,
            NOT,
            "140 cells away, with discount 0.9, a reward of 20 for ever counts for less than 1e-4",
        )
    )
    return rows


def _locality(worlds: Sequence[_World]) -> list[_Row]:
    rows = []
    for word in ("sequential", "bdi", "rdi"):
        runs = [run_of(w, word) for w in worlds]
        sweeps = [run["sweeps"] for run in runs if run["outcome"] == "residual_reached"]
        if runs and len(sweeps) == len(runs):
            found = f"{sweeps[0]} without random successors, {min(sweeps[1:])} to {max(sweeps[1:])} with them"
            why = "a random successor is in another block, and its value up to 8 sweeps old"
            why = why if word == "bdi" else "no value that is read is older than a sweep, wherever it is"
            rows.append((f"{word}: locality hardly changes the number of sweeps", "yes", found, NOT, why))
    return rows


def _size(worlds: Sequence[_World]) -> list[_Row]:
    rows = []
    for world in worlds:
        begun = [run for run in world["runs"] if run["what"] != "sequential" and run["outcome"] != "not run"]
        ours = f"no: {sum(run['outcome'] == 'residual_reached' for run in begun)} of {len(begun)} solves below succeed"
        why = f"its table takes {world['thesis_bytes'] / 2**20:,.0f} MiB, its card has {CARD_BYTES >> 20}"
        rows.append((f"{world['name']} cannot be loaded", "yes", ours, NOT, why))
    return rows


def _holds(worlds: Iterable[Any], values: Callable[[Any], tuple[Any, Any]], test: Callable[[Any, Any], bool]) -> str:
    """In how many of the worlds where both are known."""
    known = [pair for pair in map(values, worlds) if None not in pair]
    return f"{sum(test(*pair) for pair in known)} of {len(known)}" if known else NOT


def _mean(ratios: Sequence[float | None]) -> float | None:
    """None unless all are known."""
    known = [ratio for ratio in ratios if ratio is not None]
    return mean(known) if known and len(known) == len(ratios) else None
