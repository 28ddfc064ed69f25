"""Models from and to other people's files: readers of formats, export, and problems as tables without a store."""
