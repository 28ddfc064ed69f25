"""Rows of discretised control problems computed on the device."""
