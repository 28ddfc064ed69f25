"""Commands that analyse the output of a solve: cache-curve (its trace) and simulate (its policy)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.choices import GroupedCommand, option_fields, with_choices
from ooc_mdp.cli.options import JsonOption, OverwriteOption
from ooc_mdp.cli.tables import print_json
from ooc_mdp.errors import OocMdpError, OptionsError, StoreError
from ooc_mdp.quoting import quote
from ooc_mdp.simulation_options import SimulationOptions

if TYPE_CHECKING:
    from ooc_mdp.events import Watcher
    from ooc_mdp.model.mdp import FloatArray
    from ooc_mdp.simulation import Simulation
    from ooc_mdp.simulation.returns import Returns

__all__ = ["cache_curve", "simulate"]


@app.command("cache-curve")
def cache_curve(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Files that solve --trace wrote.")],
    sizes: Annotated[
        str, typer.Option(help="Cache sizes to print, as numbers or shares of partitions.")
    ] = "5%,10%,22%,50%,100%",
    policy: Annotated[
        str,
        typer.Option(
            help="Which partition is evicted: belady (the one needed again last, the optimum), lru, fifo, clock, "
            "priority (the lowest)."
        ),
    ] = "belady,lru,fifo,clock",
    scope: Annotated[
        Literal["frontier", "all"] | None,
        typer.Option(help="Exclude auxiliary accesses, or include them.  [default: print both]"),
    ] = None,
    count: Annotated[
        Literal["visits", "accesses"],
        typer.Option(help="Count visits, which are consecutive accesses to one partition, or each access."),
    ] = "visits",
    same_accesses: Annotated[
        bool,
        typer.Option(
            "--same-accesses", help="Replay traces too whose order depends on the cache; their curves predict no solve."
        ),
    ] = False,
    labels: Annotated[str | None, typer.Option(help="A name for each trace, separated by commas.")] = None,
    csv: Annotated[Path | None, typer.Option(help="CSV file for every size of every curve.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot of all traces: .png, .svg or .pdf.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Replay the same accesses under another cache, of every size: a bound for schedules that do not look at the cache.

    A solve with another cache makes the same accesses only where their order does not depend on the cache: the curves
    of vi and of exact priorities are exact for every size. Other schedules prefer partitions that are in the cache;
    their traces are refused without --same-accesses. What solves with other caches load, cache-sweep measures.
    """
    from ooc_mdp.report.progress import working

    with working("replaying accesses"):
        from ooc_mdp.report import cache_plot, cache_report
        from ooc_mdp.report.terminal import print_note
        from ooc_mdp.store.atomic_file import check_output_files

        shown, policies = cache_report.parse_sizes(sizes), cache_report.parse_policies(policy)
        check_output_files(csv, plot, overwrite=overwrite, sources=traces)
        if plot is not None:
            cache_plot.check_plot(plot, len(traces))
        curves = cache_report.curves_of_traces(
            traces,
            policies=policies,
            scopes=None if scope is None else (scope,),
            raw=count == "accesses",
            labels=None if labels is None else [label.strip() for label in labels.split(",")],
            same_accesses=same_accesses,
            note=print_note,
        )
        figures = cache_report.to_dict(curves, shown)
        if csv is not None:
            cache_report.write_cache_curves(curves, csv, overwrite=overwrite)
        if plot is not None:
            cache_plot.plot_cache_curves(curves, plot, overwrite=overwrite)
    if as_json:
        print_json(figures)
    else:
        cache_report.print_cache_curves(curves, shown)


_RunsFields: Any = dataclasses.make_dataclass(
    "_RunsFields",
    option_fields(
        SimulationOptions,
        only=("duration", "controller", "plan_depth", "period", "sample", "hold_time", "continue_after_end"),
    ),
)


class RunsChoices(_RunsFields):  # type: ignore[misc]
    """How the process is simulated."""

    heading: ClassVar[str] = SimulationOptions.heading

    def options(self) -> SimulationOptions:
        """The options of `api.simulate`."""
        return SimulationOptions(**vars(self))


@dataclass(frozen=True, slots=True)
class TableRunsChoices:
    """How the process of a table is simulated."""

    heading: ClassVar[str] = "Runs of a table (with STORE)"

    steps: Annotated[
        int | None, typer.Option(help="Most steps of a run.  [default: 1000, or all stages of a finite horizon]")
    ] = None
    runs: Annotated[int | None, typer.Option(help="Number of runs.  [default: 1000]")] = None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Output files of the runs."""

    heading: ClassVar[str] = "Files"

    csv: Annotated[Path | None, typer.Option(help="CSV file for every sample.")] = None
    plot: Annotated[Path | None, typer.Option(help="Plot of all runs: .png, .svg or .pdf.")] = None
    plot_axes: Annotated[
        str | None,
        typer.Option(metavar="X,Y", help="Axes of the plane in plot and animation.  [default: the first two]"),
    ] = None
    animation: Annotated[Path | None, typer.Option(help="Animation of the first run: .gif or .mp4.")] = None
    overwrite: OverwriteOption = False

    def check(self, seconds: float, sources: list[Path]) -> None:
        """Check, before the runs, that all files can be written after them, and none is one that is read."""
        from ooc_mdp.report.animation import check_animation
        from ooc_mdp.report.figures import check_plot_file
        from ooc_mdp.store.atomic_file import check_output_files

        check_output_files(self.csv, self.plot, self.animation, overwrite=self.overwrite, sources=sources)
        if self.plot is not None:
            check_plot_file(self.plot)
        if self.animation is not None:
            check_animation(self.animation, seconds)

    @property
    def asked(self) -> list[Path]:
        """The files to write."""
        return [file for file in (self.csv, self.plot, self.animation) if file is not None]

    @property
    def axes(self) -> list[str] | None:
        """Names of the axes of the plot's plane."""
        return None if self.plot_axes is None else [name.strip() for name in self.plot_axes.split(",")]

    def write(self, simulation: Simulation, values: FloatArray, progress: Watcher) -> None:
        """Write the files that were asked for, each even where another fails; StoreError names all that failed."""
        from ooc_mdp.report.animation import animate
        from ooc_mdp.report.trajectory_plot import plot_trajectories
        from ooc_mdp.report.trajectory_table import write_trajectories

        failed = []
        tasks = (
            (self.csv, write_trajectories),
            (self.plot, partial(plot_trajectories, values=values, axes=self.axes)),
            (self.animation, partial(animate, axes=self.axes, progress=progress)),
        )
        for done, (file, write) in enumerate((file, write) for file, write in tasks if file is not None):
            progress("writing files", done, len(self.asked))
            try:
                write(simulation, file=file, overwrite=self.overwrite)
            except OocMdpError as error:
                failed.append(str(error))
            except (OSError, RuntimeError) as error:  # of matplotlib, Pillow and ffmpeg
                failed.append(f"{file} cannot be written: {error}")
        if failed:
            raise StoreError("; ".join(failed))
        progress("writing files", len(self.asked), len(self.asked))


@app.command(cls=GroupedCommand)
@with_choices(TableRunsChoices, RunsChoices, RunFiles)
def simulate(
    place: Annotated[
        Path,
        typer.Argument(metavar="STORE", help="Store of any model; or, alone, the result of a control problem."),
    ],
    table: TableRunsChoices,
    choices: RunsChoices,
    files: RunFiles,
    result: Annotated[Path | None, typer.Argument(metavar="RESULT", help="Result of the store.")] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            help="A start, such as 0.1,-2 or initial, or with STORE the number of a state; repeat for more.  [default: "
            "the initial ones, where there are some]"
        ),
    ] = None,
    random_starts: Annotated[int | None, typer.Option(help="Number of random starts, uniform over the axes.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random starts, or with STORE of the runs.")] = 1,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE.py", help="Python file of the problem; it is executed.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Execute the file that the result names, if it is unchanged since.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a control problem's continuous dynamics under the policy of a result and report whether the goal is reached.

    Exit status 1 where there is a goal and no start succeeds.

    With STORE, the process of the table itself is run at random under the policy, whatever the model: the mean return,
    its standard error and an interval of 95% are printed beside the solved value.
    """
    if result is not None or table != TableRunsChoices():
        others = _given_names(choices, files, {"--random-starts": random_starts, "--problem": problem})
        _show_returns(_simulated_table(place, result, table, start or [], seed, trust, others), as_json)
        return
    from ooc_mdp.report.progress import ProgressBar, working

    with working("simulating"):
        from ooc_mdp import api
        from ooc_mdp.report.terminal import print_note
        from ooc_mdp.report.trajectory_plot import plotted_axes
        from ooc_mdp.report.trajectory_table import print_simulation
        from ooc_mdp.simulation import problem_of

        options = choices.options()
        files.check(options.duration, [] if problem is None else [Path(problem)])
        opened = api.open_result(place)
        discretised = problem_of(opened, problem, trust, note=print_note)
        plotted_axes(discretised.problem, files.axes)
        simulation = api.simulate(
            opened,
            start or [],
            random=random_starts,
            seed=seed,
            problem=discretised,
            note=print_note,
            **dataclasses.asdict(options),
        )
    if as_json:
        print_json(simulation.summary())
    else:
        print_simulation(simulation)
    for sentence in simulation.warnings():
        print_note(f"warning: {sentence}")
    if files.asked:
        with ProgressBar() as bar:
            files.write(simulation, opened.solution.values, bar)
    if simulation.has_goal and not simulation.summary()["successes"]:
        raise typer.Exit(1)


def _given_names(choices: RunsChoices, files: RunFiles, others: dict[str, object]) -> list[str]:
    """The options of a control problem's simulation that were given."""
    named = [
        "--" + field.name.replace("_", "-")
        for group in (choices, files)
        for field in fields(group)
        if getattr(group, field.name) != field.default
    ]
    return named + [option for option, value in others.items() if value is not None]


def _starts(texts: list[str]) -> list[int]:
    """Numbers of states."""
    wrong = [text for text in texts if not text.strip().isdecimal()]
    if wrong:
        raise OptionsError(f"--start {quote(wrong[0])} is no number of a state, from 0 on")
    return [int(text) for text in texts]


def _simulated_table(
    store: Path,
    result: Path | None,
    choices: TableRunsChoices,
    starts: list[str],
    seed: int,
    trust: bool,
    others: list[str],
) -> Returns:
    """What runs of a table's process earn under the policy of a result.

    Parameters
    ----------
    others : options that were given, and belong to the other kind of simulation.
    """
    from ooc_mdp.report.progress import working
    from ooc_mdp.report.terminal import print_note

    if result is None:
        raise OptionsError("--steps and --runs are of a table's own process: give the store before the result")
    if others:
        raise OptionsError(
            f"{', '.join(others)}: of a control problem's continuous dynamics; leave that out, or simulate the result "
            f"without a store"
        )
    with working("running the policy"):
        from ooc_mdp import api
        from ooc_mdp.answers import simulate_policy

        return simulate_policy(
            api.open_store(store, trust=trust, note=print_note),
            result,
            steps=choices.steps,
            runs=1000 if choices.runs is None else choices.runs,
            seed=seed,
            starts=_starts(starts),
            note=print_note,
        )


def _show_returns(found: Returns, as_json: bool) -> None:
    from ooc_mdp.report.summaries import print_returns
    from ooc_mdp.report.terminal import print_note

    if as_json:
        print_json(found.summary())
    else:
        print_returns(found.summary())
    for sentence in found.warnings():
        print_note(f"warning: {sentence}")
