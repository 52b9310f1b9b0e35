"""Examples run small, from start to the files that they write."""

import arviz
import torch

from examples import bayesian_pca, collinear_regression


def test_bayesian_pca(tmp_path, capsys):
    arguments = ["--output", str(tmp_path), "--num-samples", "60", "--warmup-steps", "150"]
    mcmc = bayesian_pca.main(arguments)
    printed = capsys.readouterr().out
    assert printed.count("loadings[") == 10
    assert "and 16 more of loadings: r_hat at most 1." in printed
    assert (tmp_path / "bayesian_pca.png").stat().st_size > 10_000
    idata = arviz.from_netcdf(tmp_path / "bayesian_pca.nc", engine="h5netcdf")
    assert idata.posterior["loadings"].dims == ("chain", "draw", "measurement", "axis")
    y, _, _ = bayesian_pca.load()
    # The posterior mean plane is close to the classical one: all principal cosines near 1.
    plane = torch.linalg.svd(mcmc.get_samples()["loadings"].mean(0), full_matrices=False)
    cosines = torch.linalg.svdvals((plane.U @ plane.Vh).mT @ bayesian_pca.principal_axes(y, 2))
    assert cosines.min() > 0.95


def test_collinear_regression(tmp_path, capsys):
    intervals, found = collinear_regression.main(["--output", str(tmp_path), "--steps", "2000"])
    assert "s.d. of the slope of s1" in capsys.readouterr().out
    assert (tmp_path / "collinear_regression.png").stat().st_size > 10_000
    exact, mean_field, rank_one = (deviation[4] for _, deviation in intervals.values())
    assert mean_field < 0.3 * exact
    assert rank_one > 1.5 * mean_field  # 0.92 of the exact one after 6,000 steps
    assert found.directions["slopes"].shape == (1, 10)
