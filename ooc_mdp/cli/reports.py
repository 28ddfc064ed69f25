"""Commands that show a result or a trace: animate, plot, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.options import OverwriteOption
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote

__all__ = ["animate", "plot", "report"]


@app.command()
def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write.  [default: RESULT with .html]")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Store of the table: maps loads of results that lack their partitions.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="File that solve --trace wrote: draws each access.")] = None,
    cache_sweep: Annotated[Path | None, typer.Option(help="JSON file of solves with other caches: draws them.")] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write one HTML file that shows a result: what is proved, values and policy, convergence, cache and memory.

    The file needs no network. What was not recorded is named in its place.
    """
    from ooc_mdp.report.progress import working
    from ooc_mdp.report.terminal import print_line

    file = _beside(result, ".html") if output is None else output
    with working("drawing the report"):
        from ooc_mdp.reporting import write_report

        write_report(result, file, table=store, trace=trace, cache_sweep=cache_sweep, overwrite=overwrite)
    print_line(file)


@app.command()
def plot(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".png, .svg or .pdf to write.  [default: RESULT with .png]")
    ] = None,
    value: Annotated[bool, typer.Option("--value", help="Draw the values, which is the default.")] = False,
    policy: Annotated[bool, typer.Option("--policy", help="Draw the action, or control, of each state.")] = False,
    axes: Annotated[
        str | None, typer.Option(metavar="X,Y", help="Names of the axes across and up.  [default: the first two]")
    ] = None,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="AXIS=AT",
            help="Cut another axis at a position in its unit, such as heading=0, or at several: heading=0,1.57; repeat "
            "for other axes.  [default: several points of up to two axes, a panel for each]",
        ),
    ] = None,
    paths: Annotated[Path | None, typer.Option(help="CSV file of simulate --csv, whose paths are drawn.")] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH|all",
            help="Values at the ends of the colours.  [default: all values but penalties far from the others]",
        ),
    ] = None,
    contours: Annotated[
        bool,
        typer.Option(
            "--contours/--no-contours", help="Draw lines of equal value, at least twice the error bound apart."
        ),
    ] = True,
    overwrite: OverwriteOption = False,
) -> None:
    """Draw the values or the policy of a result as a picture for a paper.

    Grids are drawn over two axes, with a panel for each point of the others; states that are no grid as sorted values
    and shares of the actions.
    """
    from ooc_mdp.report.progress import working
    from ooc_mdp.report.terminal import print_line

    if value and policy:
        raise OptionsError("--value and --policy contradict each other; give one of them")
    file = _beside(result, ".png") if output is None else output
    with working("drawing"):
        from ooc_mdp.reporting import plot_result

        plot_result(
            result,
            file,
            shown="policy" if policy else "value",
            axes=None if axes is None else [name.strip() for name in axes.split(",")],
            slices=_slices(slices or []),
            paths=paths,
            limits=_limits(limits),
            contours=contours,
            overwrite=overwrite,
        )
    print_line(file)


@app.command()
def animate(
    solve: Annotated[Path, typer.Argument(metavar="TRACE|RESULT", help="File of solve --trace, or a result.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".gif or .mp4 to write.  [default: TRACE or RESULT with .gif]")
    ] = None,
    of: Annotated[
        Path | None,
        typer.Option(metavar="STORE|RESULT", help="Table of the trace, which places its partitions on the grid."),
    ] = None,
    axes: Annotated[
        str | None, typer.Option(metavar="X,Y", help="Names of the axes across and up.  [default: the first two]")
    ] = None,
    shown: Annotated[
        Literal["order", "visits", "bound"],
        typer.Option(
            "--show",
            help="Colours: visits since a partition's last one, how many it had, or its bound (of a trace).",
        ),
    ] = "order",
    seconds: Annotated[float, typer.Option(help="Length of the animation.")] = 12.0,
    overwrite: OverwriteOption = False,
) -> None:
    """Animate the order in which a solve visits its partitions, as GIF or MP4.

    A trace has every visit; a result the first and the last one of each partition. Frames are equal numbers of visits
    apart, so that methods can be compared whatever their speed.
    """
    from ooc_mdp.report.progress import ProgressBar
    from ooc_mdp.report.terminal import print_line
    from ooc_mdp.reporting import animate_solve

    default = solve.with_suffix(".gif") if solve.suffix == ".csv" else _beside(solve, ".gif")
    file = default if output is None else output
    names = None if axes is None else [name.strip() for name in axes.split(",")]
    with ProgressBar() as bar:
        animate_solve(solve, file, of=of, axes=names, shown=shown, seconds=seconds, overwrite=overwrite, progress=bar)
    print_line(file)


def _beside(result: Path, suffix: str) -> Path:
    """The file next to a result that is named like it."""
    return result.with_name(f"{result.name.removesuffix('.result')}{suffix}")


def _slices(texts: list[str]) -> dict[str, list[float]]:
    """The positions by axis."""
    found: dict[str, list[float]] = {}
    for text in texts:
        name, equals, positions = text.partition("=")
        if not equals or name.strip() in found:
            raise OptionsError(
                f"--slice {quote(text)} is no AXIS=AT, or its axis is named twice; write --slice heading=0, or several "
                f"positions as heading=0,1.57"
            )
        found[name.strip()] = _numbers("--slice", positions)
    return found


def _limits(text: str | None) -> Any:
    if text is None or text == "all":
        return text
    numbers = _numbers("--limits", text)
    if len(numbers) != 2:
        raise OptionsError(f"--limits {quote(text)} are {len(numbers)} numbers; give two, such as -5,10, or all")
    return tuple(numbers)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionsError(f"{option}: {quote(text)} is no list of numbers, such as 0 or 0,1.57") from None
