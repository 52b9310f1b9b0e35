"""The evidence of several models side by side, against evidences that are known."""

import math
import warnings
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import plot_evidence
from pyro_manifold.infer import OHMC, SMC, compare_evidence

plt = pytest.importorskip("matplotlib.pyplot")
NOISE = 0.3


def polynomial(x, y, degree):
    w = pyro.sample("w", dist.Normal(torch.zeros(degree + 1), 1.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(design(x, degree) @ w, NOISE), obs=y)


def design(x, degree):
    return x[:, None] ** torch.arange(degree + 1)


def exact(x, y, degree):
    X = design(x, degree)
    covariance = X @ X.mT + NOISE**2 * torch.eye(len(y))
    return float(dist.MultivariateNormal(torch.zeros(len(y)), covariance).log_prob(y))


def few(model, particles=256, runs=8):
    return SMC(OHMC(model), num_particles=particles, num_runs=runs, disable_progbar=True)


@pytest.fixture
def data():
    x = torch.linspace(-1, 1, 30)
    return x, 1.0 - 0.8 * x**2 + NOISE * torch.randn(30)


def test_one_model_over_an_argument(data):
    table = compare_evidence(polynomial, *data, over={"degree": range(1, 4)}, smc=few)
    truth = torch.tensor([exact(*data, degree) for degree in (1, 2, 3)])
    assert table.index.tolist() == [1, 2, 3]
    assert table.index.name == "degree"
    found, error = torch.tensor(table.log_evidence.to_numpy()), torch.tensor(table.se.to_numpy())
    assert ((found - truth).abs() < 8.47 * error).all()  # the quantile of t₇ where the normal has 4
    torch.testing.assert_close(torch.tensor(table.probability.to_numpy()), found.softmax(0))
    best = int(found.argmax())
    torch.testing.assert_close(torch.tensor(table.difference.to_numpy()), found - found[best])
    for k in range(3):
        expected = 0 if k == best else math.hypot(float(error[k]), float(error[best]))
        assert table.dse.iloc[k] == pytest.approx(expected)
    assert (table.seconds > 0).all()


# So few particles are for speed.
@pytest.mark.filterwarnings("ignore:The log evidences of 2 runs differ")
def test_several_models_runs_that_are_done_and_combinations(data):
    def constant(x, y):
        polynomial(x, y, 0)

    done = few(polynomial, 32, 2)
    done.run(*data, degree=2)
    table = compare_evidence({"constant": constant, "parabola": done}, *data, smc=lambda model: few(model, 32, 2))
    assert table.index.tolist() == ["constant", "parabola"]
    assert table.log_evidence["parabola"] == done.log_evidence
    assert math.isnan(table.seconds["parabola"])
    assert table.log_evidence.idxmax() == "parabola"

    def scaled(x, y, degree, scale):
        polynomial(x * scale, y, degree)

    over = {"degree": [0, 1], "scale": [1.0]}
    pairs = compare_evidence(scaled, *data, over=over, smc=lambda model: few(model, 32, 2))
    assert pairs.index.tolist() == [(0, 1.0), (1, 1.0)]
    assert list(pairs.index.names) == ["degree", "scale"]


def test_the_picture_shows_the_numbers():
    pandas = pytest.importorskip("pandas")
    columns = {"log_evidence": [-120.0, -100.0, -102.0], "se": [0.5, 0.2, float("nan")]}
    table = pandas.DataFrame({**columns, "probability": [0.0, 0.88, 0.12]}, index=pandas.Index([1, 2, 3], name="rank"))
    ax = plot_evidence(table)
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "rank"
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert ax.lines[0].get_ydata().tolist() == [-120.0, -100.0, -102.0]
    assert [text.get_text() for text in ax.texts] == ["0.88", "0.12", "numbers: probability of the model"]
    low, high = ax.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((-121.0, -119.0))
    plt.close(ax.figure)
    named = plot_evidence(table.set_axis(["one", "two", "three"]), ax=plt.subplots()[1])
    assert [label.get_text() for label in named.get_xticklabels()] == ["one", "two", "three"]
    plt.close("all")
    with pytest.raises(ValueError, match=r"^plot_evidence: table is what .*compare_evidence gives"):
        plot_evidence({"a": 1})


def test_bad_input_is_named(data):
    with pytest.raises(ValueError, match=r"give several models.*or one model and over="):
        compare_evidence(polynomial, *data)
    with pytest.raises(ValueError, match=r"give several models.*or one model and over="):
        compare_evidence({"a": polynomial}, *data, over={"degree": [1]})
    with pytest.raises(ValueError, match="there is no model to weigh"):
        compare_evidence({}, *data)
    with pytest.raises(ValueError, match=r"models is 3, expected"):
        compare_evidence(3, *data)
    with pytest.raises(ValueError, match=r"over\['degree'\] is 2, expected a list"):
        compare_evidence(polynomial, *data, over={"degree": 2})
    with pytest.raises(ValueError, match=r"models\['a'\] is 3, expected a Pyro model or an SMC"):
        compare_evidence({"a": 3}, *data)
    with pytest.raises(ValueError, match=r"smc is <.*expected lambda model"):
        compare_evidence(polynomial, *data, over={"degree": [1]}, smc=SMC(OHMC(polynomial)))
    with pytest.raises(ValueError, match=r"smc gave OHMC|smc gave <"):
        compare_evidence(polynomial, *data, over={"degree": [1]}, smc=OHMC)
    with pytest.raises(ValueError, match=r"SMC.log_evidence: there are no particles yet"):
        compare_evidence({"a": few(polynomial)}, *data)


def test_errors_and_warnings_name_the_model():
    def warns(y):
        warnings.warn("look here", UserWarning, stacklevel=1)
        pyro.sample("y", dist.Normal(pyro.sample("m", dist.Normal(0.0, 1.0)), 1.0).expand([len(y)]).to_event(1), obs=y)

    def fails(y):
        raise TypeError("no such argument")

    y = torch.randn(5)
    one_run = partial(few, particles=32, runs=1)
    with pytest.warns(UserWarning, match="compare_evidence, the model 'first': look here"):
        compare_evidence({"first": warns}, y, smc=one_run)
    with pytest.raises(TypeError, match="no such argument") as error:
        compare_evidence({"first": fails}, y, smc=one_run)
    assert error.value.__notes__ == ["compare_evidence: by the model 'first'."]
