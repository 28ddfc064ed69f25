"""Compiled loops of undiscounted solves."""
