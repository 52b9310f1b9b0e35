"""A summary shows what is known: aligned draws, what was done to them, and first of all whether chains disagree."""

import pickle
from functools import cache

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS

from pyro_manifold.diagnostics import to_inferencedata
from pyro_manifold.diagnostics.convergence import convergence
from pyro_manifold.diagnostics.invariants import invariants
from pyro_manifold.diagnostics.table import table
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC

AXES = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
NOISE = torch.randn(100, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
DATA = NOISE[:, :2] * torch.tensor([4.0, 2.0], dtype=torch.float64) @ AXES.T + 0.5 * NOISE[:, 2:]


def components():
    U = pyro.sample("U", StiefelUniform(6, 2))
    scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    root = pyro.deterministic("root", U * scales[..., None, :])
    with pyro.plate("rows", len(DATA)):
        diagonal = noise[..., None] ** 2 * torch.ones(6)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(6), root, diagonal), obs=DATA)


def factors():
    """Loadings with a Normal prior, and scores."""
    W = pyro.sample("W", dist.Normal(torch.zeros(6, 2), 3.0).to_event(2))
    with pyro.plate("rows", 30):
        Z = pyro.sample("Z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(Z @ W.mT, 0.5).to_event(1), obs=DATA[:30])


@cache
def run_of_components():
    """Four chains that begin with other signs and order of columns."""
    pyro.set_rng_seed(0)
    starts = torch.stack([AXES, -AXES, AXES.flip(-1), AXES * torch.tensor([1.0, -1.0])])
    scales = torch.tensor([[4.0, 2.0], [4.0, 2.0], [2.0, 4.0], [4.0, 2.0]]).log()
    initial = {"U": starts, "scales": scales, "noise": torch.full((4,), 0.5).log()}
    mcmc = MCMC(OHMC(components), 400, 300, num_chains=4, initial_params=initial, disable_progbar=True)
    mcmc.run()
    return mcmc


@cache
def run_of_factors():
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(factors), 400, 400, num_chains=4, disable_progbar=True)
    mcmc.run()
    return mcmc


def printed(capsys, results, **options):
    results.summary(**options)
    return capsys.readouterr().out


def largest_r_hat(values):
    return float(convergence(values, ("r_hat",))["r_hat"].max())


def test_aligned_draws_of_chains_with_other_labels_agree(capsys):
    mcmc = run_of_components()
    raw, aligned = (mcmc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    for name in ("U", "scales"):
        assert largest_r_hat(raw[name]) > 1.5
        assert largest_r_hat(aligned[name]) < 1.02
    assert torch.equal(aligned["noise"], raw["noise"])
    for each in (raw, aligned):
        each["covariance"] = each["U"] * each["scales"].square().unsqueeze(-2) @ each["U"].mT
    torch.testing.assert_close(aligned["covariance"], raw["covariance"], rtol=0, atol=1e-12)
    assert aligned["scales"].mean((0, 1))[0] > 3 > aligned["scales"].mean((0, 1))[1]
    out = printed(capsys, mcmc)
    assert out.startswith(table(aligned | {"covariance": torch.empty(4, 400, 0)}, 0.9))
    lines = out.splitlines()
    said = [line for line in lines if line.startswith("`U` is known only up to the signs and the order of its columns")]
    assert len(said) == 1
    assert "with `scales` in the same order: each draw has the signs and the order nearest to the mean" in said[0]
    assert "R-hat of the invariants is at most 1.0" in said[0]
    assert "nearly as good" not in said[0]


def test_without_alignment_the_table_is_that_of_the_draws(capsys):
    mcmc = run_of_components()
    out = printed(capsys, mcmc, align=False)
    raw = mcmc.get_samples(group_by_chain=True)
    symmetry = mcmc.symmetries()[0]
    assert out.startswith(f"{table(raw, 0.9)}\nNumber of divergences: ")
    assert out.splitlines()[-2] == symmetry.sentence()
    assert out.splitlines()[-1].startswith("R-hat of the invariants is at most ")


def test_normal_loadings_are_rotated_with_their_scores(capsys):
    mcmc = run_of_factors()
    raw, aligned = (mcmc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    assert largest_r_hat(raw["W"]) > 1.1
    assert largest_r_hat(aligned["W"]) < 1.05
    assert float(convergence(aligned["W"], ("ess_bulk",))["ess_bulk"].min()) > 100
    torch.testing.assert_close(aligned["W"] @ aligned["Z"].mT, raw["W"] @ raw["Z"].mT, rtol=0, atol=1e-11)
    said = printed(capsys, mcmc)
    expected = "`W` and `Z` are known only up to rotations of their columns, together: each draw is rotated to the mean"
    assert expected in said
    assert said.count("Z[") == 10
    assert "and 50 more of Z: r_hat at most 1.0" in said


def test_a_site_has_as_many_rows_as_asked_for(capsys):
    mcmc = run_of_factors()
    assert printed(capsys, mcmc, max_rows=60).count("Z[") == 60
    assert printed(capsys, mcmc, align=False).count("Z[") == 60
    few = printed(capsys, mcmc, align=False, max_rows=3)
    assert few.count("Z[") == 3
    worst = convergence(mcmc.get_samples(group_by_chain=True)["Z"], ("r_hat",))["r_hat"]
    row, column = divmod(int(worst.argmax()), 2)
    first = next(line for line in few.splitlines() if "Z[" in line)
    assert first.strip().startswith(f"Z[{row},{column}]")
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match=r"max_rows=.*expected a positive integer"):
            mcmc.summary(max_rows=wrong)


def test_the_export_has_the_same_draws_and_their_deterministic_sites():
    mcmc = run_of_components()
    aligned = mcmc.get_samples(group_by_chain=True, align=True)
    idata = mcmc.to_inferencedata(align=True)
    for name, value in aligned.items():
        np.testing.assert_array_equal(idata.posterior[name], value)
    np.testing.assert_allclose(idata.posterior["root"], aligned["U"] * aligned["scales"].unsqueeze(-2))
    assert float(arviz.rhat(idata)["root"].max()) < 1.02
    raw = mcmc.to_inferencedata()
    np.testing.assert_array_equal(raw.posterior["U"], mcmc.get_samples(group_by_chain=True)["U"])
    np.testing.assert_allclose(idata.log_likelihood["y"], raw.log_likelihood["y"], atol=1e-9)
    flat = mcmc.get_samples(align=True, deterministic=True)
    torch.testing.assert_close(flat["root"], flat["U"] * flat["scales"].unsqueeze(-2))
    assert mcmc.get_samples(7, align=True)["U"].shape == (7, 6, 2)


def two_numbers():
    pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def test_it_is_an_error_where_symmetries_cannot_be_found(capsys):
    mcmc = MCMC(NUTS(two_numbers), 10, 10, disable_progbar=True)
    mcmc.run()
    with pytest.raises(ValueError, match=r"MCMC.get_samples\(align=True\): the symmetries .* align_rotations"):
        mcmc.get_samples(align=True)
    assert "x[1]" in printed(capsys, mcmc)
    part = MCMC(OHMC(components), 10, 10, save_params=["U"], disable_progbar=True)
    part.run()
    with pytest.raises(ValueError, match="save_params"):
        part.to_inferencedata(align=True, log_likelihood=False)
    alone = pyro.infer.MCMC(NUTS(two_numbers), 10, 10, disable_progbar=True)
    alone.run()
    with pytest.raises(ValueError, match=r"to_inferencedata\(align=True\): only runs of"):
        to_inferencedata(alone, align=True)


def test_symmetries_are_found_once_for_a_run(monkeypatch, capsys):
    import pyro_manifold.infer.mcmc.running.end_of_run as module

    asked = []
    found = module.symmetries
    monkeypatch.setattr(module, "symmetries", lambda *given: asked.append(1) or found(*given))
    mcmc = MCMC(OHMC(components), 10, 20, num_chains=2, disable_progbar=True)
    for runs in (1, 2):
        mcmc.run()
        mcmc.summary()
        mcmc.get_samples(align=True)
        mcmc.to_inferencedata(align=True)
        mcmc.symmetries()
        assert len(asked) == runs
    assert pickle.loads(pickle.dumps(mcmc._known_symmetries)).of(lambda: None, {}) is None


def two_places():
    """Columns known up to signs, and c in two modes that chains do not leave, each with its own U."""
    c = pyro.sample("c", dist.Normal(0.0, 4.0))
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.factor("two", torch.logsumexp(-8 * (c - torch.tensor([-4.0, 4.0])) ** 2, 0))
    share = torch.sigmoid(8 * c)
    strengths = share * torch.tensor([40.0, 5.0]) + (1 - share) * torch.tensor([5.0, 40.0])
    pyro.factor("columns", (strengths * (U[0].square() - U[3].square())).sum())


def test_invariants_that_disagree_are_said_first(capsys):
    initial = {"c": torch.tensor([-4.0, 4.0, -4.0, 4.0]), "U": StiefelUniform(4, 2).sample((4,))}
    mcmc = MCMC(OHMC(two_places), 100, 100, num_chains=4, initial_params=initial, disable_progbar=True)
    mcmc.run()
    first = printed(capsys, mcmc).splitlines()[0]
    assert first.startswith("Chains disagree, and not only on signs, order or rotations of columns, R-hat of ")
    assert ", c (" in first
    worst = max(largest_r_hat(x) for x in invariants(mcmc.get_samples(group_by_chain=True)["U"], "signs").values())
    assert f"U, squared entries ({worst:.2f})" in first
    for advice in ("warmup_steps", "SMC(kernel)", "tempering=True", "diagnostics()['modes']"):
        assert advice in first
    assert not printed(capsys, run_of_components()).startswith("Chains disagree")


@pytest.mark.filterwarnings("ignore:The log evidences of 2 runs differ")  # as those of so few particles may
def test_particles_are_aligned_too(capsys):
    smc = SMC(OHMC(components), 64, 2, disable_progbar=True)
    smc.run()
    raw, aligned = (smc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    products = [each["U"] * each["scales"].unsqueeze(-2) @ each["U"].mT for each in (raw, aligned)]
    torch.testing.assert_close(*products, rtol=0, atol=1e-12)
    assert float(aligned["U"].std((0, 1)).max()) < 0.3 < float(raw["U"].std((0, 1)).max())
    out = printed(capsys, smc)
    assert "each draw has the signs and the order nearest to the mean" in out
    assert out.startswith(table(aligned, 0.9))
    assert printed(capsys, smc, align=False).startswith(table(raw, 0.9))
    np.testing.assert_array_equal(smc.to_inferencedata(align=True, log_likelihood=False).posterior["U"], aligned["U"])
    assert [each.kind for each in smc.symmetries()] == ["permutations"]


def test_diagnostics_have_a_short_repr_and_identifiers_for_keys():
    mcmc = run_of_components()
    found = mcmc.diagnostics()
    text = repr(found)
    assert len(text) < 400
    worst = float(found["scales"]["r_hat"].max()), float(found["U"]["r_hat"].max())
    assert f"largest r_hat {max(worst):.3f}" in text
    assert "disagreeing_chains U, scales" in text
    assert all(key.isidentifier() for key in found)
    for name in ("acceptance_rate", "orthogonality_error", "disagreeing_chains"):
        old = name.replace("_", " ")
        assert found[name] is found[old] is found.get(old)
        assert old in found
    assert found["acceptance rate"]["chain 0"] == found["acceptance_rate"]["chain_0"]
    assert found.get("nothing", 3) == 3
    with pytest.raises(KeyError, match="nothing here"):
        found["nothing here"]
    copy = pickle.loads(pickle.dumps(found))
    assert copy["acceptance rate"] == found["acceptance_rate"]
    assert repr(copy) == text
