"""From model files and generated problems to stores."""

from ooc_mdp.convert.from_problem import generate
from ooc_mdp.convert.from_source import convert
from ooc_mdp.convert.options import ConvertOptions

__all__ = ["ConvertOptions", "convert", "generate"]
