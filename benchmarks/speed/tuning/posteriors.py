"""Posteriors for questions of tuning: models without arguments, and functionals of their draws that chains agree on.

Signs and orders of columns differ from chain to chain where the model does not say them: functionals are those that do
not change with either.
"""

from functools import cache, partial

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.components import attributes, principal_components, weather
from benchmarks.problems.network import network
from benchmarks.problems.page import PROBLEMS
from benchmarks.problems.posterior import Posterior, all_entries, entries
from problems.models import MODELS
from problems.targets import NoisyMatrix
from pyro_manifold.distributions import StiefelUniform

SCALES = torch.tensor([10.0, 5.0, 2.5, 1.5], dtype=torch.float64)


# ---- principal components --------------------------------------------------------------------------------------


def scores(rows=100, n=30):
    generator = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(n, 4, generator=generator, dtype=torch.float64))[0]
    y = torch.randn(rows, 4, generator=generator, dtype=torch.float64) * SCALES @ U.mT
    return y + torch.randn(rows, n, generator=generator, dtype=torch.float64)


def ordered_components(y, rank):
    """Scales that fall: each the last one times a share."""
    n = y.shape[-1]
    U = pyro.sample("U", StiefelUniform(n, rank))
    first = pyro.sample("first", dist.HalfNormal(10.0))
    shares = pyro.sample("shares", dist.Uniform(0.0, 1.0).expand([rank - 1]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    scales = first[..., None] * torch.cat([torch.ones_like(shares[..., :1]), shares.cumprod(-1)], -1)
    with pyro.plate("rows", len(y)):
        covariance = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(n)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), *covariance), obs=y)


def of_components(draws):
    """The covariance of the data, its scales in order, and the noise."""
    if "first" in draws:
        shares = torch.cat([torch.ones_like(draws["shares"][..., :1]), draws["shares"].cumprod(-1)], -1)
        scales = draws["first"][..., None] * shares
    else:
        scales = draws["scales"]
    root = draws["U"] * scales[..., None, :]
    variances = root.square().sum(-1)
    return {
        **entries("covariance", torch.cat([variances, (root[..., :1, :] * root[..., 1:, :]).sum(-1)], -1)),
        **entries("scales", scales.sort(-1).values),
        "noise": draws["noise"],
    }


# ---- a hierarchy of orthonormal matrices -----------------------------------------------------------------------


def groups_of_matrices(groups=20, n=5, p=2, rows=20):
    """Means of noisy rows of each group, ``(groups, n, p)``, and of how many rows."""
    generator = torch.Generator().manual_seed(1)
    X = torch.linalg.qr(torch.randn(groups, n, p, generator=generator, dtype=torch.float64))[0]
    size = torch.tensor([3.0, 1.0], dtype=torch.float64)
    size = size * torch.exp(0.4 * torch.randn(groups, 1, p, generator=generator, dtype=torch.float64))
    noise = torch.randn(groups, rows, n, p, generator=generator, dtype=torch.float64)
    return ((X * size).unsqueeze(1) + noise).mean(1), rows


def plate_of_matrices(groups=20):
    """Each group has an orthonormal matrix of its own, and sizes of its columns around common ones; data are noisy."""
    y, rows = groups_of_matrices(groups)
    _, n, p = y.shape

    def model():
        spread = pyro.sample("spread", dist.HalfNormal(1.0))
        level = pyro.sample("level", dist.Normal(0.0, 1.0).expand([p]).to_event(1))
        with pyro.plate("groups", groups):
            U = pyro.sample("U", StiefelUniform(n, p))
            own = pyro.sample("own", dist.LogNormal(level, spread[..., None]).to_event(1))
            pyro.sample("y", dist.Normal(U * own.unsqueeze(-2), rows**-0.5).to_event(2), obs=y)

    return model


def of_matrices(draws):
    """Sizes are positive: no sign is left open."""
    fitted = draws["U"] * draws["own"].unsqueeze(-2)
    sizes = {**entries("size", draws["own"][..., :5, :]), **entries("level", draws["level"])}
    return {**entries("fit", fitted[..., :3, :, :]), **sizes, "spread": draws["spread"]}


# ---- matrix Langevin, and what other benchmarks have ------------------------------------------------------------


def stretched_langevin():
    """Singular values 40, 15, 5, 1 on V(10,4)."""
    F = torch.zeros(10, 4, dtype=torch.float64)
    F.diagonal().copy_(torch.tensor([40.0, 15.0, 5.0, 1.0]))

    def model():
        X = pyro.sample("X", StiefelUniform(10, 4))
        pyro.factor("langevin", (F * X).sum((-2, -1)))

    return model


def of_problem(problem, draws):
    arrays = {name: value.numpy() for name, value in draws.items()}
    return {name: torch.as_tensor(value) for name, value in problem.values(arrays).items()}


def from_problem(problem):
    return Posterior(problem.pyro_model, partial(of_problem, problem))


@cache
def posteriors():
    """Posteriors by name; the network only where its data are."""
    generic = {
        "Langevin 40, 15, 5, 1 on V(10,4)": Posterior(stretched_langevin(), all_entries),
        "PCA 30×4, ordered": Posterior(partial(ordered_components, scores(), 4), of_components),
        "PCA 30×4, exchangeable": Posterior(partial(principal_components, scores(), 4), of_components),
        "noisy matrix": Posterior(NoisyMatrix.model(), NoisyMatrix.statistics),
        "20 matrices in a plate": Posterior(plate_of_matrices(), of_matrices),
        "weather curves 365×1": Posterior(partial(principal_components, weather(), 1), of_components),
        "breast cancer 10×2": Posterior(partial(principal_components, attributes(), 2), of_components),
        "hierarchy": Posterior(MODELS["hierarchy"](0), all_entries),
        "orientations": Posterior(MODELS["orientations"](1), all_entries),
    }
    names = *(f"mixture of the OHMC paper, V({n},2)" for n in (2, 3)), "Langevin V(10,3)", "Langevin V(50,5)"
    named = {name: from_problem(PROBLEMS[name]) for name in names}
    links = network()
    return {**named, **generic, **({} if links is None else {links.name: from_problem(links)})}
