"""The page of all works' claims: taken from their own pages, and up to date."""

from __future__ import annotations

import importlib.util
import re

import pytest
from benchmark_scripts import figures_of, run_here
from paths import BENCHMARKS

from ooc_mdp.backends.device_kernels import DEVICE_KERNELS

PAPERS = BENCHMARKS / "papers"


def test_the_page_of_claims_is_up_to_date():
    """If it is not: python benchmarks/papers/collect.py."""
    run_here("papers/collect.py", "--check")


def test_every_folder_of_a_work_has_its_place_and_every_link_leads_to_a_heading():
    text = (PAPERS / "README.md").read_text()
    for folder in PAPERS.iterdir():
        if (folder / "README.md").is_file():
            assert f"<!-- {folder.name} -->" in text
    for page, anchor in re.findall(r"\]\(([\w/]+\.md)#([^)]+)\)", text):
        headings = re.findall(r"^#+ (.*)$", (PAPERS / page).read_text(), re.MULTILINE)
        assert anchor in [re.sub(r"[^a-z0-9 _-]", "", h.lower()).replace(" ", "-") for h in headings]


def test_a_row_is_a_claim_where_the_work_says_something(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("collect", PAPERS / "collect.py")
    assert spec is not None
    assert spec.loader is not None
    collect = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(str(PAPERS))
    spec.loader.exec_module(collect)
    page = """# Work
## Figure 1: all of it
| claim | thesis | ours | why |
|---|---|---|---|
| faster | 2 | 3 | a |
| ours alone | - | 4 | |

| hits | paper | ours | ratio |
| --- | --- | --- | --- |
| large | 1 \\| 2 | - | - |

| size | ours |
|---|---|
| 3 | 4 |
"""
    assert list(map(tuple, collect.claims_of(page))) == [
        ("Figure 1: all of it", "faster", "2", "3", "-"),
        ("Figure 1: all of it", "hits: large", "1 \\| 2", "-", "-"),
    ]


def test_whole_solves_of_every_kernel_reach_the_residual(tmp_path):
    (problem,) = figures_of("papers/kernels.py", tmp_path, "--toy", "--repeat", "1")["problems"]
    solves = problem["solves"]
    assert [(s["kernel"], s["cache"]) for s in solves] == [(k, c) for k in DEVICE_KERNELS for c in ("100%", "22%")]
    for solve in solves:
        assert solve["outcome"] == "residual_reached", solve
        assert solve["residual"] <= 1e-4
        assert solve["loads_per_partition"] >= 1
