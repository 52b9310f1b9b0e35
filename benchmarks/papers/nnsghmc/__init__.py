"""Gong, Li & Hernández-Lobato (ICLR 2019): a sampler that is learned."""
