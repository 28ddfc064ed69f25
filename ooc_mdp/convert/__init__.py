"""From model files and generated problems to stores."""

from ooc_mdp.convert.generate import generate
from ooc_mdp.convert.options import ConvertOptions

__all__ = ["ConvertOptions", "generate"]
