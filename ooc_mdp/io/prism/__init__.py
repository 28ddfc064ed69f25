"""PRISM's explicit files."""
