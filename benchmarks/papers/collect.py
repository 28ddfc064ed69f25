"""Write README.md of this folder, one line for each claim, from the tables of the works' own pages.

    python collect.py            write it
    python collect.py --check    fail where it is out of date

A table of claims is one whose second column is what the work says ("thesis" or "paper") and whose third is ours; a row
in which the work says nothing ("-", "not given") is no claim. The first column's heading stands before each of its
lines, unless it is "claim".
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from resident import fill_in, markdown

FOLDER = Path(__file__).resolve().parent
WORKS = ("wingate2004", "johannsson2009", "inamoto", "quintanilla_kolisetti", "luo_koettering")
_NOT = "-"
_NO_CLAIM = (_NOT, "not given")


class Claim(NamedTuple):
    """One line."""

    section: str
    """Of the work's page: its heading."""
    claim: str
    said: str
    ours: str
    ratio: str


def claims_of(text: str) -> Iterator[Claim]:
    """All claims of a page, in order."""
    section, headers = "", []
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            headers = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not headers:
            headers = cells
        elif headers[1] in ("thesis", "paper") and not set("".join(cells)) <= set("-: ") and cells[1] not in _NO_CLAIM:
            ratio = cells[headers.index("ratio")] if "ratio" in headers else _NOT
            of = f"{headers[0]}: " if headers[0] and not headers[0].startswith("claim") else ""
            yield Claim(section, of + cells[0], *cells[1:3], ratio)


def anchor(heading: str) -> str:
    """Of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def table_of(work: str) -> list[str]:
    """Claims of one work, each with a link to where it is explained."""
    rows = []
    for claim in claims_of((FOLDER / work / "README.md").read_text()):
        where = f"[{claim.section.partition(':')[0]}]({work}/README.md#{anchor(claim.section)})"
        rows.append((claim.claim, claim.said, claim.ours, claim.ratio, where))
    if not rows:
        return [f"Not measured yet; [its page]({work}/README.md) names what will be."]
    return markdown(("claim", "work", "ours", "ratio", "measured in"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is out of date")
    options = parser.parse_args(arguments)
    page = FOLDER / "README.md"
    text = page.read_text()
    collected = fill_in(text, {work: table_of(work) for work in WORKS})
    if not options.check:
        page.write_text(collected)
    elif collected != text:
        sys.exit("benchmarks/papers/README.md is out of date; run benchmarks/papers/collect.py")


if __name__ == "__main__":
    main()
