"""Descents, mixtures about modes, and sequential Monte Carlo from them, against Gaussians that are known."""

import math

import pyro
import pyro.distributions as dist
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import OHMC, SMC
from pyro_manifold.infer.smc.descent import descend
from pyro_manifold.infer.smc.modes import GaussianMixture, laplace_mixture


def quadratic(matrix, centre):
    def objective(x):
        gradient = (x - centre) @ matrix
        return ((x - centre) * gradient).sum(-1) / 2, gradient

    return objective


def test_descents_end_at_the_minimum_of_a_quadratic_that_is_badly_scaled():
    matrix = torch.diag(torch.tensor([1.0, 1e2, 1e4]))
    centre = torch.tensor([1.0, -2.0, 3.0])
    found = descend(quadratic(matrix, centre), torch.randn(5, 3), 200, 1e-10)
    torch.testing.assert_close(found.points, centre.expand(5, 3), atol=1e-4, rtol=0)


def test_descents_pass_a_curved_valley():
    def rosenbrock(x):
        x = x.detach().requires_grad_()
        value = (1 - x[:, 0]).square() + 100 * (x[:, 1] - x[:, 0].square()).square()
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    found = descend(rosenbrock, torch.tensor([[-1.2, 1.0], [3.0, -2.0]]), 500, 1e-12)
    torch.testing.assert_close(found.points, torch.ones(2, 2), atol=1e-4, rtol=0)


def test_a_start_where_nothing_is_finite_stays_and_the_others_go():
    def objective(x):
        return torch.where(x[:, 0] > 0, x.square().sum(-1), torch.inf), 2 * x

    found = descend(objective, torch.tensor([[1.0], [-1.0]]), 50, 1e-8)
    assert abs(float(found.points[0])) < 1
    assert float(found.points[1]) == -1


def test_the_mixture_about_one_gaussian_is_that_gaussian():
    matrix, centre = torch.tensor([[2.0, 0.5], [0.5, 1.0]]), torch.tensor([3.0, -1.0])
    objective = quadratic(matrix, centre)
    mixture = laplace_mixture(objective, descend(objective, torch.randn(4, 2), 100, 1e-12))
    expected = dist.MultivariateNormal(centre, precision_matrix=matrix)
    x = torch.randn(2)
    torch.testing.assert_close(mixture.log_density(x), expected.log_prob(x), rtol=1e-4, atol=1e-4)


def test_draws_of_a_mixture_have_its_moments():
    roots = torch.linalg.cholesky(torch.tensor([[[4.0]], [[1.0]]]))
    mixture = GaussianMixture(torch.tensor([0.25, 0.75]).log(), torch.tensor([[-2.0], [1.0]]), roots)
    random = torch.Generator().manual_seed(0)
    draws = torch.stack([mixture.sample(random) for _ in range(4000)]).squeeze(-1)
    assert_mean(draws, 0.25)
    assert_mean(draws.square(), 0.25 * (4 + 0.25) + 0.75 * 2)


def test_from_modes_particles_have_the_shares_of_the_posterior():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 10.0).to_event(1))
        left = dist.Normal(torch.tensor(-4.0), 0.2).log_prob(x).sum(-1) + math.log(0.3)
        right = dist.Normal(torch.tensor(4.0), 0.2).log_prob(x).sum(-1) + math.log(0.7)
        pyro.factor("modes", torch.logaddexp(left, right))

    pyro.set_rng_seed(0)
    smc = SMC(OHMC(model), 512, 8, init="modes", num_starts=16, disable_progbar=True)
    smc.run()
    # The mixture gives them the roots of these shares.
    share = (smc.get_samples(group_by_chain=True)["x"][..., 0] > 0).double().mean(1)
    assert abs(float(share.mean()) - 0.7) < 8.47 * float(share.std()) / 8**0.5
    evidence = 3 * float(dist.Normal(0.0, (100 + 0.04) ** 0.5).log_prob(torch.tensor(4.0)))
    assert abs(smc.log_evidence - evidence) < 8.47 * smc.log_evidence_error
