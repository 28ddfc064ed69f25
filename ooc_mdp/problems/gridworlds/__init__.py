"""Gridworlds of the literature: cells of a plane, and who proposed what is in them."""
