"""What MSD costs."""
