"""Policies that are given and evaluated, instead of solved for."""
