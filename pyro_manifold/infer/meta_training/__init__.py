"""Training of meta-learned samplers."""
