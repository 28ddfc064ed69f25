"""Solving: methods that choose what to sweep next, and the run that they share."""
