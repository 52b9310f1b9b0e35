"""Square matrices, whose two components no continuous path connects."""

from functools import cache

import numpy as np
import pyro
import pytest
import torch

from problems.importance import haar, weighted_mean
from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.infer.mcmc.hmc import Reflections, reflected
from pyro_manifold.infer.mcmc.transitions import of_tensors
from pyro_manifold.manifolds import Stiefel
from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE, make_native_code_at_once

F = np.array([[1.5, 0.2, 0.0], [0.0, 0.7, 0.3], [0.1, 0.0, -0.4]])
TILT = 0.5


def run(kernel, num_samples=300, warmup_steps=300, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def rotation_or_reflection():
    """Matrix Langevin on O(3), with e to the power of TILT·det X: components of different, known weights."""
    X = pyro.sample("X", StiefelUniform(3, 3))
    pyro.factor("density", (torch.as_tensor(F) * X).sum((-2, -1)) + TILT * torch.linalg.det(X))


@cache
def truths():
    X = haar(np.random.default_rng(4), 200_000, 3, 3)
    sign, trace = np.linalg.det(X), (F * X).sum((-2, -1))
    log_weights = trace + TILT * sign
    return {name: weighted_mean(x, log_weights) for name, x in {"det": sign, "trace": trace}.items()}


@pytest.mark.parametrize("kernel", [OHMC, pytest.param(GHMC, marks=pytest.mark.long)])
def test_both_components_are_visited_with_their_weights(kernel, monkeypatch):
    make_native_code_at_once(monkeypatch)
    mcmc = run(kernel(rotation_or_reflection), 100, 100, num_chains=64)
    X = mcmc.get_samples(group_by_chain=True)["X"]
    assert constraints.stiefel.check(X).all()
    assert_mean(torch.linalg.det(X), *truths()["det"])
    assert_mean((torch.as_tensor(F) * X).sum((-2, -1)), *truths()["trace"])
    statistics = mcmc.get_extra_fields(group_by_chain=True)
    assert 0.02 < float(statistics["reflected"].double().mean()) < 0.5
    log_density = (torch.as_tensor(F) * X).sum((-2, -1)) + TILT * torch.linalg.det(X)
    assert torch.allclose(statistics["lp"], log_density)
    assert WITHOUT_NATIVE_CODE or mcmc.kernel.run.backends["trajectory"] == "native"


def test_one_of_all_matrices_is_reflected_and_each_as_often():
    X = {("A",): Stiefel().random_point(20_000, 2, 3, 3), ("B",): Stiefel().random_point(20_000, 1, 2, 2)}
    proposals = Reflections({block: x.shape[1] for block, x in X.items()}, None, 0.6)
    v = proposals.directions(proposals.noise(X), X)
    flips = torch.cat([torch.linalg.det(x) * torch.linalg.det(reflected(x, v[b])) < 0 for b, x in X.items()], 1)
    assert flips.sum(1).max() == 1
    for matrix in flips.double().T:
        assert_mean(matrix, 0.2)


def test_comparisons_of_code_accept_all_proposals_and_leave_some_chains_where_they_are():
    run = OHMC(rotation_or_reflection).prepare(64, 10, None)
    transition, settings = run.transitions[-1], run.tuning.settings(1)
    noise = transition.transition.noise(run.state, run.random)
    noise = noise._replace(uniform=of_tensors(torch.zeros_like, noise.uniform))
    state = run.state
    _, statistics = transition.with_noise(state, transition.transition.prepared(settings, state), noise)
    assert 16 < int(statistics["reflected"].sum()) < 48


def test_without_reflections_the_component_of_the_start_is_kept_and_reported():
    with pytest.warns(UserWarning, match=r"'X' is square.*reflection_probability=0"):
        mcmc = run(OHMC(rotation_or_reflection, reflection_probability=0), 20, 20, num_chains=8)
    signs = torch.linalg.det(mcmc.get_samples(group_by_chain=True)["X"]).sign()
    assert (signs == signs[:, :1]).all()
    assert "reflected" not in mcmc.get_extra_fields()
    with pytest.raises(ValueError, match=r"reflection_probability=2"):
        OHMC(rotation_or_reflection, reflection_probability=2)


def reflect(X, probability):
    proposals = Reflections({("X",): X[0].numel() // X.shape[-1] ** 2}, None, probability)
    blocks = {("X",): X}
    return reflected(X, proposals.directions(proposals.noise(blocks), blocks)["X",])


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4)])
def test_reflections_change_the_sign_of_one_determinant(shape):
    X = Stiefel().random_point(200, *shape)
    Y = reflect(X, 1.0)
    assert Stiefel().contains(Y).all()
    flips = torch.linalg.det(X) * torch.linalg.det(Y) < 0
    assert (flips.reshape(200, -1).sum(1) == 1).all()
    assert torch.equal(reflect(X, 0.0), X)


@pytest.mark.parametrize(("matrices", "n"), [(1, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("steps", [1, 5])
def test_moments_after_reflections_of_one_matrix(matrices, n, steps):
    """Each matrix is reflected with probability q in a step, and v is an axis or uniform on the sphere.

    E vvᵀ = I/n for both, so E X = (1 - 2q/n)ᵏ X₀; E det X = (1 - 2q)ᵏ det X₀. Axes leave squares of entries as they
    are, uniform v bring them nearer to 1/n by the factor (n - 2)/(n + 2): on average by 1 - 2q/(n + 2).
    """
    start, q = Stiefel().random_point(matrices, n, n), 0.9 / matrices
    X = start.expand(20_000, matrices, n, n)
    for _ in range(steps):
        X = reflect(X, 0.9)
    X, start = X[:, -1], start[-1]
    assert_mean(torch.linalg.det(X), (1 - 2 * q) ** steps * torch.linalg.det(start))
    assert_mean(X[:, 0, -1], (1 - 2 * q / n) ** steps * start[0, -1])
    square = start[0, -1] ** 2
    assert_mean(X[:, 0, -1] ** 2, 1 / n + (1 - 2 * q / (n + 2)) ** steps * (square - 1 / n))


@pytest.mark.parametrize(("start", "steps"), [("Haar", 1), ("one matrix", 50)])
def test_reflections_keep_haar_measure_and_lead_to_it(start, steps):
    """All moments to be compared are within 0.8⁵⁰ = 1e-5 of those of Haar measure, the determinant's last."""
    n, count = 3, 20_000
    X = Stiefel().random_point(count, n, n) if start == "Haar" else torch.eye(n).expand(count, n, n)
    for _ in range(steps):
        X = reflect(X, 0.9)
    assert_mean(torch.linalg.det(X), 0.0, truth_error=1e-5)
    for Y in (X, Stiefel().random_point(n, n) @ X, X @ Stiefel().random_point(n, n)):
        a, b, c, d = Y[:, 0, 0], Y[:, 0, 1], Y[:, 1, 0], Y[:, 1, 1]
        assert_mean(a, 0.0)
        assert_mean(a**2, 1 / n)
        assert_mean(a**2 * b**2, 1 / (n * (n + 2)))
        assert_mean(a**2 * d**2, (n + 1) / (n * (n - 1) * (n + 2)))
        assert_mean(a * b * c * d, -1 / (n * (n - 1) * (n + 2)))
