"""The solution methods, one file each."""
