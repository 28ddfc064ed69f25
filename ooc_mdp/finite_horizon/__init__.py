"""The best plan for a number of stages, out of core: backward induction, one policy for each stage."""
