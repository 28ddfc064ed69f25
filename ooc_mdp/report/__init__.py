"""What people see: progress and summaries on a terminal."""
