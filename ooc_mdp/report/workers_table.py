"""What each of several workers did, on stdout, a line each."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ooc_mdp.options import format_bytes
from ooc_mdp.quoting import printable
from ooc_mdp.report.rows import FILE_WIDTH

__all__ = ["print_workers"]


def print_workers(workers: list[dict[str, Any]]) -> None:
    """What each of several workers did, a line each."""
    table = Table(box=None, pad_edge=False)
    staged = any(w["bytes_staged"] or w["bytes_read_shared"] for w in workers)
    staging = ("staged", "read staged", "read shared") if staged else ()
    for title in ("worker", "on", "partitions", "loads", "read", "hit rate", "idle", "messages", "sent", *staging):
        table.add_column(title, justify="left" if title in ("worker", "on") else "right")
    for w in workers:
        table.add_row(
            f"{w['worker']}{' (lost)' if w['lost'] else ''}",
            printable(f"{w['host']} {w['device']}"),
            f"{w['partitions']:,}",
            f"{w['loads']:,}",
            format_bytes(w["bytes_read"]),
            f"{w['hit_rate']:.1%}",
            f"{w['idle_seconds']:.1f} s",
            f"{w['messages']:,}",
            format_bytes(w["bytes_sent"]),
            *(format_bytes(w["bytes_" + title.replace(" ", "_")]) for title in staging),
        )
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    console.print(table)
