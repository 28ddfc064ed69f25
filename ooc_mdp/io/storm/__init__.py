"""Storm's DRN files."""
