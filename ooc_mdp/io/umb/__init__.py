"""UMB archives."""
