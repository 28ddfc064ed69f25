"""The tiled engine: asynchronous sweeps of partitions that are cut into tiles."""
