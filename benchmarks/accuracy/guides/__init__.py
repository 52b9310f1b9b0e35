"""Whether guides of low rank find Gaussians that their families contain."""
