"""The figures of reading.py as tables of Markdown, for benchmarks/notes/2026-11-reading.md.

python benchmarks/engine/reading_tables.py benchmarks/results/reading-2-cores.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["ways"]


def ways(tables: list[dict[str, Any]]) -> list[str]:
    """A line a way that is there: GB/s of table, cold and warm, on the best number of threads; processor seconds."""
    lines = [
        "| way | gives | " + " | ".join(f"{_name(t)}, cold | warm | CPU s a GB" for t in tables) + " |",
        "|---|---|" + "---|---|---|" * len(tables),
    ]
    for way in dict.fromkeys(r["way"] for t in tables for r in t["readings"] if "skipped" not in r):
        cells = []
        gives = ""
        for table in tables:
            found = [r for r in table["readings"] if r["way"] == way]
            gives = found[0]["gives"]
            best = {}
            for page_cache in ("cold", "warm"):
                measured = [r for r in found if r["page_cache"] == page_cache and "skipped" not in r]
                best[page_cache] = max(measured, key=lambda r: r["table_bytes_per_second"], default=None)
            cells += [_rate(best["cold"]), _rate(best["warm"])]
            least = [r["cpu_seconds"] / r["table_bytes"] * 1e9 for r in found if "skipped" not in r]
            cells.append(f"{min(least):.2f}" if least else "")
        lines.append(f"| {way} | {gives} | " + " | ".join(cells) + " |")
    return lines


def _rate(best: dict[str, Any] | None) -> str:
    return "" if best is None else f"{best['table_bytes_per_second'] / 1e9:.2f} ({best['threads']})"


def _name(table: dict[str, Any]) -> str:
    return f"{table['problem']} {'x'.join(str(table['parameters'].get('grid', '')).split(','))}".strip()


if __name__ == "__main__":
    print("\n".join(ways(json.loads(Path(sys.argv[1]).read_text())["tables"])))
