"""Copies of a run, pickled or deep, have its results, and say where to go on with it."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, Predictive


def model(y=None):
    U = pyro.sample("U", StiefelUniform(4, 2))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    pyro.deterministic("first", U[..., 0, 0] * scale)
    pyro.sample("y", dist.Normal(U, scale[..., None, None]).to_event(2), obs=y)


DATA = torch.linalg.qr(torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]


def run(**options):
    mcmc = MCMC(OHMC(model), 12, 20, num_chains=2, disable_progbar=True, **options)
    mcmc.run(DATA)
    return mcmc


def pickled(mcmc):
    return pickle.loads(pickle.dumps(mcmc))


def in_folder(folder):
    return {"store": str(folder)}


def in_memory(folder):
    return {}


def tempered(folder):
    return {"tempering": True}


def printed(capsys, mcmc):
    mcmc.summary()
    return capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:No replica of")  # a run this short may make no round trip
@pytest.mark.parametrize("copied", [pickled, pytest.param(copy.deepcopy, marks=pytest.mark.long)])
@pytest.mark.parametrize("kept", [in_memory, in_folder, pytest.param(tempered, marks=pytest.mark.long)])
def test_a_copy_has_the_draws_statistics_and_summary(copied, kept, tmp_path, capsys):
    mcmc = run(**kept(tmp_path / "run"))
    other = copied(mcmc)
    for align in (False, True):
        draws, expected = (each.get_samples(align=align, deterministic=True) for each in (other, mcmc))
        for name in ("U", "scale", "first"):
            torch.testing.assert_close(draws[name], expected[name], rtol=1e-12, atol=1e-12)
    for name, value in mcmc.get_extra_fields().items():
        assert torch.equal(other.get_extra_fields()[name], value)
    assert printed(capsys, other) == printed(capsys, mcmc)
    assert repr(other.diagnostics()) == repr(mcmc.diagnostics())
    assert other.diagnostics().keys() == mcmc.diagnostics().keys()
    assert Predictive(model, other.get_samples())()["y"].shape == (24, 4, 2)
    assert other.to_inferencedata().log_likelihood["y"].shape == (2, 12)


@pytest.mark.long
def test_an_original_continues_and_a_copy_refuses_to():
    mcmc = run()
    other = pickled(mcmc)
    with pytest.raises(ValueError, match=r"continue_run: this object is a copy.*resume=True"):
        other.continue_run(5)
    mcmc.continue_run(5)
    assert mcmc.get_samples()["U"].shape == (34, 4, 2)
    assert other.get_samples()["U"].shape == (24, 4, 2)
    other.run(DATA)  # a new run of the same kernel
    other.continue_run(5)
    assert other.get_samples()["U"].shape == (34, 4, 2)


def test_a_copy_is_made_before_the_run_too():
    mcmc = pickled(MCMC(OHMC(model), 5, 5, disable_progbar=True))
    mcmc.run(DATA)
    assert mcmc.get_samples()["U"].shape == (5, 4, 2)
