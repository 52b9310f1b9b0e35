"""Examples run small, from start to the files that they write."""

import importlib
import inspect
from pathlib import Path

import pyro
import pytest
import torch
from pyro.distributions import MultivariateStudentT

from examples import (
    calibrated_network,
    canonical_correlations,
    cointegration,
    collinear_regression,
    datasets,
    diffusion_tensors,
    envelope,
    equity_factors,
    independent_components,
    mental_tests,
    protein_motions,
    reduced_rank,
    sea_surface,
    social_networks,
    vectorcardiograms,
)
from tests.examples import short_runs, simulated

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
pytestmark = short_runs.ignored


@pytest.mark.long
def test_collinear_regression(tmp_path, capsys):
    intervals, found = collinear_regression.main(["--output", str(tmp_path), "--steps", "2000"])
    assert "s.d. of the slope of s1" in capsys.readouterr().out
    assert (tmp_path / "collinear_regression.png").stat().st_size > 10_000
    exact, mean_field, rank_one = (deviation[4] for _, deviation in intervals.values())
    assert mean_field < 0.3 * exact
    assert rank_one > 1.5 * mean_field  # 0.92 of the exact one after 6,000 steps
    assert found.directions["slopes"].shape == (1, 10)


PAGES = sorted(page for page in GALLERY.glob("*.md") if page.stem != "index")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_of_the_gallery_show_the_models_of_their_scripts(page):
    example, text = importlib.import_module(f"examples.{page.stem}"), page.read_text()
    assert inspect.getsource(example.model) in text
    assert f"python -m {example.__name__} " in text


@pytest.mark.long
def test_mental_tests(tmp_path, capsys):
    few = ["--draws", "150", "--ranks", "1", "2", "--particles", "32"]
    with pytest.warns(UserWarning, match="largest value tried"):
        rotated, oblique, classical, table = mental_tests.main(["--output", str(tmp_path), *few])
    assert "correlations of the promax factors" in capsys.readouterr().out
    assert float((rotated.mean((0, 1)) - classical).abs().max()) < 0.1
    assert bool((rotated.mean((0, 1)).argmax(-1) == mental_tests.EXPECTED.argmax(-1)).all())
    assert bool((oblique.correlations.mean((0, 1)) > 0.1).all())
    assert int(table.probability.idxmax()) == 2
    assert all((tmp_path / f"mental_tests{part}.png").stat().st_size > 10_000 for part in ("", "_evidence"))


@pytest.mark.long
def test_canonical_correlations(tmp_path, capsys):
    few = ["--draws", "200", "--simulated", "2"]
    mine, again, sample, limits = canonical_correlations.main(["--output", str(tmp_path), *few])
    assert "correlation: posterior, statsmodels, bootstrap" in capsys.readouterr().out
    assert abs(float(sample[0]) - 0.796) < 1e-3  # as published
    assert float(mine[:, 0].mean()) < float(sample[0]) < float(again[:, 0].mean())
    assert limits.shape == (2, 2, 3)
    files = [tmp_path / f"canonical_correlations{part}.png" for part in ("", "_coverage")]
    assert all(file.stat().st_size > 10_000 for file in files)


def test_canonical_correlations_of_the_model_are_those_of_a_joint_covariance():
    torch.manual_seed(0)
    x, y = (values[:, :k].float() for k, values in zip((3, 2), canonical_correlations.simulated(20), strict=True))
    trace = pyro.poutine.trace(canonical_correlations.model).get_trace(x, y)
    trace.compute_log_prob()
    U, W, rho, A, B = (trace.nodes[name]["value"] for name in ("U", "W", "correlations", "cholesky_x", "cholesky_y"))
    A, B = trace.nodes["scales_x"]["value"][:, None] * A, trace.nodes["scales_y"]["value"][:, None] * B
    between = A @ U @ rho.diag() @ W.mT @ B.mT
    covariance = torch.cat([torch.cat([A @ A.mT, between], 1), torch.cat([between.mT, B @ B.mT], 1)])
    mean = torch.cat([trace.nodes["mean_x"]["value"], trace.nodes["mean_y"]["value"]])
    expected = torch.distributions.MultivariateNormal(mean, covariance).log_prob(torch.cat([x, y], 1)).sum()
    found = trace.nodes["x"]["log_prob_sum"] + trace.nodes["y"]["log_prob_sum"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.long
def test_equity_factors(tmp_path, capsys):
    few = ["--draws", "100", "--rank", "2", "--ranks", "1", "2", "--particles", "32"]
    with pytest.warns(UserWarning, match="largest value tried"):
        posterior, _, table = equity_factors.main(["--output", str(tmp_path), *few])
    assert "angle to the span of the factors" in capsys.readouterr().out
    assert posterior.shape == (400, 4)
    assert float(posterior[:, 0].mean()) < 10  # the market
    assert int(table.probability.idxmax()) == 2
    assert all((tmp_path / f"equity_factors{part}.png").stat().st_size > 10_000 for part in ("", "_evidence"))


def test_low_rank_student_t_is_that_of_pyro():
    torch.manual_seed(0)
    factor, variances, y = torch.randn(4, 2).double(), torch.rand(4).double() + 0.5, torch.randn(3, 4).double()
    scale = torch.linalg.cholesky(factor @ factor.mT + variances.diag())
    expected = MultivariateStudentT(torch.tensor(5.0).double(), torch.zeros(4).double(), scale)
    found = equity_factors.LowRankStudentT(torch.tensor(5.0).double(), factor, variances)
    torch.testing.assert_close(found.log_prob(y), expected.log_prob(y))


@pytest.mark.long
def test_independent_components(tmp_path, capsys):
    few = ["--draws", "100", "--starts", "6", "--simulated", "1"]
    draws, df, starts, again, found = independent_components.main(["--output", str(tmp_path), *few])
    assert "94 % cone of directions by chance" in capsys.readouterr().out
    centre, width = independent_components.cone(draws)
    assert float(width[0]) < 20  # computers and telephone, against a median of 45 of the others
    assert float(df[:, 0].median()) < 6
    assert float(independent_components.degrees(starts, centre)[:, 0].max()) < 20
    assert again.shape == (6, 6, 6)
    assert found.shape == (1, 3, 6, 2)
    files = [tmp_path / f"independent_components{part}.png" for part in ("", "_coverage")]
    assert all(file.stat().st_size > 10_000 for file in files)


def test_rotated_sources_have_the_density_of_an_integral_over_the_volatility():
    torch.manual_seed(0)
    df, volatility, x = torch.tensor([3.0, 9.0]).double(), torch.tensor(0.3).double(), torch.randn(5, 2).double()
    U = torch.linalg.qr(torch.randn(2, 2).double()).Q
    alone = independent_components.Rotated(U, df).log_prob(x)
    sources = torch.distributions.StudentT(df, 0.0, (1 - 2 / df).sqrt())
    torch.testing.assert_close(alone, sources.log_prob(x @ U).sum(-1))
    z = torch.linspace(-8, 8, 4001).double()[:, None]
    log_scale = volatility * z - volatility**2
    each = sources.log_prob(x @ U / log_scale.exp()[..., None]).sum(-1) - 2 * log_scale
    expected = (torch.distributions.Normal(0.0, 1.0).log_prob(z) + each).exp().sum(0) * 16 / 4000
    found = independent_components.Rotated(U, df, volatility).log_prob(x)
    torch.testing.assert_close(found, expected.log(), rtol=0, atol=5e-3)


def test_simulated_directions_recover_their_sources():
    torch.manual_seed(0)
    x, truth = independent_components.simulated(500)
    torch.testing.assert_close(x.mT @ x / 500, torch.eye(6, dtype=x.dtype))
    assert float(independent_components.degrees(truth, truth).max()) < 1e-4
    assert float((truth.mT @ truth - torch.eye(6)).abs().max()) < 0.3  # orthogonal but for errors of the whitening
    mean, width = independent_components.cone(truth.expand(3, 6, 6))
    torch.testing.assert_close(mean, truth)
    assert float(width.max()) < 1e-4


@pytest.mark.long
def test_sea_surface(tmp_path, capsys):
    draws, eofs, again = sea_surface.main(["--output", str(tmp_path), "--draws", "150"])
    assert "North's rule" in capsys.readouterr().out
    assert float((draws["modes"].mean((0, 1)) - eofs).abs().max()) < 0.1
    assert again.shape == (1, 2000, 12, 3)
    assert sea_surface.load(7)[0].shape == (60, 12)
    assert all((tmp_path / f"sea_surface{part}.png").stat().st_size > 10_000 for part in ("", "_years"))


@pytest.mark.long
def test_cointegration(tmp_path, capsys):
    few = ["--draws", "100", "--ranks", "0", "1", "--particles", "32"]
    draws, relation, table = cointegration.main(["--output", str(tmp_path), *few])
    assert "Johansen" in capsys.readouterr().out
    assert draws["relations"].shape == (4, 100, 3, 1)
    assert abs(float(relation.norm()) - 1) < 1e-6
    assert int(table.probability.idxmax()) == 0
    assert all((tmp_path / f"cointegration{part}.png").stat().st_size > 10_000 for part in ("", "_distance"))


@pytest.mark.long
def test_diffusion_tensors(tmp_path, capsys):
    fits = diffusion_tensors.main(["--output", str(tmp_path), "--draws", "60"])
    assert "94 % cone" in capsys.readouterr().out
    found, first, values, axis, _ = fits["all 64 directions"]
    classical = diffusion_tensors.anisotropy(values)
    clear = classical > 0.6
    assert float((found.mean(0) - classical)[clear].abs().median()) < 0.05
    main, cone = diffusion_tensors.cones(first)
    assert float((main * axis[..., 0]).sum(-1).abs()[clear].quantile(0.1)) > 0.99
    assert float(cone[clear].median()) < 10
    assert float(cone[classical < 0.1].median()) > 30
    assert all((tmp_path / f"diffusion_tensors{part}.png").stat().st_size > 10_000 for part in ("", "_cones"))


@pytest.mark.long
def test_vectorcardiograms(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(datasets, "vectorcardiograms", simulated.vectorcardiograms)
    found, fits, outlier = vectorcardiograms.main(["--output", str(tmp_path), "--draws", "100"])
    assert "likely outliers" in capsys.readouterr().out
    low, middle, high = found
    truth = middle.new_tensor([0.0, 20.0, 0.0])
    assert float((middle - truth).abs().max()) < 6
    assert float(((low < truth) & (truth < high)).double().mean()) >= 0.75  # of 12
    assert len(fits) == 4
    assert float(outlier[:3].max()) > 0.9
    assert float(outlier[3:].mean()) < 0.1
    assert all((tmp_path / f"vectorcardiograms{part}.png").stat().st_size > 10_000 for part in ("", "_residuals"))


@pytest.mark.long
def test_calibrated_network(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")  # to compile and compare takes longer than so few draws
    few = ["--draws", "30", "--images", "60", "--steps", "60"]
    probabilities, answers, mcmc = calibrated_network.main(["--output", str(tmp_path), *few])
    assert "in the commonest class" in capsys.readouterr().out
    assert mcmc.get_samples()["gains"].shape == (120, 2)
    found = probabilities["posterior"]
    inside, labels = found["test images"], answers["test images"]
    assert float((inside.argmax(-1) == labels).double().mean()) > 0.4  # 0.1 at random
    _, after = calibrated_network.scaled(found, answers["validation"])
    scores = [torch.nn.functional.nll_loss(each["validation"].log(), answers["validation"]) for each in (found, after)]
    assert scores[1] <= scores[0] + 1e-4  # a power of 1 is in the grid
    assert calibrated_network.detection(inside, found["pixels shuffled"]) > 0.5
    assert all((tmp_path / f"calibrated_network{part}.png").stat().st_size > 10_000 for part in ("", "_entropy"))


@pytest.mark.long
def test_priors_of_networks_differ_in_what_they_expect():
    """Networks of the chosen prior distinguish images; those of the default priors have one class for most of them."""
    shares = []
    for raw, model in ((False, calibrated_network.model), (True, calibrated_network.default_model())):
        images = calibrated_network.load(200, raw=raw)[0]
        shares.append(calibrated_network.report_of_prior(model, images, networks=40)[1])
    assert shares[0] < 0.35  # 0.24 with 200 networks
    assert shares[1] > 0.5  # 0.64


@pytest.mark.long
def test_protein_motions(tmp_path, capsys):
    pytest.importorskip("MDAnalysisTests", reason="needs MDAnalysis and MDAnalysisTests, of the group trajectories")
    few = ["--draws", "60", "--simulated", "1"]
    fits, found, pairs, shares = protein_motions.main(["--output", str(tmp_path), *few])
    assert "RMSIP of the halves by MDAnalysis" in capsys.readouterr().out
    assert fits["autoregression"]["U"].shape == (4, 60, 642, 2)
    angles = {name: float(values["largest principal angle, degrees"].median()) for name, values in found.items()}
    assert angles["independent"] < 8 < 12 < angles["autoregression"] < 20  # 5.7 and 16.4 in longer runs
    assert float(pairs["between the halves"].median()) < float(pairs["within the first half"].median())
    assert float(shares["independent"].mean()) < float(shares["autoregression"].mean())
    assert all((tmp_path / f"protein_motions{part}.png").stat().st_size > 10_000 for part in ("", "_spans"))


def test_components_and_rmsip_are_those_of_mdanalysis():
    pca = pytest.importorskip("MDAnalysis.analysis.pca", reason="needs MDAnalysis, of the group trajectories")
    pytest.importorskip("MDAnalysisTests", reason="needs MDAnalysisTests, of the group trajectories")
    x, reference = protein_motions.load(), protein_motions.by_mdanalysis()
    own = protein_motions.components(x)
    assert float(protein_motions.rmsip(own, reference)) == pytest.approx(1, abs=1e-6)
    other = protein_motions.components(x[:49])
    expected = pca.rmsip(other.mT.numpy(), reference.mT.numpy())
    assert float(protein_motions.rmsip(other, reference)) == pytest.approx(expected, abs=1e-6)


def test_motions_of_a_protein_have_the_density_of_their_covariance():
    """The low-rank density is that of all rows jointly, with the covariance of each pair of rows."""
    torch.manual_seed(0)
    U, x = torch.linalg.qr(torch.randn(4, 2).double()).Q, torch.randn(3, 4).double()
    scales, noise, phi, phi_noise = (torch.tensor(each).double() for each in ([2.0, 0.7], 0.5, [0.9, 0.4], 0.3))
    lag = (torch.arange(3)[:, None] - torch.arange(3)).abs()
    blocks = [torch.kron(phi_noise**lag, noise**2 * (torch.eye(4) - U @ U.mT))]
    for axis, scale, each in zip(U.mT, scales, phi, strict=True):
        blocks.append(torch.kron(each**lag, (scale**2 + noise**2) * torch.outer(axis, axis)))
    expected = torch.distributions.MultivariateNormal(torch.zeros(12).double(), sum(blocks)).log_prob(x.flatten())
    found = protein_motions.Motions(U, scales, noise, phi, phi_noise, 3).log_prob(x)
    torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_social_networks(tmp_path, capsys):
    few = ["--draws", "80", "--ranks", "0", "2", "--particles", "32"]
    fits, table, areas = social_networks.main(["--output", str(tmp_path), *few])
    assert "eigenmodel         not in their club: members [" in capsys.readouterr().out
    draws, links, _ = fits["karate club"]
    assert draws["U"].shape == (4, 80, 34, 2)
    assert links.sum() == 2 * 78
    assert int(table.probability.idxmax()) == 2
    assert areas["Les Misérables"]["eigenmodel, rank 2"] > 0.6  # 0.5 at random; few draws after few steps of warm-up
    assert all((tmp_path / f"social_networks{part}.png").stat().st_size > 10_000 for part in ("", "_prediction"))


@pytest.mark.long
def test_reduced_rank(tmp_path, capsys):
    few = ["--draws", "60", "--ranks", "1", "2", "--particles", "32"]
    draws, table = reduced_rank.main(["--output", str(tmp_path), *few])
    assert "canonical correlations" in capsys.readouterr().out
    x, y, *_ = reduced_rank.load()
    least = torch.linalg.lstsq(x, y).solution
    assert float((reduced_rank.coefficients(draws).mean((0, 1)) - least).abs().max()) < 0.1
    assert float(reduced_rank.canonical_correlations(x, draws)[..., 0].mean()) == pytest.approx(0.70, abs=0.05)
    assert int(table.probability.idxmax()) == 2
    assert all((tmp_path / f"reduced_rank{part}.png").stat().st_size > 10_000 for part in ("", "_coefficients"))


AXES = torch.linalg.qr(torch.arange(36.0, dtype=torch.float64).reshape(6, 6).sin()).Q


def simulated_wheat():
    """Return 50 samples whose groups differ by 8 along the third axis, with errors as those of wheat."""
    protein = torch.where(torch.arange(50) % 2 == 0, 8.0, 11.0).double()
    errors = torch.randn(50, 6, dtype=torch.float64) * torch.tensor([80.0, 15.0, 3.0, 5.0, 0.6, 0.5]) @ AXES.T
    return (errors + 8 * (protein > 9.75)[:, None] * AXES[:, 2]).numpy(), protein.numpy()


@pytest.mark.long
def test_envelope_without_network(tmp_path, monkeypatch):
    """Data as those of wheat: the envelope finds the effect, which is lost in the errors of least squares."""
    monkeypatch.setattr(datasets, "wheat_protein", simulated_wheat)
    few = ["--draws", "150", "--dimensions", "0", "1", "--particles", "32"]
    effects, table = envelope.main(["--output", str(tmp_path), *few])
    (_, error), (likely, likely_error), (mean, deviation) = (map(torch.as_tensor, pair) for pair in effects.values())
    assert float((mean - 8 * AXES[:, 2]).abs().max()) < 4 * float(deviation.max())
    assert float(((mean - likely) / likely_error).abs().max()) < 2  # the prior of the shift is a part of it
    assert float(error.max()) > 5 * float(deviation.max())
    assert int(table.probability.idxmax()) == 1
    assert all((tmp_path / f"envelope{part}.png").stat().st_size > 10_000 for part in ("", "_axes"))
