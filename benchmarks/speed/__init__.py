"""Cost of sampling: time, memory, effective draws a second."""
