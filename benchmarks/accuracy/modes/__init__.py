"""Whether all modes are found, weighted and told apart."""
