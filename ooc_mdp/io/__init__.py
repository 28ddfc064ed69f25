"""Models from and to other programs' files: readers of formats, conversion, tables without a store, and export."""
