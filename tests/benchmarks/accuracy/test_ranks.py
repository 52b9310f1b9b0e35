"""The study of ranks: its density, its rivals and its report."""

import pyro.distributions as dist
import pytest
import torch

from benchmarks.accuracy import ranks
from benchmarks.accuracy.ranks import Simulated, by_criterion, by_laplace, log_density, report, simulate
from pyro_manifold.distributions import StiefelUniform


def test_the_density_of_a_scatter_matrix_is_that_of_its_rows():
    U, variances, noise = StiefelUniform(6, 2).sample(), torch.tensor([3.0, 0.5]), torch.tensor(0.7)
    y = torch.randn(9, 6)
    rows = dist.LowRankMultivariateNormal(torch.zeros(6), U * variances.sqrt(), noise**2 * torch.ones(6))
    found = log_density(9, 6, y.square().sum(), (y @ U).square().sum(0), variances, noise)
    torch.testing.assert_close(found, rows.log_prob(y).sum())


def test_a_component_without_effect_is_not_identifiable():
    assert Simulated(2, torch.tensor([20.0, 5.0]), torch.empty(0)).margin > 2
    assert Simulated(2, torch.tensor([20.0, 0.2]), torch.empty(0)).margin < 0
    # Worth N/2 (1 - log 2) = 23.0 and priced (D - k + 1)/2 log N = 27.6, in units of √(N/2) = 8.7.
    assert Simulated(2, torch.tensor([20.0, 1.0]), torch.empty(0)).margin == pytest.approx(-0.526, abs=0.01)


def test_rivals_find_what_is_plain():
    clear = [one for one in map(simulate, range(30)) if one.margin > 5]
    assert len(clear) > 3
    for one in clear:
        assert by_criterion(one) == one.rank == by_laplace(one)


def test_the_report_counts():
    data = [one for one in map(simulate, range(40)) if one.margin > 2]
    found = torch.full((len(data), 7, 2), -100.0)
    for k, one in enumerate(data):
        found[k, one.rank - 1] = -50.0
    found[0, data[0].rank % 7] = -20.0  # wrong, and sure of it
    lines = report(data, found).splitlines()
    assert lines[0] == f"{len(data)} data sets, {len(data)} of them identifiable"
    assert lines[1].startswith(f"evidence: right {len(data) - 1} of {len(data)} identifiable, 0 of 0 others")


@pytest.mark.long
def test_data_sets_side_by_side_have_their_own_evidence(monkeypatch):
    """Each agrees with runs of its own; the two are a hundred nats apart."""
    monkeypatch.setattr(ranks, "COLUMNS", 4)
    monkeypatch.setattr(ranks, "ROWS", 30)
    data = [Simulated(1, torch.ones(1), scale * torch.randn(30, 4)) for scale in (1.0, 3.0)]
    together = ranks.log_evidences(data, 1, runs=4, particles=64)
    alone = torch.cat([ranks.log_evidences([one], 1, runs=4, particles=64) for one in data])
    error = (together.var(1) / 4 + alone.var(1) / 4).sqrt()
    assert ((together.mean(1) - alone.mean(1)).abs() < 6 * error + 0.3).all()


def test_evidences_are_kept_and_read(monkeypatch, tmp_path, capsys):
    asked = []

    def known(data, rank, runs, particles):
        asked.append((len(data), rank, runs, particles))
        return torch.randn(len(data), runs) - 10 * abs(rank - 3)

    monkeypatch.setattr(ranks, "log_evidences", known)
    arguments = ["--datasets", "20", "--at-a-time", "15", "--results", str(tmp_path / "found.npz")]
    ranks.main([*arguments, "--particles", "8", "--runs", "2", "--picture", str(tmp_path / "ranks.png")])
    first = capsys.readouterr().out
    assert asked[:2] == [(15, 1, 2, 8), (5, 1, 2, 8)]
    assert (tmp_path / "ranks.png").exists()
    monkeypatch.delattr(ranks, "log_evidences")
    ranks.main(arguments)
    assert first.endswith(capsys.readouterr().out)
