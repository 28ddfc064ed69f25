"""Solves on several workers: ownership of partitions, exchange of boundary values, snapshots, and termination."""
