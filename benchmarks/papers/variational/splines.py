"""P-spline regression with outliers (Eilers & Marx 1996), simulated, as a Pyro model.

One point in ten has ten times the noise, and the likelihood is the mixture of the two, as is that of Ong, Nott & Smith
(2018), whom Zhou et al. follow. The mean is a cubic spline of 26 coefficients θ. Their prior is a stationary AR(1)
process with persistence ψ and innovation variance κ²; κ² has a Weibull prior and the noise variance σ² an inverse gamma
prior, as there. The curve, the number of coefficients and the numbers of the priors are chosen here: the paper states
them in formulas that its plain text lacks. 29 latent variables in all.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.interpolate import BSpline

FLOAT = torch.float64
COEFFICIENTS, DEGREE = 26, 3
PRIOR_VARIANCE = 10.0
INFLATION, OUTLIERS = 10.0, 0.1  # an outlier has ten times the standard deviation
WEIBULL = 0.5, 1.0  # shape and scale
INVERSE_GAMMA = 1.0, 0.01  # shape and scale


def curve(x):
    """Slow at the left, fast at the right: one bandwidth is a compromise."""
    return torch.sin(3 * torch.pi * x**2)


def simulate(points=250, noise=0.2, outliers=OUTLIERS, seed=0):
    """Two sets of ``points``, for training and test: x, y and the true mean, each ``(2, points)``."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(2, points))
    scale = noise * np.where(rng.uniform(size=x.shape) < outliers, INFLATION, 1.0)
    mean = curve(torch.as_tensor(x))
    return torch.as_tensor(x), mean + torch.as_tensor(scale * rng.standard_normal(x.shape)), mean


def basis(x):
    """Cubic B-splines ``(points, 26)`` with equidistant knots on [0, 1]."""
    step = 1 / (COEFFICIENTS - DEGREE)
    knots = step * np.arange(-DEGREE, COEFFICIENTS + 1)
    return torch.as_tensor(BSpline.design_matrix(np.asarray(x), knots, DEGREE).toarray(), dtype=FLOAT)


def second_sums():
    """The unit lower triangular A with θ = A e, where e holds θ₁, θ₂ and then the second differences of θ."""
    identity = torch.eye(COEFFICIENTS, dtype=FLOAT)
    differences = identity.clone()
    rows = torch.arange(2, COEFFICIENTS)
    differences[rows, rows - 1] = -2.0
    differences[rows, rows - 2] = 1.0
    return torch.linalg.solve_triangular(differences, identity, upper=False, unitriangular=True)


SUMS = second_sums()


def random_walk_scales(smoothing):
    """Standard deviations ``(..., 26)`` of θ₁, θ₂ ~ N(0, 10) and of the second differences."""
    first = torch.full((*smoothing.shape, 2), PRIOR_VARIANCE**0.5, dtype=FLOAT)
    return torch.cat([first, smoothing.unsqueeze(-1).expand(*smoothing.shape, COEFFICIENTS - 2)], -1)


def noise_distribution(mean, noise, outliers):
    """Contaminated normal (1 − ω) N(mean, σ²) + ω N(mean, (10 σ)²)."""
    weights = torch.stack([1 - outliers, outliers], -1).unsqueeze(-2)
    scales = torch.stack([noise, INFLATION * noise], -1).unsqueeze(-2)
    component = dist.Normal(mean.unsqueeze(-1), scales.expand(*mean.shape, 2))
    return dist.MixtureSameFamily(dist.Categorical(weights.expand(*mean.shape, 2)), component)


def autoregressive_root(variance, persistence):
    """The lower triangular L with L Lᵀ the covariance of the stationary process θ_j = ψ θ_{j−1} + κ e_j."""
    places = torch.arange(COEFFICIENTS)
    powers = persistence ** (places.unsqueeze(-1) - places).clamp(min=0).to(FLOAT)
    first = torch.cat([(1 - persistence.square()).rsqrt().reshape(1), torch.ones(COEFFICIENTS - 1, dtype=FLOAT)])
    return (powers * first * variance.sqrt()).tril()


def model(splines, y=None, outliers=OUTLIERS, prior_scale=1.0):
    """Latent: persistence ψ, prior_variance κ², noise_variance σ² and 26 coefficients θ | ψ, κ²."""
    one = torch.ones((), dtype=FLOAT)
    persistence = pyro.sample("persistence", dist.Uniform(-one, one))
    prior_variance = pyro.sample("prior_variance", dist.Weibull(prior_scale**2 * WEIBULL[1] * one, WEIBULL[0] * one))
    noise_variance = pyro.sample("noise_variance", dist.InverseGamma(*(each * one for each in INVERSE_GAMMA)))
    root = autoregressive_root(prior_variance, persistence)
    prior = dist.MultivariateNormal(torch.zeros(COEFFICIENTS, dtype=FLOAT), scale_tril=root)
    coefficients = pyro.sample("coefficients", prior)
    with pyro.plate("points", len(splines)):
        mean = (splines * coefficients).sum(-1)
        return pyro.sample("y", noise_distribution(mean, noise_variance.sqrt(), outliers * one), obs=y)
