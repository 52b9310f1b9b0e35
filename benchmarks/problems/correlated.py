"""Posteriors with strong correlations, and some without, to judge low-rank masses on."""

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.posterior import Posterior, all_entries


def polynomial(degree=6, rows=40):
    """Regression on standardised powers of one input, whose coefficients are correlated up to 0.999."""
    random = torch.Generator().manual_seed(3)
    t = torch.linspace(0, 1, rows, dtype=torch.float64)
    powers = torch.stack([t**k for k in range(1, degree + 1)], 1)
    x = (powers - powers.mean(0)) / powers.std(0)
    y = (1 + t).log() + 0.1 * torch.randn(rows, generator=random, dtype=torch.float64)

    def model():
        intercept = pyro.sample("intercept", dist.Normal(0.0, 5.0))
        slopes = pyro.sample("slopes", dist.Normal(0.0, 5.0).expand([degree]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        pyro.sample("y", dist.Normal(intercept + x @ slopes, noise).to_event(1), obs=y)

    return model


def counts_of_a_process(times=50, length=6.0):
    """Poisson counts with a smooth log intensity, sampled without whitening."""
    random = torch.Generator().manual_seed(3)
    t = torch.arange(times, dtype=torch.float64)
    covariance = (-((t[:, None] - t) ** 2) / (2 * length**2)).exp() + 1e-4 * torch.eye(times, dtype=torch.float64)
    counts = torch.poisson((2 + torch.sin(6 * t / times)).exp(), generator=random)

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 3.0))
        process = pyro.sample("process", dist.MultivariateNormal(torch.zeros(times), covariance))
        pyro.sample("counts", dist.Poisson((level + process).exp()).to_event(1), obs=counts)

    return model


def reactions(subjects=18, days=10):
    """Hierarchy with an intercept and a slope for each subject, of which the scales are known well."""
    random = torch.Generator().manual_seed(3)
    subject = torch.arange(subjects).repeat_interleave(days)
    day = torch.arange(days, dtype=torch.float64).repeat(subjects) / days
    own = torch.randn(2, subjects, generator=random, dtype=torch.float64)
    noise = torch.randn(len(day), generator=random, dtype=torch.float64)
    y = 2.5 + day + 0.3 * own[0, subject] + 0.4 * own[1, subject] * day + 0.2 * noise

    def model():
        means = pyro.sample("means", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        scales = pyro.sample("scales", dist.HalfNormal(1.0).expand([3]).to_event(1))
        intercepts = pyro.sample("intercepts", dist.Normal(means[0], scales[0]).expand([subjects]).to_event(1))
        slopes = pyro.sample("slopes", dist.Normal(means[1], scales[1]).expand([subjects]).to_event(1))
        pyro.sample("y", dist.Normal(intercepts[subject] + slopes[subject] * day, scales[2]).to_event(1), obs=y)

    return model


def correlated() -> dict[str, Posterior]:
    """Return all of them by name."""
    models = {
        "polynomial regression": polynomial(),
        "counts of a process": counts_of_a_process(),
        "reactions of subjects": reactions(),
    }
    return {name: Posterior(model, all_entries) for name, model in models.items()}
