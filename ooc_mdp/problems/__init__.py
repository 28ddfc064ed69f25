"""Generated problems: gridworlds, random models and discretised control problems, by name in `registry`."""
