"""Text models with one entry altered, and what the altered text says: a naive parser of each text format.

The parsers split lines and words, look at everything, and raise Invalid for what they do not understand. They may
accept more than a reader (lines in another order, say), never less than the format defines.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from exact_rows import Entry, Exact, Invalid, decimal, integer, random_model, row
from text_models import Model, write_drn, write_johannsson, write_prism, write_transition_list

__all__ = ["TEXT_FORMATS", "TextFormat", "alter_text"]

_WORD = re.compile(r'[^\s:,\[\]"<>=/]+')
_WORDS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "7",
        "-1",
        "+1",
        "00",
        "01",
        "1.0",
        "1.9",
        "0.3",
        "1e0",
        "0.5",
        "0.25",
        "0.75",
        "-0.0",
    ),
    *(
        "1/2",
        "1/4",
        "2/2",
        "1/0",
        "nan",
        "inf",
        "-inf",
        "None",
        "True",
        "false",
        "0x1",
        "1_0",
        "1,5",
        "\uff11",
        ".",
        "-",
        "+",
    ),
    *("1e400", "1e-400", "99999999999999999999", "0.5.5", "5e", "[1]", "[0.2,0.3]", "#", "//", "!", "state", "action"),
    *("S", "A", "D", "s", "MDP", "DTMC", "id", "used", "other", "@model", "@nr_states", "0.3333333333333333333333333"),
)
_CHARACTERS = "0123456789.-+eE/:,[]{}\"'#!@<>= \t\r\n\x00\x0b\x1c\xa0\u0662SADx"


def alter_text(rng: Random, text: str) -> str:
    """The text with one word, line or character altered, left out, repeated or added."""
    words = list(_WORD.finditer(text))
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    match rng.choice("wwwwwwwwxrdllLisccct"):
        case "w" | "x" | "r" | "d" as kind if words:
            word = rng.choice(words)
            own, other = word.group(), rng.choice(words).group()
            new = {
                "w": rng.choice(_WORDS),
                "x": other,
                "r": own + rng.choice((" ", ":", "", ", ")) + own,
                "d": "",
            }[kind]
            return text[: word.start()] + new + text[word.end() :]
        case "l":
            del lines[at]
        case "L":
            lines.insert(at, lines[at])
        case "i":
            lines.insert(at, rng.choice(("", " ", "# x", "// x", "junk", rng.choice(lines))))
        case "s":
            other_at = rng.randrange(len(lines))
            lines[at], lines[other_at] = lines[other_at], lines[at]
        case "c":
            place = rng.randrange(len(text) + 1)
            new = rng.choice(("", rng.choice(_CHARACTERS)))
            return text[:place] + new + text[place + rng.randint(0, 1) :]
        case _:
            return text[: rng.randrange(len(text))]
    return "\n".join(lines)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise Invalid("no UTF-8") from None


def _lines(data: bytes, comment: str = "#") -> list[str]:
    """Lines that are neither blank nor comments."""
    lines = (line.strip(" \t\r") for line in _text(data).split("\n"))
    return [line for line in lines if line and not line.startswith(comment)]


def _words(line: str, *counts: int) -> list[str]:
    words = line.split()
    if len(words) not in counts:
        raise Invalid(f"{line!r} has {len(words)} words")
    return words


def _transition_list(files: dict[str, bytes]) -> Exact:
    rewards = [decimal(_words(line, 1)[0]) for line in _lines(files["m.rew"])]
    found: list[dict[int, list[Entry]]] = [{} for _ in rewards]
    for line in _lines(files["m.txt"]):
        state, action, successor, p = _words(line, 4)
        if not 0 <= integer(state) < len(rewards):
            raise Invalid(f"state {state}")
        found[integer(state)].setdefault(integer(action), []).append(Entry(integer(successor), decimal(p)))
    if not found or not all(found) or any(min(actions) < 0 for actions in found):
        raise Invalid("a state without actions, or an action below 0")
    n = len(rewards)
    return Exact(
        [[row(actions[a], n, own, a) for a in sorted(actions)] for actions, own in zip(found, rewards, strict=True)]
    )


def _johannsson(files: dict[str, bytes]) -> Exact:
    states: list[tuple[Fraction, int, list[tuple[int, int, list[Entry]]]]] = []
    for line in _lines(files["m.txt"]):
        letter, *fields = (part.strip() for part in line.split(":"))
        if letter == "S" and len(fields) == 3 and integer(fields[0]) == len(states):
            states.append((decimal(fields[1]), integer(fields[2]), []))
        elif letter == "A" and len(fields) == 2 and states:
            states[-1][2].append((integer(fields[0]), integer(fields[1]), []))
        elif letter == "D" and len(fields) == 3 and states and states[-1][2]:
            entry = Entry(integer(fields[0]), decimal(fields[1]), decimal(fields[2]))
            states[-1][2][-1][2].append(entry)
        else:
            raise Invalid(f"{line!r} is out of place")
    rows = []
    for _, count, actions in states:
        if count != len(actions) or any(len(entries) != announced for _, announced, entries in actions):
            raise Invalid("a count that differs")
        labels = [label for label, _, _ in actions]
        if len(set(labels)) < len(labels) or any(label < 0 for label in labels):
            raise Invalid("action numbers")
        rows.append([row(entries, len(states), label=label) for label, _, entries in actions])
    if not rows:
        raise Invalid("no state")
    return Exact(rows, initial={s: value for s, (value, _, _) in enumerate(states)})


def _header(lines: list[str], count: int) -> list[int]:
    if not lines:
        raise Invalid("no header")
    numbers = [integer(word) for word in _words(lines[0], count)]
    if min(numbers) < 0:
        raise Invalid("a count below 0")
    return numbers


def _prism(files: dict[str, bytes]) -> Exact:
    tra, srew, trew = (_lines(files[name]) for name in ("m.tra", "m.srew", "m.trew"))
    dtmc = bool(tra) and len(tra[0].split()) == 2
    n, *n_choices, n_transitions = _header(tra, 2 if dtmc else 3)
    if not 1 <= n <= 1000 or n_transitions != len(tra) - 1:
        raise Invalid("counts of the .tra file")
    if _header(srew, 2) != [n, len(srew) - 1] or _header(trew, 2 if dtmc else 3) != [n, *n_choices, len(trew) - 1]:
        raise Invalid("counts of a reward file")
    state_rewards: dict[int, Fraction] = {}
    for line in srew[1:]:
        state, reward = _words(line, 2)
        if not 0 <= integer(state) < n or integer(state) in state_rewards:
            raise Invalid(f"state {state}")
        state_rewards[integer(state)] = decimal(reward)
    rewards: dict[tuple[int, ...], Fraction] = {}
    for line in trew[1:]:
        *place, reward = _words(line, 3 if dtmc else 4)
        key = tuple(map(integer, place if not dtmc else (place[0], "0", place[1])))
        if key in rewards:
            raise Invalid(f"a second reward of {key}")
        rewards[key] = decimal(reward)
    found: list[dict[int, list[Entry]]] = [{} for _ in range(n)]
    paid = set()
    for line in tra[1:]:
        words = _words(line, *((3, 4) if dtmc else (4, 5)))
        if dtmc:
            words.insert(1, "0")
        key = tuple(map(integer, words[:3]))
        if not 0 <= key[0] < n or (len(words) == 5 and re.match(r"[-+.]?[0-9]|\[", words[4])):
            raise Invalid(f"{line!r}: a state, or a number where a name may be")
        paid.add(key)
        entry = Entry(key[2], decimal(words[3]), rewards.get(key, Fraction(0)))
        found[key[0]].setdefault(key[1], []).append(entry)
    if not paid.issuperset(rewards) or any(sorted(actions) != list(range(len(actions))) for actions in found):
        raise Invalid("a reward without transition, or choices that are not 0, 1, ...")
    if n_choices and sum(map(len, found)) != n_choices[0]:
        raise Invalid("number of choices")
    rows = [
        [row(actions[k], n, state_rewards.get(s, Fraction(0)), k) for k in sorted(actions)]
        for s, actions in enumerate(found)
    ]
    return Exact(rows, terminal=state_rewards)


_CONTENT = ("@parameters", "@reward_models", "@nr_states", "@nr_choices")


def _drn_header(lines: Iterator[str]) -> dict[str, str]:
    """The sections before @model with what they hold."""
    header: dict[str, str] = {}
    section = ""
    for line in lines:
        if section in _CONTENT and not line.startswith("@"):
            header[section], section = line, ""
            continue
        if not line or line.startswith("//"):
            continue
        section, _, value = line.partition(":")
        if section in header or section not in (*_CONTENT, "@type", "@value_type", "@placeholders", "@model"):
            raise Invalid(f"{line!r} in the header")
        header[section] = value.strip()
        if section == "@model":
            return header
    raise Invalid("no @model")


def _drn_rewards(rest: str, count: int, wanted: int) -> tuple[Fraction, str]:
    if not rest.startswith("["):
        return Fraction(0), rest
    listed, bracket, rest = rest[1:].partition("]")
    rewards = listed.split(",")
    if not bracket or len(rewards) != count:
        raise Invalid(f"{len(rewards)} rewards of {count}")
    return decimal(rewards[wanted].strip()), rest


def _drn(files: dict[str, bytes]) -> Exact:
    lines = iter([line.strip() for line in _text(files["m.drn"]).split("\n")])
    header = _drn_header(lines)
    kind, names = header.get("@type", "").lower(), header.get("@reward_models", "").split()
    if (
        kind not in ("mdp", "dtmc")
        or header.get("@value_type", "double") not in ("double", "rational")
        or header.get("@parameters")
    ):
        raise Invalid("not an MDP of doubles")
    if names.count("used") != 1 or "@nr_states" not in header:
        raise Invalid("reward models or number of states")
    wanted = names.index("used")
    states: list[tuple[Fraction, list[tuple[Fraction, list[Entry]]]]] = []
    for line in lines:
        if not line or line.startswith("//"):
            continue
        word, _, rest = re.sub("[\t\r]", " ", line).partition(" ")
        if word == "state":
            number, _, rest = rest.strip().partition(" ")
            reward, _ = _drn_rewards(rest.strip(), len(names), wanted)
            if integer(number) != len(states):
                raise Invalid(f"state {number}")
            states.append((reward, []))
        elif word == "action" and states:
            reward, rest = _drn_rewards(rest.strip().partition(" ")[2].strip(), len(names), wanted)
            if rest.strip():
                raise Invalid(f"{rest!r} after the rewards")
            states[-1][1].append((reward, []))
        else:
            successor, colon, p = (part.strip() for part in line.partition(":"))
            if not colon or not states:
                raise Invalid(f"{line!r} is out of place")
            if not states[-1][1]:
                states[-1][1].append((Fraction(0), []))
            states[-1][1][-1][1].append(Entry(integer(successor), decimal(p)))
    n = len(states)
    counts = [len(actions) for _, actions in states]
    if integer(header["@nr_states"]) != n or (kind == "dtmc" and max(counts, default=0) > 1):
        raise Invalid("number of states or actions")
    if header.get("@nr_choices") and integer(header["@nr_choices"]) != sum(counts):
        raise Invalid("number of choices")
    rows = [[row(entries, n, own + r, k) for k, (r, entries) in enumerate(actions)] for own, actions in states]
    return Exact(rows, terminal={s: own for s, (own, _) in enumerate(states)})


def _write_xml(model: Model, path: Path) -> None:
    lines = ['<?xml version="1.0"?>', '<MDP domain="d" author="a">', "<Description>one, two</Description>", "<States>"]
    for s, state in enumerate(model.rows):
        lines.append(f'<State id="{s}"><AvailableActions>')
        for label, action in zip(model.labels[s], state, strict=True):
            lines.append(f'<Action id="{label}">')
            lines += [
                f'<ResultingState id="{t}" probability="{p!r}" actionReward="{r!r}"/>' for t, (p, r) in action.items()
            ]
            lines.append("</Action>")
        lines.append("</AvailableActions></State>")
    path.write_text("\n".join([*lines, "</States>", "</MDP>"]))


_INSIDE = {
    "MDP": ("Description", "Actions", "States"),
    "States": ("State",),
    "State": ("AvailableActions",),
    "AvailableActions": ("Action",),
    "Action": ("ResultingState",),
}


def _xml(files: dict[str, bytes]) -> Exact:
    try:
        root = xml.fromstring(files["m.xml"])
    except (xml.ParseError, ValueError, LookupError):
        raise Invalid("no XML") from None
    if root.tag != "MDP" or not set(root.attrib) <= {"domain", "author"}:
        raise Invalid("the root")
    actions = [element for part in root.findall("States") for element in part]
    for parent in (root, *root.findall("States"), *actions, *root.findall("States//AvailableActions")):
        _check_children(parent, *{"MDP": (), "State": ("id",)}.get(parent.tag, ()))
    states = root.findall("States/State")
    if [integer(state.get("id", "")) for state in states] != list(range(len(states))) or not states:
        raise Invalid("ids of states")
    return Exact([[_xml_row(action, len(states)) for action in _xml_actions(state)] for state in states])


def _check_children(element: xml.Element, *attributes: str) -> None:
    allowed = _INSIDE[element.tag]
    tags = [child.tag for child in element]
    if not set(tags) <= set(allowed) or tags.count("States") > 1 or tags.count("AvailableActions") > 1:
        raise Invalid(f"{tags} inside {element.tag}")
    if element.tag != "MDP" and set(element.attrib) != set(attributes):
        raise Invalid(f"attributes of {element.tag}")
    texts = [element.text, *(child.tail for child in element)]
    if any(text and text.strip() for text in texts):
        raise Invalid(f"text inside {element.tag}")


def _xml_actions(state: xml.Element) -> list[xml.Element]:
    actions = state.findall("AvailableActions/Action")
    labels = [integer(action.get("id", "")) for action in actions]
    if len(set(labels)) < len(labels) or any(label < 0 for label in labels):
        raise Invalid("ids of actions")
    return actions


def _xml_row(action: xml.Element, n_states: int) -> Any:
    _check_children(action, "id")
    entries = []
    for element in action:
        if set(element.attrib) != {"id", "probability", "actionReward"} or len(element) or (element.text or "").strip():
            raise Invalid("a ResultingState")
        p, reward = decimal(element.attrib["probability"]), decimal(element.attrib["actionReward"])
        entries.append(Entry(integer(element.attrib["id"]), p, reward))
    return row(entries, n_states, label=integer(action.attrib["id"]))


@dataclass(frozen=True)
class TextFormat:
    """A text format: how a valid model is written, and what an altered one says."""

    name: str
    file: str
    write: Callable[[Model, Path], None]
    meaning: Callable[[dict[str, bytes]], Exact]
    every_state_acts: bool = False
    others: tuple[str, ...] = ()
    """Files beside the model."""

    def make(self, rng: Random, folder: Path, altered: bool) -> tuple[str, dict[str, Any], Callable[[], Exact]]:
        """Write a model into a folder: the source, the options for reading it, and what says its meaning."""
        model = random_model(rng)
        while not (all if self.every_state_acts else any)(model.rows):
            model = random_model(rng)
        self.write(model, folder / self.file)
        if altered:
            chosen = folder / rng.choice((self.file, self.file, *self.others))
            text = alter_text(rng, chosen.read_text())
            chosen.write_bytes(text.encode("utf-8", "surrogatepass"))
        files = {name: (folder / name).read_bytes() for name in (self.file, *self.others)}
        options: dict[str, Any] = {}
        if self.name == "transition-list":
            options["rewards"] = folder / self.others[0]
        if self.name == "drn":
            options["reward_model"] = "used"
        return str(folder / self.file), options, lambda: self.meaning(files)


TEXT_FORMATS = (
    TextFormat("transition-list", "m.txt", write_transition_list, _transition_list, True, ("m.rew",)),
    TextFormat("johannsson", "m.txt", write_johannsson, _johannsson),
    TextFormat("johannsson-xml", "m.xml", _write_xml, _xml),
    TextFormat("prism", "m.tra", write_prism, _prism, others=("m.srew", "m.trew")),
    TextFormat("drn", "m.drn", write_drn, _drn),
)
