"""The CPU backend: compiled loops on threads."""
