"""Building blocks of MCMC iterations: states, problems, and transitions in their fastest form."""
