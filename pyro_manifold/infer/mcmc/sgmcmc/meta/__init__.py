"""A sampler that is learned: its networks, its step, how it is trained."""
