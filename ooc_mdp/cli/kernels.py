"""The command `kernels`, which lists the values of solve --kernel."""

from __future__ import annotations

from ooc_mdp.backends.device_kernels import DEVICE_KERNELS
from ooc_mdp.cli.application import app
from ooc_mdp.cli.options import JsonOption
from ooc_mdp.cli.tables import print_json

__all__ = ["kernels"]


@app.command()
def kernels(as_json: JsonOption = False) -> None:
    """List the values of solve --kernel: what each does, its publication, its assumptions, and when to use it.

    The first is the default on a CUDA device. The others also run on the CPU, in NumPy, for study and for counting.
    """
    listed = [
        {
            "kernel": word,
            "summary": entry.summary,
            "paper": entry.paper,
            "assumptions": entry.assumptions,
            "advice": entry.advice,
        }
        for word, entry in DEVICE_KERNELS.items()
    ]
    if as_json:
        print_json({"kernels": listed})
    else:
        from ooc_mdp.report.summaries import print_kernels

        print_kernels(listed)
