"""Writers of the text formats and a reader of whole models, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from ooc_mdp.io.source import Format, ReadOptions
from ooc_mdp.model.mdp import Block


@dataclass(frozen=True)
class Model:
    """rows[state][action] = {successor: (probability, reward)}; state_rewards[state]."""

    rows: list[list[dict[int, tuple[float, float]]]]
    state_rewards: list[float]
    labels: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Loaded:
    """The concatenated blocks of a source, as lists, a state each."""

    rows: list[list[dict[int, float]]]
    rewards: list[list[float]]
    terminal: list[float]
    initial: list[float]
    labels: list[list[int]]


def whole(blocks: list[Block]) -> Loaded:
    """One model from the blocks of its states, in order."""
    model = Loaded([], [], [], [], [])
    for block in blocks:
        rows = block.rows
        assert block.first_state == len(model.rows)
        for i in range(rows.n_states):
            begin, end = rows.action_ptr[i : i + 2].tolist()
            spans = [rows.successor_ptr[j : j + 2].tolist() for j in range(begin, end)]
            pairs = [(rows.successors[a:b].tolist(), rows.probabilities[a:b].tolist()) for a, b in spans]
            assert all(sorted(set(s)) == s for s, _ in pairs)
            model.rows.append([dict(zip(s, p, strict=True)) for s, p in pairs])
            model.rewards.append(rows.rewards[begin:end].tolist())
            labels = range(end - begin) if rows.action_labels is None else rows.action_labels[begin:end].tolist()
            model.labels.append(list(labels))
            model.terminal.append(0.0 if rows.terminal_rewards is None else float(rows.terminal_rewards[i]))
            model.initial.append(0.0 if rows.initial_values is None else float(rows.initial_values[i]))
    return model


def read(fmt: Format, path: Path, **options) -> Loaded:
    """Read all blocks of a source in order, then check its totals."""
    source = fmt.open(str(path), ReadOptions(**options))
    try:
        model = whole([read() for read in source.blocks()])
        source.check_totals()
        assert source.n_states == len(model.rows)
    finally:
        source.close()
    return model


@st.composite
def models(draw: st.DrawFn, terminals: bool = True) -> Model:
    """Small models with uneven rows, awkward probabilities and rewards."""
    n = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for _ in range(n):
        state = []
        for _ in range(int(rng.integers(0 if terminals else 1, 4))):
            targets = rng.choice(n, int(rng.integers(1, n + 1)), replace=False).tolist()
            p = rng.dirichlet(np.ones(len(targets))).tolist()
            state.append(
                {
                    t: (q, float(rng.normal() * 10.0 ** int(rng.integers(-8, 9))))
                    for t, q in zip(targets, p, strict=True)
                }
            )
        rows.append(state)
    labels = [sorted(rng.choice(20, len(state), replace=False).tolist()) for state in rows]
    return Model(rows, [float(x) for x in rng.normal(size=n)], labels)


def write_johannsson(model: Model, path: Path) -> None:
    """S:/A:/D: lines; state rewards become initial values."""
    with path.open("w") as file:
        for s, state in enumerate(model.rows):
            file.write(f"S:{s}:{model.state_rewards[s]!r}:{len(state)}\n")
            for label, action in zip(model.labels[s], state, strict=True):
                file.write(f"A:{label}:{len(action)}\n")
                file.writelines(f"D:{t}:{p!r}:{r!r}\n" for t, (p, r) in action.items())


def write_transition_list(model: Model, path: Path) -> None:
    """Lines s a s' p, and the rewards beside it as .rew."""
    with path.open("w") as file:
        for s, state in enumerate(model.rows):
            for label, action in zip(model.labels[s], state, strict=True):
                file.writelines(f"{s} {label} {t} {p!r}\n" for t, (p, _) in action.items())
    path.with_suffix(".rew").write_text("".join(f"{r!r}\n" for r in model.state_rewards))


def write_prism(model: Model, path: Path) -> None:
    """A .tra with .srew and .trew beside it."""
    lines, rewards = [], []
    for s, state in enumerate(model.rows):
        for k, action in enumerate(state):
            lines += [f"{s} {k} {t} {p!r}\n" for t, (p, _) in action.items()]
            rewards += [f"{s} {k} {t} {r!r}\n" for t, (_, r) in sorted(action.items())]
    n, m = len(model.rows), sum(map(len, model.rows))
    path.write_text(f"{n} {m} {len(lines)}\n" + "".join(lines))
    path.with_suffix(".trew").write_text(f"# rewards\n{n} {m} {len(rewards)}\n" + "".join(rewards))
    states = "".join(f"{s} {r!r}\n" for s, r in enumerate(model.state_rewards))
    path.with_suffix(".srew").write_text(f"{n} {n}\n" + states)


def write_drn(model: Model, path: Path) -> None:
    """DRN with two reward models, of which `used` holds r(s) and the mean of the transition rewards."""
    with path.open("w") as file:
        file.write("// test\n@type: MDP\n@value_type: double\n@parameters\n\n@reward_models\nother used \n")
        file.write(f"@nr_states\n{len(model.rows)}\n@nr_choices\n{max(1, sum(map(len, model.rows)))}\n@model\n")
        for s, state in enumerate(model.rows):
            file.write(f'state {s} [1, {model.state_rewards[s]!r}] init "two words"\n//(x={s})\n')
            for label, action in zip(model.labels[s], state, strict=True):
                file.write(f"\taction a{label} [2, {float(label)!r}]\n")
                file.writelines(f"\t\t{t} : {p!r}\n" for t, (p, _) in action.items())


Writer = Callable[[Model, Path], None]
