"""What stored runs promise, and what it costs."""
