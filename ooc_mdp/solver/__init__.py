"""One discounted solve in this process."""
