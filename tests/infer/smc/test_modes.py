"""Modes, mixtures about them, and sequential Monte Carlo from them, against distributions that are known."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample

from problems.monte_carlo import assert_mean
from pyro_manifold.density import target_from_model
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import OHMC, SMC
from pyro_manifold.infer.descent import Points, QuasiNewton
from pyro_manifold.infer.smc import (
    GaussianMixture,
    LocalCoordinates,
    find_modes,
    fisher_metric,
    laplace_mixture,
    mixture_about_modes,
)

QUANTILE = 8.47  # of Student's t with 7 degrees of freedom, where the normal has 4 standard errors


def run(model, *args, seed=0, **options):
    pyro.set_rng_seed(seed)
    smc = SMC(OHMC(model), **{"num_particles": 512, "num_runs": 8, "disable_progbar": True, **options}, init="modes")
    smc.run(*args)
    return smc


def assert_evidence(smc, truth):
    assert abs(smc.log_evidence - truth) < QUANTILE * smc.log_evidence_error


def assert_share(each, truth):
    """``(runs, particles)`` of 0 and 1."""
    share = each.double().mean(1)
    assert abs(float(share.mean()) - truth) < QUANTILE * float(share.std()) / len(share) ** 0.5


def linear(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    pyro.sample("y", dist.Normal(x @ w, 0.1).to_event(1), obs=y)


def linear_data():
    x = torch.randn(20, 3)
    return x, x @ torch.tensor([1.0, -2.0, 3.0]) + 0.1 * torch.randn(20)


def test_the_mixture_about_one_gaussian_is_that_gaussian_at_the_cost_of_a_few_steps():
    x, y = linear_data()
    mixture, cost = mixture_about_modes(target_from_model(linear, (x, y)), 4, 2)
    precision = x.mT @ x / 0.01 + torch.eye(3) / 4
    expected = dist.MultivariateNormal(torch.linalg.solve(precision, x.mT @ y / 0.01), precision_matrix=precision)
    w = expected.sample()
    torch.testing.assert_close(mixture.log_density({"w": w}), expected.log_prob(w), rtol=1e-3, atol=1e-3)
    assert len(mixture.log_weights) == 1
    assert cost < 4 * 12 * 7


def test_the_metric_is_the_fisher_information_and_precision_of_the_prior():
    x, y = linear_data()
    target = target_from_model(linear, (x, y))
    starts = {"w": torch.randn(5, 3)}
    metric = fisher_metric(target, Points(starts, None, {}), starts, 2)
    torch.testing.assert_close(metric(starts["w"]), (x.mT @ x / 0.01 + torch.eye(3) / 4).expand(5, 3, 3))
    assert metric.cost == 5 * 2 * 3


def summed_out():
    x = pyro.sample("x", dist.Normal(0.0, 5.0))
    k = pyro.sample("k", dist.Bernoulli(0.5))
    pyro.sample("y", dist.Normal(x + k, 1.0), obs=torch.tensor(2.0))


def test_a_model_without_a_metric_has_none():
    target = target_from_model(summed_out)
    starts = {"x": torch.zeros(3)}
    assert fisher_metric(target, Points(starts, None, {}), starts, 2) is None


def slow_or_fast(sites):
    """A steep valley about 0, and, right of 3, a long slope."""
    x = sites["x"]
    steep = x[:, 0] < 3
    energy = torch.where(steep, x.square().sum(1) / 2, 100 - 1e-3 * x[:, 0])
    return energy, {"x": torch.where(steep.unsqueeze(1), x, torch.tensor([-1e-3, 0.0]))}


@pytest.mark.long
def test_those_that_have_arrived_stay_once_and_of_others_the_better_half():
    counts = []

    def potential(sites):
        counts.append(len(sites["x"]))
        return slow_or_fast(sites)

    starts = torch.tensor([[1.0, 0.0], [0.0, 2.0], *[[10.0 * k, 0.0] for k in range(1, 7)]])
    points = Points({"x": starts}, potential, {})
    found = find_modes(QuasiNewton(points), points, starts, 2, 5)
    assert counts[-1] == 2
    assert max(counts) == 8
    assert len(found.at) == 3
    in_order = found.at[found.at[:, 0].argsort()]  # along the slope energies fall below that of the valley
    assert float(in_order[0].abs().max()) < 0.1
    assert in_order[1:, 0].min() > 50


def test_draws_of_a_mixture_have_its_moments():
    roots = torch.linalg.cholesky(torch.tensor([[[4.0]], [[1.0]]]))
    local = LocalCoordinates({"x": torch.tensor([[-2.0], [1.0]])}, {})
    mixture = GaussianMixture(torch.tensor([0.25, 0.75]).log(), local, roots)
    random = torch.Generator().manual_seed(0)
    draws = torch.stack([mixture.sample(random)["x"] for _ in range(4000)]).squeeze(-1)
    assert_mean(draws, 0.25)
    assert_mean(draws.square(), 0.25 * (4 + 0.25) + 0.75 * 2)


def test_a_matrix_langevin_in_the_limit_of_much_concentration():
    """Laplace's approximation is exact there: log of the normaliser is that of the distribution."""
    F = torch.tensor([[300.0, 0.0], [0.0, 150.0], [0.0, 0.0]])

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.factor("langevin", (F * U).sum((-2, -1)))

    target = target_from_model(model)
    ends = {"U": torch.eye(3, 2).unsqueeze(0)}

    def energies(sites):
        return -(F * sites["U"]).sum((-2, -1)), {"U": -F.expand_as(sites["U"])}

    mixture = laplace_mixture(energies, target.manifolds, ends)
    # Turns within the first two axes have the curvature 450, of each column towards the third 300 and 150.
    precision = (mixture.roots @ mixture.roots.mT)[0]
    # The coordinates are half of angles; the volume of these adds n - 1 times the Hessian of log|det S|.
    expected = torch.tensor([4 * 450 + 2 * 2, 4 * 300 + 2 * 2, 4 * 150 + 2 * 2]).sort()[0]
    torch.testing.assert_close(torch.linalg.eigvalsh(precision), expected.double(), rtol=1e-4, atol=0)


def two_gaussians():
    x = pyro.sample("x", dist.Normal(torch.zeros(3), 10.0).to_event(1))
    left = dist.Normal(torch.tensor(-4.0), 0.2).log_prob(x).sum(-1) + math.log(0.3)
    right = dist.Normal(torch.tensor(4.0), torch.tensor([0.1, 0.2, 0.5])).log_prob(x).sum(-1) + math.log(0.7)
    pyro.factor("modes", torch.logaddexp(left, right))


@pytest.mark.long
def test_from_modes_particles_have_the_shares_of_the_posterior():
    smc = run(two_gaussians, num_starts=16)
    # The prior is nearly flat over each.
    scales = (torch.tensor([0.2] * 3), torch.tensor([0.1, 0.2, 0.5]))
    masses = [
        share * dist.Normal(0.0, (100 + s.square()).sqrt()).log_prob(torch.tensor(4.0)).sum().exp()
        for share, s in zip((0.3, 0.7), scales, strict=True)
    ]
    assert_share(smc.get_samples(group_by_chain=True)["x"][..., 0] > 0, float(masses[1] / sum(masses)))
    assert_evidence(smc, float(sum(masses).log()))


@pytest.mark.parametrize(("unit", "prior"), [(2e-4, 10.0), (1e3, 10.0), (1.0, 1e5)])
def test_a_mixture_does_not_depend_on_units_nor_on_how_vague_the_prior_is(unit, prior):
    """Modes nearer than 0.01 were one, and none was wider than 32."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), unit * prior).to_event(1))
        modes = [dist.Normal(unit * at, 0.7 * unit).log_prob(x).sum(-1) for at in (-4.0, 4.0)]
        pyro.factor("modes", torch.logaddexp(*modes))

    mixture, _ = mixture_about_modes(target_from_model(model, init_strategy=init_to_sample), 64, 8)
    order = mixture.centres["x"][:, 0].argsort()
    torch.testing.assert_close(
        mixture.centres["x"][order] / unit, torch.tensor([[-4.0] * 2, [4.0] * 2]), rtol=0.03, atol=0
    )
    _, roots = mixture.unconstrained()
    widths = roots[order].diagonal(dim1=-2, dim2=-1) / unit
    torch.testing.assert_close(widths, torch.full((2, 2), 0.7), rtol=0.03, atol=0)


def curved():
    """A banana: x₀ ~ N(0, 1), and x₁ - x₀²/4 ~ N(0, 0.5²) under a flat prior of x₁."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([1.0, 100.0])).to_event(1))
    pyro.factor("banana", dist.Normal(x[0] ** 2 / 4, 0.5).log_prob(x[1]))


@pytest.mark.long
def test_what_is_not_gaussian_is_left_to_the_particles():
    smc = run(curved)
    x = smc.get_samples(group_by_chain=True)["x"]
    means = x[..., 0].square().mean(1)
    assert abs(float(means.mean()) - 1) < QUANTILE * float(means.std()) / 8**0.5
    assert abs(smc.log_evidence - float(dist.Normal(0.0, 100.0).log_prob(torch.tensor(0.0)))) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("with_noise", [False, True])
def test_matrices_with_two_modes_and_their_evidence(with_noise):
    """Each mode of the density a exp(κ tr MᵀU) + b exp(κ tr NᵀU) has the mass of its matrix Langevin."""
    kappa = 30.0
    modes = torch.stack([torch.eye(4, 2), torch.eye(4, 2).roll(2, 0)])

    def model():
        U = pyro.sample("U", StiefelUniform(4, 2))
        if with_noise:
            v = pyro.sample("v", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(v, 0.5), obs=torch.tensor(1.0))
        logs = kappa * (modes * U).sum((-2, -1)) + torch.tensor([0.2, 0.8]).log()
        pyro.factor("modes", logs.logsumexp(0))

    smc = run(model, num_particles=256, num_starts=16)
    normaliser = -float(MatrixLangevin(kappa * modes[0]).log_prob(modes[0]) - kappa * 2)
    observed = float(dist.Normal(0.0, 1.25**0.5).log_prob(torch.tensor(1.0))) if with_noise else 0.0
    assert_evidence(smc, normaliser + observed)
    U = smc.get_samples(group_by_chain=True)["U"]
    assert_share((modes[1] * U).sum((-2, -1)) > (modes[0] * U).sum((-2, -1)), 0.8)
    if with_noise:
        means = smc.get_samples(group_by_chain=True)["v"].mean(1)
        assert abs(float(means.mean()) - 0.8) < QUANTILE * float(means.std()) / 8**0.5


@pytest.mark.long
def test_orthogonal_matrices_of_both_determinants():
    def model():
        U = pyro.sample("U", StiefelUniform(2, 2))
        pyro.factor("langevin", 4 * U[0, 0])

    smc = run(model, num_particles=256, num_starts=16)
    # The first column is uniform on the circle, the second has either sign.
    assert_evidence(smc, float(torch.special.i0(torch.tensor(4.0)).log()))
    assert_share(torch.linalg.det(smc.get_samples(group_by_chain=True)["U"]) > 0, 0.5)
