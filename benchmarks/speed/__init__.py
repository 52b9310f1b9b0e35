"""What sampling costs: time, memory, effective draws a second."""
