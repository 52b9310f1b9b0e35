"""What draws say about themselves."""
