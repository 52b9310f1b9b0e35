"""Running of chains: sampling loop, draw storage, stopping rules, shards and end-of-run warnings."""
