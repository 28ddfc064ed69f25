"""What the run scripts of the papers share: options, the budget of seconds, figures that are kept as they come, tables.

    parse ─▶ PaperRun: may_begin(part) ─▶ measure ─▶ keep(part) ─▶ ... ─▶ finish ─▶ FILE.json ─▶ --document: tables

The file is written anew after every part, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import measuring
from resident import device_facts, fill_in

__all__ = ["PaperRun", "add_run_options", "document"]

Tables = Mapping[str, Sequence[str]]
TablesOf = Callable[[dict[str, Any]], Tables]
_NO_SETTINGS = ("document", "into")


def add_run_options(parser: argparse.ArgumentParser, repeat: int, limit: float, budget: float) -> None:
    """--device, --toy, --repeat, --time-limit, --budget, --document, --into and the options of every benchmark."""
    parser.add_argument("--device", default="cpu", help="cuda:0, or cpu: then kernels run as their schedules in NumPy")
    parser.add_argument("--toy", action="store_true", help="small models, to see that everything runs")
    parser.add_argument("--repeat", type=int, default=repeat, help="runs of each kind, where they are short")
    parser.add_argument("--time-limit", type=float, default=limit, help="seconds of a run")
    parser.add_argument("--budget", type=float, default=budget, help="seconds in all, then no further part begins")
    parser.add_argument(
        "--document",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print kept figures as tables, and end; further files give parts that the first left out",
    )
    parser.add_argument("--into", type=Path, metavar="README", help="with --document: put them into this file")
    measuring.add_common_options(parser)


class PaperRun:
    """Figures of one paper while they are measured.

    Parameters
    ----------
    name : of the paper's folder.
    figures : by part; filled by the caller. "left_out" is added: the parts for which there was no time.
    """

    def __init__(
        self, name: str, options: argparse.Namespace, figures: dict[str, Any], not_included: Sequence[str]
    ) -> None:
        self.figures = figures | {"left_out": []}
        self._name, self._options, self._not_included = name, options, tuple(not_included)
        machine = measuring.machine(options.machine_shared) | device_facts(options.device)
        self._facts = {"machine": machine, "versions": measuring.versions()}
        self._began = time.monotonic()

    def may_begin(self, part: str) -> bool:
        """Whether the budget leaves time for a part; if not, it is recorded as left out."""
        if self._seconds() <= self._options.budget:
            return True
        self.figures["left_out"].append(f"{part}: the budget of {self._options.budget:g} s was spent")
        return False

    def keep(self, part: str) -> None:
        """Write the figures, which have a part more now."""
        measuring.say(f"{self._seconds():6.1f} s  {part}")
        self._write()

    def finish(self, tables_of: TablesOf) -> None:
        """Write the figures and print their tables."""
        self.figures["seconds"] = self._seconds()
        self._write()
        _show(tables_of({**self._facts, "settings": vars(self._options), **self.figures}))

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _write(self) -> None:
        settings = {name: value for name, value in vars(self._options).items() if name not in _NO_SETTINGS}
        kept = argparse.Namespace(**settings)
        measuring.write_figures(self._name, kept, self.figures, self._facts, self._not_included)


def document(options: argparse.Namespace, tables_of: TablesOf) -> bool:
    """Print the tables of kept figures, or put them into a file, where --document asks for that; whether it does."""
    if options.document is None:
        return False
    first, *further = (json.loads(file.read_text()) for file in options.document)
    tables = tables_of(_with_further(first, further))
    if options.into is None:
        _show(tables)
    else:
        options.into.write_text(fill_in(options.into.read_text(), tables))
    return True


def _with_further(figures: dict[str, Any], further: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures with those parts of further files that they left out; "further" has what is known of these files."""
    found = figures | {"further": []}
    for other in further:
        parts = {name: other[name] for name in other["settings"]["part"] if other[name] and not found.get(name)}
        left_out = [each for each in found["left_out"] if each.split(",")[0] not in parts]
        about = {name: other[name] for name in ("machine", "versions", "settings")} | {"parts": list(parts)}
        found |= parts | {"left_out": left_out, "further": [*found["further"], about]}
    return found


def _show(tables: Tables) -> None:
    print("\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in tables.items()))
