"""Learned samplers, small."""

import math

import pyro
import pytest
import torch

from benchmarks.images import generated
from benchmarks.papers.nnsghmc import digits, gaussian, gaussian_figure, mnist, paper_runs
from problems.monte_carlo import assert_mean
from pyro_manifold.infer import SGHMC, MetaSampler
from tests.parameters import long_except


def test_effective_sizes_of_an_autoregression():
    r"""$x_{t+1} = 0.8 x_t + 0.6 z$: one in $(1 + 0.8) / (1 - 0.8)$ draws counts."""
    x = torch.randn(40, 1, 3)
    steps = [x]
    for _ in range(4999):
        steps.append(0.8 * steps[-1] + 0.6 * torch.randn(40, 1, 3))
    assert_mean(gaussian.effective_sizes(torch.cat(steps, 1)) / 5000, 1 / 9, 0.003)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")
def test_a_learned_sampler_of_gaussians(tmp_path, capsys):
    picture = tmp_path / "picture.png"
    gaussian.main(["--short", "--seeds", "2", "--figure", str(picture)])
    table, curves = capsys.readouterr().out.split("| steps |")
    of_all_draws = [row.split(" | ")[2] for row in table.splitlines()[-2:]]
    assert f"\n| 60 | {' | '.join(of_all_draws)} | " in curves
    assert picture.stat().st_size > 10_000


def test_the_divergence_and_the_steps_of_its_curve():
    exact = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3))
    wide = 0.5 * (3 * 4 - 3 - 3 * math.log(4))  # KL of N(0, 4 I) from N(0, I)
    many = 2 * exact.sample((50, 4000))
    assert gaussian.divergence(many, torch.eye(3)) == pytest.approx(wide, rel=0.02)
    paper = gaussian_figure.times(12_000)
    assert (paper[0], paper[-1]) == (100, 12_000)
    assert not any(step % gaussian_figure.BETWEEN for step in paper)
    assert gaussian_figure.times(60)[-1] == 60
    assert gaussian_figure.times(3) == [3]


def test_curves_of_the_authors(tmp_path, capsys):
    for number, scale in ((1, 1), (2, 3)):
        values = "\n".join(str(scale * step) for step in range(1, 121))
        for pattern in gaussian_figure.THEIRS.values():
            (tmp_path / pattern.replace("*", str(number))).write_text(values)
    theirs = gaussian_figure.curves_of_the_authors(tmp_path)
    ours = {name: torch.ones(2, len(gaussian_figure.times(12_000))) for name in theirs}
    gaussian_figure.print_curves(12_000, ours, theirs)
    assert capsys.readouterr().out.splitlines()[-1] == "| 12000 | 1 | 1 | 0 of 2 | 240 | 240 |"


@pytest.mark.long
def test_a_learned_sampler_of_digits(tmp_path, capsys):
    path = str(tmp_path / "sampler.npz")
    mnist.main(["--short", "--train", path, "--rounds", "1"])
    mnist.main(["--short", "--sampler", path, "--seconds", "0.5", "--seeds", "1"])
    assert capsys.readouterr().out.count("pSGLD") >= 1


@pytest.mark.long
def test_the_budget_of_the_paper_small(tmp_path, capsys):
    sampler, figures = str(tmp_path / "sampler.npz"), [tmp_path / "curves.png", tmp_path / "contours.png"]
    mnist.main(["--short", "--paper", "--train", sampler, "--rounds", "1", "--digits", "01234"])
    options = ["--sampler", sampler, "--store", str(tmp_path / "runs")]
    budget = ["--problem", "digits", "--steps", "20", "--chains", "2", "--tune"]
    mnist.main(["--short", "--paper", *options, *budget, "--kernels", "NNSGHMC", "SGD with momentum", "Adam"])
    assert capsys.readouterr().out.count("| Adam | 0.002 | 20 |") == 1
    assert MetaSampler.load(sampler).gradient_scale is not None
    other = str(tmp_path / "other.npz")
    mnist.main(["--short", "--paper", "--train", other, "--rounds", "1", "--root-mean-square"])
    assert MetaSampler.load(other).gradient_scale is None
    mnist.main([*options, "--figure", str(figures[0])])
    mnist.main([*options, "--contours", str(figures[1])])
    capsys.readouterr()
    mnist.main(["--short", "--paper", *options, "--profile", "--steps", "100", "--chains", "2"])
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert "rate of descent" in heading
    assert len(rows) == 2
    assert all(figure.exists() for figure in figures)


@pytest.mark.long
def test_gradients_in_the_unit_of_training(capsys):
    mnist.main(["--short", "--paper", "--gradients"])
    *_, row = capsys.readouterr().out.splitlines()
    assert row.startswith("| sigmoid |")
    assert 0 < float(row.split("|")[-2]) < 1


@pytest.mark.parametrize("name", long_except(["SGHMC", "Adam"], "Adam"))
def test_a_stored_run_continues_bit_for_bit(name, tmp_path):
    train, test = generated(300, 1), generated(100, 2)

    def run(file):
        return paper_runs.Run(tmp_path / file, "ReLU", name, 1e-3, None, train, test, 0, chains=2)

    whole = run("whole.pt")
    whole.advance(40)
    run("parts.pt").advance(20)
    parts = run("parts.pt")
    parts.advance(40)
    assert [list(point) for point in parts.curve] == [list(point) for point in whole.curve]
    assert len(whole.curve) == 4


def test_predictions_are_averaged_over_chains():
    sizes, activation, _ = digits.PROBLEMS["sigmoid"]
    net, (images, labels) = digits.network(sizes, activation), generated(50, 1)
    kernel = SGHMC(digits.posterior(net, images, labels), step_size=1e-3)
    draws = kernel.prepare(3, 0, None).values
    with torch.no_grad():
        each = [
            pyro.poutine.condition(net, {name: value[k] for name, value in draws.items()})(images).softmax(-1)
            for k in range(3)
        ]
    mean = torch.stack(each).mean(0)
    accuracy, loss = paper_runs.of_all_chains(paper_runs.in_layers(draws), sizes, activation, images, labels)
    assert math.isclose(loss, -float(mean[torch.arange(50), labels].log().sum()), rel_tol=1e-5)
    assert accuracy == 100 * float((mean.argmax(1) == labels).double().mean())


def test_step_sizes_are_looked_for_until_neither_way_is_better():
    for best in (0.1, 1.0, 5.0):
        found, tried = digits.best_of(lambda x, best=best: abs(math.log(x / best)), 1.0, 2)
        assert abs(math.log2(found / best)) <= 0.5
        assert min(tried) < found < max(tried)
