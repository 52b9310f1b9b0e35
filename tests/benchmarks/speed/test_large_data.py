"""The two models of a benchmark say the same of the data."""

import numpy as np
import pyro
import pytest
import torch

from benchmarks.speed.large_data import Components
from tests.benchmarks.requirements import needs


@pytest.mark.long
@needs("numpyro")
def test_both_libraries_have_the_same_likelihood():
    import jax
    from numpyro.infer.util import log_likelihood

    jax.config.update("jax_enable_x64", True)
    problem, random = Components(7, 4, 2), np.random.default_rng(1)
    normal, scores = random.standard_normal((4, 2)), random.standard_normal((7, 2))
    scales, noise = np.array([2.0, 0.5]), np.array(0.7)
    values = {"scales": scales, "noise": noise, "scores": scores}
    theirs = log_likelihood(problem.numpyro_model, {**values, "normal": normal}, batch_ndims=0)["data"].sum()
    ours = {**values, "axes": np.array(jax.numpy.linalg.qr(normal)[0])}
    data = {name: torch.as_tensor(value) for name, value in ours.items()}
    trace = pyro.poutine.trace(pyro.poutine.condition(problem.pyro_model, data)).get_trace()
    trace.compute_log_prob()
    assert float(trace.nodes["data"]["log_prob"].sum()) == pytest.approx(float(theirs), rel=1e-6)
