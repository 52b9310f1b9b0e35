"""What warm-up costs and what its choices are worth."""
