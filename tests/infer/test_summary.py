"""A summary shows what is known: aligned draws, what was done to them, and first of all whether chains disagree."""

import pickle
from dataclasses import replace
from functools import cache, partial

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS

from pyro_manifold.diagnostics import convergence, invariants, summarise, table, to_inferencedata
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
    with pyro.plate("rows", 15):
        Z = pyro.sample("Z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(Z @ W.mT, 0.5).to_event(1), obs=DATA[:15])


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
    """Four chains, each within a quarter turn of its own; a rotation leaves the density as it is."""
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(factors), 400, 400, num_chains=4, disable_progbar=True)
    mcmc.run()
    samples = mcmc._samples
    left, _, right = torch.linalg.svd(samples["W"].mT @ samples["W"][0, 0])
    angles = torch.pi / 2 * (torch.arange(4).unsqueeze(-1) + torch.rand(4, 400))
    for name in ("W", "Z"):
        samples[name] = turned(samples[name] @ left @ right, angles)
    return mcmc


def turned(values, angles):
    """Columns of each matrix with two of them, rotated by its angle."""
    cosine, sine = angles.cos(), angles.sin()
    return values @ torch.stack([cosine, -sine, sine, cosine], -1).unflatten(-1, (2, 2))


def printed(capsys, results, **options):
    results.summary(**options)
    return capsys.readouterr().out


def largest_r_hat(values):
    return float(convergence(values, ("r_hat",))["r_hat"].max())


@pytest.mark.long
def test_aligned_draws_of_chains_with_other_labels_agree(capsys):
    mcmc = run_of_components()
    raw, aligned = (mcmc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    for name in ("U", "scales"):
        assert largest_r_hat(raw[name]) > 1.5
        assert largest_r_hat(aligned[name]) < 1.05
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
    assert largest_r_hat(raw["W"]) > 1.5
    assert largest_r_hat(aligned["W"]) < 1.05
    assert float(convergence(aligned["W"], ("ess_bulk",))["ess_bulk"].min()) > 100
    torch.testing.assert_close(aligned["W"] @ aligned["Z"].mT, raw["W"] @ raw["Z"].mT, rtol=0, atol=1e-11)
    said = printed(capsys, mcmc)
    expected = "`W` and `Z` are known only up to rotations of their columns, together: each draw is rotated to the mean"
    assert expected in said
    assert said.count("Z[") == 10
    assert "and 20 more of Z: r_hat at most 1.0" in said


def test_a_site_has_as_many_rows_as_asked_for(capsys):
    mcmc = run_of_factors()
    assert printed(capsys, mcmc, max_rows=30).count("Z[") == 30
    assert printed(capsys, mcmc, align=False).count("Z[") == 30
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
    assert float(arviz.rhat(idata)["root"].max()) < 1.05
    raw = mcmc.to_inferencedata()
    np.testing.assert_array_equal(raw.posterior["U"], mcmc.get_samples(group_by_chain=True)["U"])
    np.testing.assert_allclose(idata.log_likelihood["y"], raw.log_likelihood["y"], atol=1e-9)
    flat = mcmc.get_samples(align=True, deterministic=True)
    torch.testing.assert_close(flat["root"], flat["U"] * flat["scales"].unsqueeze(-2))
    assert mcmc.get_samples(7, align=True)["U"].shape == (7, 6, 2)


def two_numbers():
    pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def test_it_is_an_error_where_symmetries_cannot_be_found():
    part = MCMC(OHMC(two_places), 10, 10, save_params=["U"], disable_progbar=True)
    part.run()
    for aligned in (part.get_samples, partial(part.to_inferencedata, log_likelihood=False)):
        with pytest.raises(ValueError, match=r"align: the symmetries .*save_params.* align_rotations"):
            aligned(align=True)
    with pytest.raises(ValueError, match=r"there is no model: pass program=Program"):
        to_inferencedata({"U": torch.randn(2, 10, 3)}, align=True)


def test_draws_by_kernels_of_pyro_are_aligned(capsys):
    mcmc = MCMC(NUTS(two_numbers), 10, 10, disable_progbar=True)
    mcmc.run()
    assert "x[1]" in printed(capsys, mcmc)
    torch.testing.assert_close(mcmc.get_samples(align=True), mcmc.get_samples())


@pytest.mark.long
def test_symmetries_are_found_once_for_a_run(monkeypatch, capsys):
    import pyro_manifold.diagnostics.posterior as module

    asked = []
    found = module.symmetries
    monkeypatch.setattr(module, "symmetries", lambda *given: asked.append(1) or found(*given))
    mcmc = MCMC(OHMC(two_places), 10, 20, num_chains=2, disable_progbar=True)
    for runs in (1, 2):
        mcmc.run()
        mcmc.summary()
        mcmc.get_samples(align=True)
        mcmc.to_inferencedata(align=True)
        mcmc.symmetries()
        assert len(asked) == runs


def two_places():
    """Columns known up to signs, and c in two modes that chains do not leave, each with its own U."""
    c = pyro.sample("c", dist.Normal(0.0, 4.0))
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.factor("two", torch.logsumexp(-8 * (c - torch.tensor([-4.0, 4.0])) ** 2, 0))
    share = torch.sigmoid(8 * c)
    strengths = share * torch.tensor([40.0, 5.0]) + (1 - share) * torch.tensor([5.0, 40.0])
    pyro.factor("columns", (strengths * (U[0].square() - U[3].square())).sum())


def test_invariants_that_disagree_are_reported_first(capsys):
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
@pytest.mark.long
def test_particles_are_aligned_too(capsys):
    smc = SMC(OHMC(components), 64, 2, disable_progbar=True)
    smc.run()
    # The second run is the mirror image of the first, so that signs are mixed even if each run has kept one.
    for name, value in smc._result.samples.items():
        value[1] = -value[0] if name == "U" else value[0]
    raw, aligned = (smc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    products = [each["U"] * each["scales"].unsqueeze(-2) @ each["U"].mT for each in (raw, aligned)]
    torch.testing.assert_close(*products, rtol=0, atol=1e-12)
    assert float(aligned["U"].std((0, 1)).max()) < 0.3 < float(raw["U"].std((0, 1)).max())
    out = printed(capsys, smc)
    assert "each draw has the signs and the order nearest to the mean" in out
    assert table(aligned, 0.9) in out
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
    assert "disagreeing_chains none" in text
    assert all(key.isidentifier() for key in found)
    assert found["acceptance rate"] is found["acceptance_rate"], "as in Pyro"
    with pytest.raises(KeyError, match="nothing here"):
        found["nothing here"]
    copy = pickle.loads(pickle.dumps(found))
    assert copy["acceptance_rate"] == found["acceptance_rate"]
    assert repr(copy) == text


def left_and_right(rows):
    """A product UV with k rows of V, and with its d of a prior on both sides of 0."""
    U = pyro.sample("U", dist.Normal(torch.zeros(12, 2), 1.0).to_event(2))
    V = pyro.sample("V", dist.Normal(torch.zeros(2, rows), 1.0).to_event(2))
    pyro.sample("y", dist.Normal(U @ V, 0.3).to_event(2), obs=NOISE[:12, :2] @ NOISE[20:22, :rows])


def singular_values():
    U = pyro.sample("U", StiefelUniform(8, 2))
    V = pyro.sample("V", StiefelUniform(6, 2))
    d = pyro.sample("d", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    truth = torch.linalg.qr(NOISE[:8, :2])[0] * torch.tensor([9.0, 4.0], dtype=torch.float64) @ AXES.T
    pyro.sample("y", dist.Normal(U * d.unsqueeze(-2) @ V.mT, 0.3).to_event(2), obs=truth)


@pytest.mark.long
def test_rows_of_a_second_factor_are_rotated_with_the_columns_of_the_first(capsys):
    mcmc = MCMC(OHMC(left_and_right), 300, 300, num_chains=4, disable_progbar=True)
    mcmc.run(5)
    angles = 2 * torch.pi * torch.rand(4, 300)  # draws of all rotations, wherever the chains went
    mcmc._samples["U"] = turned(mcmc._samples["U"], angles)
    mcmc._samples["V"] = turned(mcmc._samples["V"].mT, angles).mT
    raw, aligned = (mcmc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    spread, expected = (float(each["U"].std((0, 1)).mean()) for each in (aligned, raw))
    assert spread < 0.75 * expected
    assert max(largest_r_hat(aligned[name]) for name in ("U", "V")) < 1.05
    torch.testing.assert_close(aligned["U"] @ aligned["V"], raw["U"] @ raw["V"], rtol=0, atol=1e-11)
    said = printed(capsys, mcmc)
    assert "`U` and `V` are known only up to rotations of the columns of `U` and the rows of `V`, together: " in said
    assert "summarise_invariants(U, right=V.mT)" in printed(capsys, mcmc, align=False)


def test_singular_values_of_any_sign_are_made_positive(capsys):
    mcmc = MCMC(OHMC(singular_values), 300, 200, num_chains=4, disable_progbar=True)
    mcmc.run()
    samples = mcmc._samples
    negative = -samples["d"][0].sign()  # of the first chain, wherever it went
    samples["U"][0] *= negative.unsqueeze(-2)
    samples["d"][0] *= negative
    raw, aligned = (mcmc.get_samples(group_by_chain=True, align=align) for align in (False, True))
    assert bool((raw["d"][0] < 0).all())
    assert bool((aligned["d"] > 0).all())
    assert max(largest_r_hat(x) for x in aligned.values()) < 1.05
    products = [each["U"] * each["d"].unsqueeze(-2) @ each["V"].mT for each in (raw, aligned)]
    torch.testing.assert_close(*products, rtol=0, atol=1e-11)
    # Independently of this package: singular value decompositions of the draws, with the signs of one of them.
    left, values, right = np.linalg.svd(products[0].numpy(), full_matrices=False)
    np.testing.assert_allclose(aligned["d"], values[..., :2], atol=1e-10)
    for found, expected in ((aligned["U"], left[..., :2]), (aligned["V"], right.swapaxes(-1, -2)[..., :2])):
        np.testing.assert_allclose(abs(found.numpy()), abs(expected), atol=1e-9)
    reference = left[0, 0, :, :2]
    signs = np.sign((reference * left[..., :2]).sum(-2)) * np.sign((reference * aligned["U"][0, 0].numpy()).sum(-2))
    np.testing.assert_allclose(aligned["U"], left[..., :2] * signs[..., None, :], atol=1e-9)
    said = printed(capsys, mcmc)
    assert "and `d` up to its signs, with those of the columns of `U`: each draw has" in said
    assert ", and `d` is made positive (unaligned" in said
    assert not said.startswith("Chains disagree")


def test_wrong_arguments_have_a_sentence():
    mcmc = run_of_components()
    for wrong in ("x", 1, None):
        for method in (mcmc.get_samples, mcmc.summary, mcmc.to_inferencedata):
            with pytest.raises(ValueError, match=r"align=.*, expected True or False"):
                method(align=wrong)
    for wrong in (-1, 0, 1, 2.0, "a", True):
        with pytest.raises(ValueError, match=r"prob=.*, expected a probability of the interval between 0 and 1"):
            mcmc.summary(wrong)


def test_draws_that_are_not_finite_are_reported_first(capsys):
    mcmc = MCMC(OHMC(two_places), 20, 20, num_chains=2, disable_progbar=True)
    mcmc.run()
    mcmc._samples["U"][1, 3, 0, 0] = torch.nan
    said = printed(capsys, mcmc)
    assert said.startswith("Draws of `U` (1 of 40) are not finite: sites that change with it are not aligned, and ")
    assert "Chains disagree" not in said


def apart(runs):
    """Particles of runs, the last of which is elsewhere."""
    smc = SMC(OHMC(two_numbers_observed), 64, runs, disable_progbar=True)
    smc.run()
    smc._result.samples["x"][-1] += 5.0 * (runs > 1)
    return smc


def two_numbers_observed():
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(x, 2.0).to_event(1), obs=torch.zeros(2))


@pytest.mark.filterwarnings("ignore:The standard error of the log evidence")  # of so few chains
def test_runs_of_particles_that_disagree_are_reported_first(capsys):
    said = printed(capsys, apart(4))
    assert said.startswith("Runs disagree, R-hat of x (")
    assert "): some may have missed modes or given them the wrong share. Take more num_particles" in said
    assert "disagree" not in printed(capsys, apart(1))
    with pytest.raises(ValueError, match="align='x', expected True or False"):
        apart(2).summary(align="x")


def test_exchangeable_components_of_a_mixture_are_explained(capsys):
    def mixture():
        means = pyro.sample("means", dist.Normal(torch.zeros(2), 10.0).to_event(1))
        components = dist.Normal(means.unsqueeze(-2), 1.0)
        y = torch.cat([NOISE[:20, 0] - 5, NOISE[20:40, 0] + 5])
        each = components.log_prob(y.unsqueeze(-1)).logsumexp(-1)
        pyro.factor("likelihood", each.sum(-1))

    starts = torch.tensor([[-5.0, 5.0], [5.0, -5.0]]).repeat(2, 1)
    mcmc = MCMC(OHMC(mixture), 300, 200, num_chains=4, initial_params={"means": starts}, disable_progbar=True)
    mcmc.run()
    first = printed(capsys, mcmc).splitlines()[0]
    assert first.startswith("Chains disagree, R-hat of means (")
    assert first.endswith(
        "Sorted values of `means` agree, and so does the log density: chains have exchangeable components in another "
        "order; order such components in the model."
    )


def test_entries_that_are_constant_are_counted_and_not_shown():
    draws = torch.zeros(4, 100, 2, 2)
    draws[..., 1, 0] = torch.randn(4, 100)
    lines = table({"L": draws, "c": torch.ones(4, 100)}, 0.9).splitlines()
    assert lines[2].split()[0] == "L[1,0]"
    assert lines[3] == "and 3 constant entries of L"
    assert lines[4].split()[0] == "c", "a site that is constant as a whole is shown"
    draws[..., 0, 0] = torch.randn(4, 100)
    shown = table({"L": draws}, 0.9, max_rows=1).splitlines()
    assert shown[3].startswith("and 1 more of L: r_hat at most")
    assert shown[4] == "and 2 constant entries of L"


def test_entries_that_are_not_finite_are_among_the_worst():
    draws = torch.randn(4, 100, 3)
    draws[0, 0, 1] = torch.nan
    draws[..., 2] = 1.0
    lines = table({"x": draws}, 0.9, max_rows=1).splitlines()
    assert lines[2].split()[:2] == ["x[1]", "nan"]
    assert lines[4] == "and 1 constant entry of x"


def test_divergences_are_counted_with_what_to_do():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    mcmc = MCMC(OHMC(model), 20, 20, disable_progbar=True)
    mcmc.run()
    assert "Divergences are" not in summarise(mcmc.posterior)
    diverging = torch.zeros(1, 20, dtype=torch.bool)
    diverging[0, [3, 7]] = True
    text = summarise(replace(mcmc.posterior, statistics={**mcmc.posterior.statistics, "diverging": diverging}))
    assert "Number of divergences: 2" in text
    assert "target_accept_prob" in text


@pytest.mark.parametrize(("prob", "names"), [(0.9, ("hdi90_lb", "hdi90_ub")), (0.975, ("hdi97.5_lb", "hdi97.5_ub"))])
def test_limits_are_those_of_the_shortest_interval_and_so_named(prob, names):
    """Of an exponential distribution it begins at 0, where quantiles do not."""
    draws = dist.Exponential(1.0).sample((4, 5000))
    lines = table({"x": draws}, prob).splitlines()
    row = dict(zip(lines[1].split(), lines[2].split()[1:], strict=True))
    low, high = (float(row[name]) for name in names)
    assert 0 <= low < 0.02
    assert high == pytest.approx(-np.log(1 - prob), abs=0.2)  # four standard errors
