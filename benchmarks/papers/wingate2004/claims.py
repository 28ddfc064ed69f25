"""What the thesis says in numbers, figure by figure; its curves themselves are not given as numbers anywhere.

The section that says it stands beside each. Nothing is measured here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CLAIMS"]

CLAIMS: dict[str, dict[str, Any]] = {
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
