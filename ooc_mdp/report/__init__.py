"""What people see: progress, summaries, and what traces say about caches."""
