"""What the thesis says in numbers, figure by figure; its curves themselves are not given as numbers anywhere.

The section that says it stands beside each. Nothing is measured here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CLAIMS"]

CLAIMS: dict[str, dict[str, Any]] = {
    "5.2": {
        "source": "section 5.1 and the figure's caption",
        "backups": {"VI / (P-EVA/1)": 2.0},
        "seconds": {"P-EVA/400": 0.5, "(P-EVA/1) / (P-EVA/400)": 1000.0},
        "words": "P-EVA/1 performs half as many backups as VI and takes far longer; P-EVA/400 performs fewer than "
        "P-EVA/1; one partition is equivalent to normal VI",
    },
    "5.6": {
        "source": "section 5.3",
        "words": "on weakly connected clusters VI backs up clusters that no value has reached, H1 moves on too early, "
        "H2 does poorly within a cluster; P-EVA does very well if partitions are clusters",
    },
    "hybrid": {
        "source": "section 11.1",
        "words": "H2 could correctly prioritize meta-partitions, then H1 may be correct for the partitions within, "
        "then round-robin updating within a partition; not implemented or measured in the thesis",
    },
    "12.1": {
        "source": "section 10.1.1",
        "states": 160_000,
        "seconds": {"VI": 17.0, "H2, voting": 0.5},
        "words": "P-EVA-H2 with voting 34 times faster than VI; voting always helps, at least by 2 in most experiments",
    },
    "12.3": {
        "source": "section 10.1.1",
        "states": 160_000,
        "seconds": {"VI": 19.0, "H2, voting": 0.3},
        "words": "P-EVA-H2 with voting 63 times faster than VI; voting has an especially large effect on VI",
    },
    "12.5": {
        "source": "section 10.1.1",
        "states": 3_700_000,
        "seconds": {"VI": 90.0, "H1": 7.0},
        "words": "P-EVA-H1 13 times faster than VI; H2 slower than H1; for few states VI is fastest",
    },
    "12.7": {
        "source": "section 10.2.1 and the figure's caption",
        "workers": 8,
        "no_better_from": 30,
        "spikes": [5, 6, 7],
        "words": "few attractors are bad, more nearly always better, no difference from about 30 a processor on",
    },
    "12.8": {
        "source": "sections 10.2.1 and 10.2.2, captions of 12.8 and 12.9",
        "efficiency": {"SAP": [0.4, 0.45], "DAP": [0.4, 0.45]},
        "superlinear": ["MCAR"],
        "seconds": {"MCAR": {"states": 4_000_000, "best": 2.08, "P-EVA": 44.2}},
        "words": "more processors always help; superlinear on MCAR, whose partitions are processed 9 times each",
    },
    "12.10": {
        "source": "sections 10.2.1, captions of 12.10 and 12.11",
        "efficiency": {"MCAR": [0.5, 0.5], "SAP": [0.6, 0.6], "DAP": [0.05, 0.05], "TAP": [0.05, 0.05]},
        "seconds": {"DAP": {"states": 390_625, "best": 7.0}},
        "words": "well on MCAR and SAP; on DAP and TAP never better than one processor",
    },
    "12.12": {
        "source": "section 10.3.1",
        "share": 22,
        "all": {"H1": {"hit_rate": 0.6691, "loads": 22.02}, "H2": {"hit_rate": 0.9092, "loads": 3.08}},
        "frontier": {"H1": {"hit_rate": 0.2864, "loads": 10.37}, "H2": {"hit_rate": 0.7299, "loads": 2.13}},
        "words": "H2 far better than H1; auxiliary accesses cost an order of magnitude",
    },
    "12.13": {
        "source": "section 10.3.1",
        "share": 22,
        "all": {"H2": {"hit_rate": 0.8448}},
        "words": "H2 better than H1 at every size up to about 80%",
    },
    "12.14": {
        "source": "section 10.3.1",
        "share": 22,
        "all": {"H2": {"hit_rate": 0.8603}},
        "words": "H2 better than H1 at every size up to about 80%",
    },
    "12.18": {
        "source": "section 10.1.2",
        "states_per_partition": [100, 400],
        "fewest_backups_at_partitions": 1200,
        "words": "any partitions help MCAR and SAP, too many hurt; one state a partition is slower than none at all",
    },
    "12.20": {"source": "section 10.1.1", "never_processed": 0.19, "words": "19% of the states never processed"},
}
"""By the first figure of each pair (12.1 stands for 12.2 too, 12.12 for 12.15, ...)."""
