"""Models of the evidence benchmark are the same in every package; their truths agree with other ways to them."""

import math

import numpy as np
import pytest
import scipy.stats

from benchmarks.accuracy.evidence.components import log_density, log_evidence, modes
from benchmarks.accuracy.evidence.problems import (
    COLUMNS,
    PROBLEMS,
    RANK,
    components_jax,
    langevin_truth,
    scores,
    von_mises_fisher_truth,
)
from tests.benchmarks.requirements import needs


def test_the_truth_of_matrix_langevin_is_that_of_its_normaliser():
    import torch

    from pyro_manifold.distributions import MatrixLangevin

    F = torch.zeros(3, 2, dtype=torch.float64)
    F.diagonal().copy_(torch.tensor([3.0, 1.5]))
    density = MatrixLangevin(F).log_prob(torch.eye(3, 2, dtype=torch.float64))
    assert langevin_truth()[0] == pytest.approx(4.5 - float(density), abs=1e-6)
    first = MatrixLangevin(torch.tensor([[6.0], [0.0], [0.0], [0.0], [0.0]], dtype=torch.float64))
    at = float(first.log_prob(torch.eye(5, 1, dtype=torch.float64)))
    assert von_mises_fisher_truth()[0] == pytest.approx(6.0 - at, abs=1e-6)


def test_the_density_over_a_triangular_root_has_the_evidence_of_a_conjugate_model():
    """With one column of data, the covariance is one number: a quadrature over loadings' norm and noise knows it."""
    y = np.array([[0.5], [-1.0], [2.0]])
    found, error = log_evidence(y, 1, 100_000)
    middle = (np.arange(600) + 0.5) / 600
    norm, noise = np.meshgrid(8 * middle, 6 * middle, indexing="ij")
    prior = scipy.stats.chi(1).pdf(norm) * scipy.stats.halfnorm.pdf(noise)
    sizes = np.hypot(norm, noise)
    likelihood = np.prod([scipy.stats.norm.pdf(each, 0, sizes) for each in y.ravel()], 0)
    truth = math.log((prior * likelihood).sum() * 8 * 6 / norm.size)
    assert abs(found - truth) < 4 * error
    assert error < 0.01


@pytest.mark.long
def test_a_small_diagonal_entry_leaves_two_modes():
    """Importance sampling about one of them missed a third of the evidence, and its standard error did not say so."""
    first, second = modes(scores(), RANK, np.random.default_rng(0))
    last = np.flatnonzero(np.tril_indices(COLUMNS, -1, RANK)[1] == RANK - 1)  # entries below the last of the diagonal
    assert first[last] == pytest.approx(-second[last], abs=0.1)


@pytest.mark.long
@needs("jax")
def test_loadings_and_their_triangular_root_have_the_same_likelihood():
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        _, _, likelihood = components_jax()
        W, noise = np.random.default_rng(0).normal(size=(COLUMNS, RANK)), 0.3
        _, R = np.linalg.qr(W.T)
        L = (R * np.sign(np.diag(R))[:, None]).T
        by_jax = float(likelihood(jnp.concatenate([jnp.asarray(W).ravel(), jnp.array([noise])])))
    values = np.concatenate([L[np.tril_indices(COLUMNS, -1, RANK)], np.log(np.diag(L)), [noise]])
    y = scores()
    # What the density has beside the likelihood: the same at other data.
    prior = float(log_density(values[None], y[:0], RANK)[0])
    assert float(log_density(values[None], y, RANK)[0]) - prior == pytest.approx(by_jax, rel=1e-9)


@pytest.mark.long
@needs("jax")
@pytest.mark.parametrize("name", [name for name, problem in PROBLEMS.items() if problem.jax_parts])
def test_log_likelihoods_of_peers_have_the_same_mean_under_the_prior(name):
    """Of draws of each package's own prior, within 4 standard errors."""
    import jax
    from pyro import poutine

    problem = PROBLEMS[name]
    draw, _, likelihood = problem.jax_parts()
    theirs = np.array([float(likelihood(draw(key))) for key in jax.random.split(jax.random.PRNGKey(0), 100)])
    ours = []
    for _ in range(200):
        trace = poutine.trace(problem.pyro_model).get_trace()
        trace.compute_log_prob()
        observed = [site for site in trace.nodes.values() if site["type"] == "sample" and site["is_observed"]]
        ours.append(float(sum(site["log_prob_sum"] for site in observed)))
    # Likelihoods are far from normal; their ranks compare.
    assert scipy.stats.mannwhitneyu(theirs, ours).pvalue > 6e-5
