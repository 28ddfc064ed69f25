"""The command `cache-sweep`, which solves a store with caches of several sizes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.choices import GroupedCommand, option_field, option_fields, with_choices
from ooc_mdp.cli.options import JsonOption, OverwriteOption, StoreArgument, TrustOption
from ooc_mdp.cli.tables import print_json
from ooc_mdp.measuring import DEFAULT_SIZES
from ooc_mdp.options import SolveOptions
from ooc_mdp.sizes import counted

__all__ = ["cache_sweep"]


_SolvesFields: Any = dataclasses.make_dataclass(
    "_SolvesFields",
    [
        *option_fields(
            SolveOptions,
            only=("epsilon", "residual", "sweeps_per_visit", "sweep_order", "device"),
            heading="Each solve",
        ),
        option_field("time_limit", float, None, "Seconds until a solve stops, and the next one begins."),
    ],
)


class SolvesChoices(_SolvesFields):  # type: ignore[misc]
    """What each solve proves, and how."""

    heading: ClassVar[str] = "Each solve"


@dataclass(frozen=True, slots=True)
class SweepFiles:
    """Output files of a cache sweep."""

    heading: ClassVar[str] = "Files"

    output: Annotated[Path | None, typer.Option(help="JSON file of the sweep, replaced after each solve.")] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the solves that the output has, and do the others.")
    ] = False
    csv: Annotated[Path | None, typer.Option(help="CSV file with a line for each solve.")] = None
    plot: Annotated[Path | None, typer.Option(help="Plot of the sweep: .png, .svg or .pdf.")] = None
    overwrite: OverwriteOption = False

    def check(self, n_schedules: int) -> None:
        """Refuse, before the first solve, files that could not be written after the last."""
        from ooc_mdp.report.cache_plot import check_plot
        from ooc_mdp.store.atomic_file import check_output_files

        check_output_files(self.output, self.csv, self.plot, overwrite=True)
        check_output_files(self.csv, self.plot, overwrite=self.overwrite)
        if self.plot is not None:
            check_plot(self.plot, n_schedules)


@app.command("cache-sweep", cls=GroupedCommand)
@with_choices(SolvesChoices, SweepFiles)
def cache_sweep(
    store: StoreArgument,
    discount: Annotated[float, typer.Option(help="Discount per step (or unit of duration), at least 0 and below 1.")],
    solves: SolvesChoices,
    files: SweepFiles,
    sizes: Annotated[
        str, typer.Option(help="Cache sizes, as shares of the table's decoded bytes or in bytes, such as 5%,64MiB.")
    ] = DEFAULT_SIZES,
    priority: Annotated[
        str | None,
        typer.Option(help="Priorities of p-eva: joint, h1, h2, hybrid, exact-h1, exact-h2, exact-hybrid."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Methods: auto, vi, p-eva, policy-iteration; p-eva with each priority.")
    ] = "auto",
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Solve a store with each of several caches and measure loads per partition, hit rate, bytes and seconds.

    Every figure is of a real solve with that cache. For vi and exact priorities, whose accesses come in the same order
    with any cache, loads of the same accesses under LRU and Belady's optimum are shown too.

    Exit status 1 if a solve was stopped, or did not reach its target.
    """
    from ooc_mdp import api
    from ooc_mdp.measuring import cache_sweep_with
    from ooc_mdp.model.criterion import Discounted
    from ooc_mdp.options import CacheSize
    from ooc_mdp.report.cache_sweep import SweepPlan, parse_words
    from ooc_mdp.report.cache_sweep_plot import plot_cache_sweep
    from ooc_mdp.report.cache_sweep_report import print_cache_sweep, write_cache_table
    from ooc_mdp.report.progress import SolveProgressLine
    from ooc_mdp.report.terminal import print_note, print_short_note

    options = SolveOptions(
        Discounted(discount), solves.epsilon, solves.residual, sweep_order=solves.sweep_order, device=solves.device
    )
    asked = [CacheSize.parse(size) for size in parse_words(sizes)]
    words = parse_words(method), parse_words(priority or "")
    plan = SweepPlan.of(options, *words, asked, solves.sweeps_per_visit, solves.time_limit)
    files.check(len(plan.schedules))
    print_note(
        f"{counted(len(plan.schedules) * len(plan.sizes), 'solve')} of {store}: "
        f"{', '.join(schedule.label for schedule in plan.schedules)} at {', '.join(size.text for size in plan.sizes)}"
    )
    with SolveProgressLine() as line:
        table = api.open_store(store, trust=trust, note=print_note)
        found = cache_sweep_with(
            table,
            plan,
            files.output,
            resume=files.resume,
            overwrite=files.overwrite,
            progress=line,
            note=print_short_note,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        print_cache_sweep(found)
    if files.csv is not None:
        write_cache_table(found, files.csv, overwrite=files.overwrite)
    if files.plot is not None:
        plot_cache_sweep(found, files.plot, overwrite=files.overwrite)
    missing = sum(found.point(schedule.label, size.text) is None for schedule, size in plan.solves())
    if missing:
        how = "name an --output, from which --resume continues" if files.output is None else "continue with --resume"
        print_note(f"stopped before {counted(missing, 'solve')} had ended; {how}")
    if not found.complete:
        raise typer.Exit(1)
