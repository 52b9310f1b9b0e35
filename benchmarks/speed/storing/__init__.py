"""What storing a run costs."""
