"""Draws of other programs: with deterministic sites, other dtypes, unconstrained values, or without statistics."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Posterior, summarise, to_inferencedata
from pyro_manifold.distributions import StiefelUniform

DATA = torch.tensor([0.3, -0.2, 0.1])


def model(y):
    U = pyro.sample("U", StiefelUniform(3, 1))
    scale = pyro.sample("scale", dist.HalfNormal(3.0))
    share = pyro.sample("share", dist.Beta(2.0, 2.0).expand([2]).to_event(1))
    pyro.deterministic("loading", U * scale[..., None, None])
    pyro.factor("even", (U[..., 0, 0] ** 2 + share.sum(-1)).sum())
    pyro.sample("y", dist.Normal(0.0, scale.unsqueeze(-1)).expand([3]).to_event(1), obs=y)


@pytest.fixture
def arrays():
    """In float64, from chains that differ by the sign of U alone; the model is in float32."""
    torch.set_default_dtype(torch.float32)
    generator = np.random.default_rng(0)
    U = np.array([0.96, 0.26, -0.04]) + 0.02 * generator.normal(size=(4, 60, 3))
    U = (U / np.linalg.norm(U, axis=-1, keepdims=True) * np.array([1, -1, 1, -1])[:, None, None])[..., None]
    scale, share = abs(generator.normal(size=(4, 60))), generator.uniform(size=(4, 60, 2))
    return {"U": U, "scale": scale, "share": share}


def test_deterministic_sites_follow_the_aligned_draws(arrays):
    """They are in what Stan and NumPyro return; other names stay as they are."""
    loading = arrays["U"] * arrays["scale"][..., None, None]
    posterior = Posterior.of({**arrays, "loading": loading, "other": arrays["scale"]}, Program(model, (DATA,)))
    aligned = posterior.aligned()
    assert [each.kind for each in posterior.symmetries] == ["signs"]
    scale = aligned.draws["scale"][..., None, None]
    torch.testing.assert_close(aligned.draws["loading"], aligned.draws["U"] * scale)
    torch.testing.assert_close(aligned.draws["other"].double(), torch.from_numpy(arrays["scale"]))
    assert len(set(aligned.draws["U"][..., 0, 0].sign().flatten().tolist())) == 1
    text = summarise(posterior)
    assert "disagree" not in text
    assert "known only up to the signs" in text


def test_arrays_are_in_the_dtype_of_the_model(arrays):
    posterior = Posterior.of(arrays, Program(model, (DATA,)))
    assert {value.dtype for value in posterior.draws.values()} == {torch.float32}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="The log likelihood leaves out")
        idata = to_inferencedata(posterior)
    assert np.isfinite(idata.log_likelihood["y"].values).all()


@pytest.mark.parametrize(("name", "forward"), [("scale", np.log), ("share", lambda x: np.log(x / (1 - x)))])
def test_unconstrained_values_are_refused(arrays, name, forward):
    with pytest.raises(ValueError, match=rf"of '{name}' are outside of its support.*unconstrained"):
        Posterior.of({**arrays, name: forward(arrays[name])}, Program(model, (DATA,)))


def test_bounds_that_rounding_reaches_are_no_error(arrays):
    arrays["share"][0, :2], arrays["scale"][0, 0] = 1.0, 0.0
    assert Posterior.of(arrays, Program(model, (DATA,))).chains == 4


def test_data_that_are_missing_are_named(arrays):
    with pytest.raises(ValueError, match=r"no draws of \['y'\].*data are missing: Program\(model, \(y,\)\)"):
        Posterior.of(arrays, Program(model, (None,)))


def test_arguments_that_are_no_tuple():
    with pytest.raises(ValueError, match=r"args is a Tensor.*expected .*Program\(model, \(y,\)\)"):
        Program(model, DATA)


def test_divergences_that_are_left_out_are_named():
    diverging = torch.arange(60).expand(4, 60) < 2
    first, second = Posterior({"x": torch.randn(4, 60)}, {"diverging": diverging}), Posterior({"x": torch.randn(4, 60)})
    with pytest.warns(UserWarning, match="8 divergences are no longer counted, since 1 of 2 parts"):
        Posterior.concat([first, second])


def test_draws_are_compared_with_the_model_that_they_get(arrays):
    first = Posterior.of(arrays, Program(model, (DATA,)))
    joined = Posterior.concat([first, Posterior.of(arrays)])
    assert joined.draws["U"].dtype == torch.float32
    with pytest.raises(ValueError, match=r"Posterior.concat: .* of 'scale' are outside of its support"):
        Posterior.concat([first, Posterior.of({**arrays, "scale": np.log(arrays["scale"])})])
