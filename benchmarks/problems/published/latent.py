"""Item response, mixtures, correlations, and densities that are known for their shape."""

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.posterior import Posterior, all_entries, entries, some_entries
from benchmarks.problems.published.data import normals, uniforms

PERSONS, ITEMS = 60, 15


def answers(seed, discrimination):
    """Right and wrong answers of every person, ``(persons, items)``, more often right where the ability is larger."""
    ability, difficulty = normals(seed, PERSONS, 1), normals(seed + 1, ITEMS)
    return (uniforms(seed + 2, PERSONS, ITEMS) < torch.sigmoid(discrimination * (ability - difficulty))).double()


def rasch():
    """Item response with one parameter, Rasch 1960, priors as in the manual of Stan; simulated."""
    y = answers(130, 1.0)

    def model():
        mean = pyro.sample("mean", dist.Normal(0.75, 1.0))
        ability = pyro.sample("ability", dist.Normal(0.0, 1.0).expand([PERSONS]).to_event(1))
        difficulty = pyro.sample("difficulty", dist.Normal(0.0, 1.0).expand([ITEMS]).to_event(1))
        logits = mean[..., None, None] + ability[..., :, None] - difficulty[..., None, :]
        pyro.sample("y", dist.Bernoulli(logits=logits).to_event(2), obs=y)

    return model


def answers_to_items_that_discriminate():
    return answers(140, torch.exp(0.4 * normals(143, ITEMS)))


def two_parameters():
    """Item response with two parameters, posteriordb's ``irt_2pl``; simulated."""
    y = answers_to_items_that_discriminate()

    def model():
        spread = pyro.sample("spread", dist.HalfCauchy(2.0).expand([2]).to_event(1))
        mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
        ability = pyro.sample("ability", dist.Normal(0.0, 1.0).expand([PERSONS]).to_event(1))
        of_discrimination, of_difficulty = (spread[..., k, None].expand(*mean.shape, ITEMS) for k in (0, 1))
        discrimination = pyro.sample("discrimination", dist.LogNormal(0.0, of_discrimination).to_event(1))
        difficulty = pyro.sample("difficulty", dist.Normal(mean[..., None], of_difficulty).to_event(1))
        logits = discrimination[..., None, :] * (ability[..., :, None] - difficulty[..., None, :])
        pyro.sample("y", dist.Bernoulli(logits=logits).to_event(2), obs=y)

    return model


def points_of_two_normals():
    second = (uniforms(150, 120) < 0.4).double()
    return -1.5 + 3.0 * second + (0.7 + 0.5 * second) * normals(151, 120)


def mixture():
    """Two normal components, posteriordb's ``low_dim_gauss_mix``, ordered by a positive gap; 120 points, simulated."""
    y = points_of_two_normals()

    def model():
        low = pyro.sample("low", dist.Normal(0.0, 2.0))
        gap = pyro.sample("gap", dist.HalfNormal(3.0))
        scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
        share = pyro.sample("share", dist.Beta(5.0, 5.0))
        means, shares = torch.stack([low, low + gap], -1), torch.stack([share, 1 - share], -1)
        each = dist.Normal(means[..., None, :], scales[..., None, :]).log_prob(y[:, None])
        pyro.factor("y", (shares.log()[..., None, :] + each).logsumexp(-1).sum(-1))

    return model


def correlations():
    """A covariance of scales and a correlation matrix, Lewandowski, Kurowicka & Joe 2009; 80 points, simulated."""
    y = normals(160, 80, 5) @ (torch.eye(5, dtype=torch.float64) + 0.5 * normals(161, 5, 5))

    def model():
        mean = pyro.sample("mean", dist.Normal(0.0, 5.0).expand([5]).to_event(1))
        scales = pyro.sample("scales", dist.HalfCauchy(2.5).expand([5]).to_event(1))
        factor = pyro.sample("factor", dist.LKJCholesky(5, 2.0))
        root = scales[..., :, None] * factor
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.MultivariateNormal(mean, scale_tril=root), obs=y)

    return model


def of_correlations(draws):
    rows, columns = torch.tril_indices(5, 5, -1)
    correlation = (draws["factor"] @ draws["factor"].mT)[..., rows, columns]
    return {**all_entries({name: draws[name] for name in ("mean", "scales")}), **entries("correlation", correlation)}


def funnel():
    """Neal 2003, section 8, in ten dimensions, with the scale 1.5 of the first in place of 3."""
    logarithm = pyro.sample("logarithm", dist.Normal(0.0, 1.5))
    pyro.sample("x", dist.Normal(0.0, torch.exp(logarithm / 2)[..., None].expand(*logarithm.shape, 9)).to_event(1))


def of_funnel(draws):
    """The heavy tails of x by the size of its entries on a logarithmic scale, and their signs."""
    sizes = torch.asinh(draws["x"])
    return all_entries({"logarithm": draws["logarithm"], "asinh": sizes})


def rosenbrock():
    """The curved valley of Goodman & Weare 2010, exp(-(100 (y - x²)² + (1 - x)²) / 20)."""
    x = pyro.sample("x", dist.Normal(1.0, 10.0**0.5))
    pyro.sample("y", dist.Normal(x**2, 0.1**0.5))


def latent():
    return {
        "item response, one parameter": Posterior(rasch(), some_entries),
        "item response, two parameters": Posterior(two_parameters(), some_entries),
        "mixture of two normals": Posterior(mixture(), all_entries),
        "correlations": Posterior(correlations(), of_correlations),
        "funnel": Posterior(funnel, of_funnel),
        "Rosenbrock": Posterior(rosenbrock, all_entries),
    }
