"""Convert model files and generated problems to stores."""

from ooc_mdp.io.conversion.from_problem import generate
from ooc_mdp.io.conversion.from_source import convert
from ooc_mdp.table_options import ConvertOptions

__all__ = ["ConvertOptions", "convert", "generate"]
