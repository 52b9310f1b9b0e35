"""Unit vectors, and square matrices, whose two components no continuous path connects."""

from functools import cache

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.special
import torch
from pyro.infer import NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

from problems.importance import haar, weighted_mean
from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.infer.mcmc.hmc.reflection import draw_reflections, reflected
from pyro_manifold.manifolds import Sphere, Stiefel

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
    X = haar(np.random.default_rng(4), 1_000_000, 3, 3)
    sign, trace = np.linalg.det(X), (F * X).sum((-2, -1))
    log_weights = trace + TILT * sign
    return {name: weighted_mean(x, log_weights) for name, x in {"det": sign, "trace": trace}.items()}


@pytest.mark.parametrize("kernel", [OHMC, GHMC])
def test_both_components_are_visited_with_their_weights(kernel):
    mcmc = run(kernel(rotation_or_reflection), num_chains=32)
    X = mcmc.get_samples(group_by_chain=True)["X"]
    assert constraints.stiefel.check(X).all()
    assert_mean(torch.linalg.det(X), *truths()["det"])
    assert_mean((torch.as_tensor(F) * X).sum((-2, -1)), *truths()["trace"])
    statistics = mcmc.get_extra_fields(group_by_chain=True)
    assert 0.02 < float(statistics["reflected"].double().mean()) < 0.5
    log_density = (torch.as_tensor(F) * X).sum((-2, -1)) + TILT * torch.linalg.det(X)
    assert torch.allclose(statistics["lp"], log_density)


def test_without_reflections_the_component_of_the_start_is_kept_and_said():
    with pytest.warns(UserWarning, match=r"'X' is square.*reflection_probability=0"):
        mcmc = run(OHMC(rotation_or_reflection, reflection_probability=0), 20, 20, num_chains=8)
    signs = torch.linalg.det(mcmc.get_samples(group_by_chain=True)["X"]).sign()
    assert (signs == signs[:, :1]).all()
    assert "reflected" not in mcmc.get_extra_fields()
    with pytest.raises(ValueError, match=r"reflection_probability=2"):
        OHMC(rotation_or_reflection, reflection_probability=2)


def reflect(X, probability):
    return reflected(X, draw_reflections(X, probability))


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


# ---- unit vectors -------------------------------------------------------------------------------------------

KAPPA = 4.0


def von_mises_fisher(size=5):
    x = pyro.sample("x", dist.ProjectedNormal(torch.zeros(size)).mask(False))
    pyro.factor("pull", KAPPA * x[..., 0])


def mean_cosine(size=5):
    return scipy.special.iv(size / 2, KAPPA) / scipy.special.iv(size / 2 - 1, KAPPA)


@pytest.mark.parametrize("kernel", [OHMC, GHMC])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_unit_vectors_follow_their_law(kernel, jit_compile):
    mcmc = run(kernel(von_mises_fisher, jit_compile=jit_compile), num_chains=32)
    x = mcmc.get_samples(group_by_chain=True)["x"]
    assert Sphere().contains(x).all()
    assert_mean(x[..., 0], mean_cosine())
    assert_mean(x[..., 1], 0.0)


def test_the_chart_of_unit_vectors_gives_pyros_own_inference_the_same_law():
    mcmc = run(NUTS(von_mises_fisher), 400, 200)
    assert_mean(mcmc.get_samples(group_by_chain=True)["x"][..., 0], mean_cosine())
    guide = AutoNormal(von_mises_fisher)
    svi = SVI(von_mises_fisher, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step() for _ in range(300)]
    # The evidence E exp(κ x₁) under the uniform law bounds the ELBO from above.
    order = 5 / 2 - 1
    evidence = scipy.special.gamma(order + 1) * (2 / KAPPA) ** order * scipy.special.iv(order, KAPPA)
    assert -np.mean(losses[-100:]) < np.log(evidence)
    assert -np.mean(losses[-100:]) > np.log(evidence) - 0.5


def test_unit_vectors_beside_frames_in_plates_and_single_precision():
    torch.set_default_dtype(torch.float32)

    def model():
        with pyro.plate("groups", 3):
            x = pyro.sample("x", dist.ProjectedNormal(torch.tensor([1.0, 0.0, 0.0])))
        U = pyro.sample("U", StiefelUniform(3, 3))
        pyro.factor("alignment", 2 * (x @ U[..., :, 0]).sum(-1))

    mcmc = run(GHMC(model), 50, 50, num_chains=32)
    samples = mcmc.get_samples(group_by_chain=True)
    assert samples["x"].shape == (32, 50, 3, 3)
    rng = np.random.default_rng(5)
    x, u = np.array([1.0, 0.0, 0.0]) + rng.standard_normal((200_000, 3, 3)), haar(rng, 200_000, 3, 1)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = (x @ u)[..., 0]
    log_weights = 2 * cosines.sum(-1)
    found = (samples["x"] @ samples["U"][..., :1]).squeeze(-1)
    assert_mean(found[..., 1].double(), *weighted_mean(cosines[:, 1], log_weights))
    assert_mean(samples["x"][..., 2, 0].double(), *weighted_mean(x[:, 2, 0], log_weights))
    assert samples["x"].dtype == torch.float32
    assert Sphere().contains(samples["x"]).all()
    assert mcmc.diagnostics()["orthogonality error"]["chain 0"] < 1e-5


def test_a_start_off_the_sphere_is_named():
    kernel = OHMC(von_mises_fisher)
    with pytest.raises(ValueError, match=r"'x'.*off the Sphere manifold"):
        run(kernel, 5, 5, initial_params={"x": torch.ones(5)})
