"""Draws of a stored run are aligned without its model, also while it goes on."""

import json
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import open_run
from pyro_manifold.distributions import SpecialOrthogonalUniform, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

AXES = torch.linalg.qr(torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]


def model():
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.HalfNormal(3.0).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    given = AXES * torch.tensor([3.0, 1.0], dtype=torch.float64) @ AXES.T
    pyro.sample("y", dist.Normal(U * scales.unsqueeze(-2) @ U.mT, 0.1 + noise[..., None, None]).to_event(2), obs=given)


def run(folder, chains=4, draws=20, warmup=10, **options):
    kernel = OHMC(model, step_size=0.05, num_steps=3, adapt_step_size=False)  # whether draws are good does not matter
    mcmc = MCMC(kernel, draws, warmup, num_chains=chains, store=folder, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.long), 4])
def test_draws_read_back_are_those_of_the_run(chains, tmp_path):
    mcmc = run(tmp_path / "run", chains)
    aligned, raw = (mcmc.get_samples(group_by_chain=True, align=align) for align in (True, False))
    found = open_run(tmp_path / "run", align=True).posterior
    for name in ("U", "scales", "noise"):
        np.testing.assert_array_equal(found[name], aligned[name])
    assert found["U"].dims == ("chain", "draw", "U_dim_0", "U_dim_1")
    np.testing.assert_array_equal(open_run(tmp_path / "run").posterior["U"], raw["U"])


def test_rotations_read_back_are_rotations(tmp_path):
    def turned():
        R = pyro.sample("R", SpecialOrthogonalUniform(2))
        pyro.factor("likelihood", -9 * R[0, 1] * R[1, 0])

    mcmc = MCMC(OHMC(turned), 30, 30, num_chains=4, store=tmp_path / "run", disable_progbar=True)
    mcmc.run()
    found = open_run(tmp_path / "run", align=True).posterior["R"]
    np.testing.assert_array_equal(found, mcmc.get_samples(group_by_chain=True, align=True)["R"])
    np.testing.assert_allclose(np.linalg.det(found), 1.0)
    assert (found[..., 1, 0] > 0).all()  # one of the two modes, R and -R


@pytest.mark.long
def test_a_run_in_progress_is_aligned(tmp_path):
    seen = []

    def look(iteration):
        if iteration.index == 20 and iteration.kept:
            mcmc._sampling._storage.settle()
            seen.append(open_run(tmp_path / "run", align=True).posterior["scales"].values)

    mcmc = MCMC(OHMC(model), 30, 60, num_chains=4, store=tmp_path / "run", consumers=[look], disable_progbar=True)
    mcmc.run()
    (scales,) = seen
    assert scales.shape[0] == 4
    assert (np.median(scales, (0, 1)).argsort() == [1, 0]).all()


@pytest.mark.long
def test_draws_are_the_same_without_a_record(tmp_path):
    draws = []
    for options in ({"store": tmp_path / "run"}, {}):
        pyro.set_rng_seed(0)
        mcmc = MCMC(OHMC(model), 30, 60, num_chains=4, disable_progbar=True, **options)
        mcmc.run()
        draws.append(torch.as_tensor(mcmc.get_samples()["U"]))
    assert torch.equal(*draws)


@pytest.mark.long
def test_what_cannot_be_aligned_has_a_sentence(tmp_path):
    run(tmp_path / "part", draws=5, warmup=5, save_params=["U"])
    with pytest.raises(ValueError, match=r"open_run\(align=True\): the symmetries .* are not known, as save_params"):
        open_run(tmp_path / "part", align=True)
    run(tmp_path / "run", draws=5, warmup=5)
    with pytest.raises(ValueError, match="align='x', expected True or False"):
        open_run(tmp_path / "run", align="x")
    record = tmp_path / "run" / "symmetries.json"
    written = json.loads(record.read_text())
    for wrong in ("kind", "sites", "independent"):
        changed = {**written, "symmetries": [{**written["symmetries"][0], wrong: ["W"]}]}
        record.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=r"symmetries.json is damaged"):
            open_run(tmp_path / "run", align=True)
    record.unlink()
    with pytest.raises(ValueError, match=r"are not recorded.*resume=True"):
        open_run(tmp_path / "run", align=True)
    run(tmp_path / "run", draws=8, warmup=5, resume=True)
    assert open_run(tmp_path / "run", align=True).posterior["U"].shape == (4, 8, 4, 2)


def test_a_posterior_without_symmetries_is_read_as_it_is(tmp_path):
    def plain():
        pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    mcmc = MCMC(OHMC(plain), 5, 5, num_chains=2, store=tmp_path / "run", disable_progbar=True)
    mcmc.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = open_run(tmp_path / "run", align=True)
    np.testing.assert_array_equal(found.posterior["x"], mcmc.get_samples(group_by_chain=True)["x"])
