"""Chunks decompressed and decoded on the device."""
