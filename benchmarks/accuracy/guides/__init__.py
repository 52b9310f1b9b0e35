"""Guides of low rank on Gaussians that their families contain."""
