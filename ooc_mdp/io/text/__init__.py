"""What the text formats share: strict numbers, lines, columns, byte ranges that are read alone, and their errors."""
