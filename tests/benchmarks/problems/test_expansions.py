"""Orthonormal factors by which other packages sample: polar factors are polar, and every one of them is orthonormal."""

import numpy as np
import pytest
import scipy.linalg

from benchmarks.problems import expansions
from tests.benchmarks.requirements import needs

SHAPES = [(1, 1), (5, 1), (2, 2), (3, 2), (20, 2)]


def matrices(n, p):
    return np.random.default_rng(0).standard_normal((5, n, p))


@pytest.mark.parametrize(("n", "p"), SHAPES)
def test_the_closed_form_is_the_polar_factor(n, p):
    for Z in matrices(n, p):
        np.testing.assert_allclose(expansions.closed_form(Z, np), scipy.linalg.polar(Z)[0], atol=1e-10)


@pytest.mark.long
@needs("jax")
@pytest.mark.parametrize("expansion", [expansions.by_eigenvalues, expansions.by_newton_schulz])
def test_others_are_the_polar_factor(expansion):
    import jax

    jax.config.update("jax_enable_x64", True)
    for Z in matrices(10, 3):
        np.testing.assert_allclose(expansion(Z, jax.numpy), scipy.linalg.polar(Z)[0], atol=1e-10)


@pytest.mark.long
@needs("jax")
def test_the_factor_of_cholesky_is_orthonormal_and_fixes_orthonormal_matrices():
    import jax

    jax.config.update("jax_enable_x64", True)
    for Z in matrices(10, 3):
        Q = np.asarray(expansions.by_cholesky(Z, jax.numpy))
        np.testing.assert_allclose(Q.T @ Q, np.eye(3), atol=1e-12)
        np.testing.assert_allclose(expansions.by_cholesky(Q, jax.numpy), Q, atol=1e-12)
        np.testing.assert_allclose(Q @ Q.T @ Z, Z, atol=1e-12)  # the same span


@pytest.mark.parametrize("p", [1, 2, 3, 10])
def test_the_fastest_is_the_closed_form_where_there_is_one(p):
    assert expansions.fastest(p) is (expansions.closed_form if p <= 2 else expansions.by_cholesky)
