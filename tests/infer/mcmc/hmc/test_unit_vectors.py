"""Sites on the unit sphere."""

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
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.manifolds import Sphere
from tests.infer.mcmc.compilers import compiled_code

KAPPA = 4.0


def run(kernel, num_samples=300, warmup_steps=300, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def von_mises_fisher(size=5):
    x = pyro.sample("x", dist.ProjectedNormal(torch.zeros(size)).mask(False))
    pyro.factor("pull", KAPPA * x[..., 0])


def mean_cosine(size=5):
    return scipy.special.iv(size / 2, KAPPA) / scipy.special.iv(size / 2 - 1, KAPPA)


@pytest.mark.parametrize(
    ("kernel", "jit_compile"),
    [
        (OHMC, False),
        pytest.param(GHMC, False, marks=pytest.mark.long),
        pytest.param(OHMC, True, marks=[pytest.mark.long, compiled_code]),
    ],
)
def test_unit_vectors_follow_their_distribution(kernel, jit_compile):
    mcmc = run(kernel(von_mises_fisher, jit_compile=jit_compile), num_chains=32)
    x = mcmc.get_samples(group_by_chain=True)["x"]
    assert Sphere().contains(x).all()
    assert_mean(x[..., 0], mean_cosine())
    assert_mean(x[..., 1], 0.0)


@pytest.mark.long
def test_the_transform_of_unit_vectors_gives_pyros_own_inference_the_same_distribution():
    mcmc = run(NUTS(von_mises_fisher), 400, 200)
    assert_mean(mcmc.get_samples(group_by_chain=True)["x"][..., 0], mean_cosine())
    guide = AutoNormal(von_mises_fisher)
    svi = SVI(von_mises_fisher, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step() for _ in range(300)]
    # The evidence bounds the ELBO from above: the integral of exp(κ x₁) over the surface, as the prior is masked.
    order = 5 / 2 - 1
    area = 2 * np.pi ** (5 / 2) / scipy.special.gamma(5 / 2)
    evidence = area * scipy.special.gamma(order + 1) * (2 / KAPPA) ** order * scipy.special.iv(order, KAPPA)
    assert -np.mean(losses[-100:]) < np.log(evidence)
    assert -np.mean(losses[-100:]) > np.log(evidence) - 0.5


@pytest.mark.long
def test_unit_vectors_with_matrices_in_plates_and_single_precision():
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
    assert mcmc.diagnostics()["orthogonality_error"]["chain 0"] < 1e-5


def test_a_start_off_the_sphere_is_named():
    kernel = OHMC(von_mises_fisher)
    with pytest.raises(ValueError, match=r"'x'.*off the Sphere manifold"):
        run(kernel, 5, 5, initial_params={"x": torch.ones(5)})
