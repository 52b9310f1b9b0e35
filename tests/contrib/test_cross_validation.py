"""Rows and cells held out, against predictive densities that are known in closed form."""

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_manifold.infer import MCMC, OHMC, held_out_cells, k_fold
from tests.diagnostics.either_arviz import compare

SPREAD = 2.0  # of the prior of the mean
LOADINGS = torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=torch.float64)


def mean_of_rows(y):
    m = pyro.sample("m", dist.Normal(0.0, SPREAD))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)


def posterior_of_mean(y):
    precision = len(y) + SPREAD**-2
    return float(y.sum()) / precision, precision**-0.5


def factor(y, observed):
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        cells = dist.Normal(z[..., None] * LOADINGS, 1.0)
        pyro.sample("y", cells.mask(observed).to_event(1), obs=y)


def factor_by_cells(y, observed):
    with pyro.plate("rows", y.shape[0], dim=-2):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("columns", y.shape[1], dim=-1):
            pyro.sample("y", dist.Normal(z * LOADINGS, 1.0).mask(observed), obs=y)


class Exact:
    """Independent draws in place of a chain."""

    def __init__(self, draw):
        self._draw = draw

    def run(self, *args, **kwargs):
        self._samples = self._draw(*args, **kwargs)

    def get_samples(self):
        return self._samples


def exact_mean(_):
    def draw(y):
        mean, spread = posterior_of_mean(y)
        return {"m": mean + spread * torch.randn(1000)}

    return Exact(draw)


def exact_scores(trailing):
    def draw(y, observed):
        precision = 1 + (observed * LOADINGS.square()).sum(1)
        mean = (observed * y * LOADINGS).sum(1) / precision
        z = mean + precision**-0.5 * torch.randn(1000, len(y))
        return {"z": z[..., None] if trailing else z}

    return lambda model: Exact(draw)


def short(model):
    return MCMC(OHMC(model), 300, 200, num_chains=4, disable_progbar=True)


def assert_mean_of_eight(values, truth):
    z = float(values.mean() - truth) / (float(values.std()) / 8**0.5)
    assert abs(z) < 8.47, f"mean {float(values.mean())}, truth {truth}"  # the quantile of t₇ where the normal has 4


def exact_folds(y, folds):
    total = 0.0
    for fold in folds.unique():
        mean, spread = posterior_of_mean(y[folds != fold])
        total += float(dist.Normal(mean, (1 + spread**2) ** 0.5).log_prob(y[folds == fold]).sum())
    return total


def error_of_folds(y, folds, effective_size):
    """Standard error of the sum over folds, from that of each posterior mean, to first order."""
    squares = 0.0
    for fold in folds.unique():
        mean, spread = posterior_of_mean(y[folds != fold])
        slope = float((y[folds == fold] - mean).sum()) / (1 + spread**2)
        squares += (slope * spread) ** 2 / effective_size
    return squares**0.5


def exact_cells(y, hidden, together):
    """Log density of hidden cells given those seen: of a row together, or each by itself."""
    precision = 1 + (~hidden * LOADINGS.square()).sum(1)
    mean = (~hidden * y * LOADINGS).sum(1) / precision
    total = 0.0
    for i in range(len(y)):
        w, cells = LOADINGS[hidden[i]], y[i, hidden[i]]
        if not len(w):
            continue
        covariance = w[:, None] * w / precision[i] + torch.eye(len(w))
        covariance = covariance if together else torch.diag(covariance.diagonal())
        total += float(dist.MultivariateNormal(mean[i] * w, covariance).log_prob(cells))
    return total


def test_folds_of_a_conjugate_model():
    y = 1.0 + torch.randn(12)
    folds = torch.arange(12) % 2
    found = torch.tensor([k_fold(mean_of_rows, y, folds=folds, mcmc=exact_mean).elpd for _ in range(8)])
    # The logarithm of a mean over S draws is too small by half its relative variance, here 2e-4 or less in all.
    assert_mean_of_eight(found, exact_folds(y, folds))
    refit = k_fold(mean_of_rows, y, folds=folds, mcmc=short)
    # 1,200 draws of a chain in one dimension are worth 300 at least; 0.01 for the variance's part, of second order.
    assert refit.elpd == pytest.approx(exact_folds(y, folds), abs=4 * error_of_folds(y, folds, 300) + 0.01)
    assert refit.n_samples == 1200
    assert refit.elpd_i.shape == (12,)
    assert refit.se == pytest.approx(float(torch.tensor(refit.elpd_i.values).std()) * 12**0.5)


def test_masked_rows_are_not_scored():
    y, seen = 1.0 + torch.randn(12), torch.arange(12) % 3 > 0

    def masked(y, seen):
        m = pyro.sample("m", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", len(y)), poutine.mask(mask=seen):
            pyro.sample("y", dist.Normal(m, 1.0), obs=y)

    at = lambda model: Exact(lambda *_: {"m": torch.linspace(0.0, 2.0, 10)})  # noqa: E731
    folds = torch.arange(12) % 4
    found = k_fold(masked, y, seen, folds=folds, mcmc=at)
    expected = k_fold(mean_of_rows, y[seen], folds=folds[seen], mcmc=at)
    assert found.elpd == pytest.approx(expected.elpd)
    assert found.se == pytest.approx(expected.se)
    assert found.n_data_points == int(seen.sum())


def test_missing_cells_are_not_scored():
    y, present = torch.randn(15, 4), torch.rand(15, 4) < 0.7
    hidden = torch.rand(15, 4) < 0.3

    def some(y, observed):
        return factor_by_cells(y, observed & present)

    exact = exact_scores(trailing=True)
    assert held_out_cells(some, y, hidden=hidden, mcmc=exact).n_data_points == int((hidden & present).sum())


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of ArviZ, by pandas 3.1
def test_arviz_compares_them():
    y = 1.0 + torch.randn(30)

    def without_mean(y):
        pyro.sample("unused", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    unused = lambda model: Exact(lambda y: {"unused": torch.zeros(10)})  # noqa: E731
    folds = torch.arange(30) % 5
    results = {
        "mean": k_fold(mean_of_rows, y, folds=folds, mcmc=exact_mean),
        "none": k_fold(without_mean, y, folds=folds, mcmc=unused),
    }
    table = compare(results)
    assert table.index[0] == "mean"
    expected = results["mean"].elpd - float(dist.Normal(0.0, 1.0).log_prob(y).sum())
    assert table.elpd_diff["none"] == pytest.approx(expected)
    assert f"{results['mean'].elpd:.2f}" in str(results["mean"])


def test_results_that_arviz_could_not_hold_are_an_error_before_the_fits(monkeypatch):
    def other(*arguments, **fields):
        raise TypeError("unexpected field")

    def fitted(model):
        raise AssertionError("a model was fitted")

    for name in ("ELPDData", "ELPDDataLOOKFold"):
        monkeypatch.setattr(arviz, name, other, raising=False)
    with pytest.raises(ImportError, match=r"another format of arviz\.ELPDData"):
        k_fold(mean_of_rows, torch.randn(10), k=2, mcmc=fitted)
    with pytest.raises(ImportError, match=r"another format of arviz\.ELPDData"):
        held_out_cells(factor, torch.randn(10, 4), mcmc=fitted)


@pytest.mark.parametrize("by", ["row", "cell"])
def test_cells_of_a_linear_factor(by):
    y = torch.randn(15, 1) * LOADINGS + torch.randn(15, 4)
    hidden = torch.rand(15, 4) < 0.3
    model, truth = {"row": (factor, True), "cell": (factor_by_cells, False)}[by]
    exact = exact_scores(trailing=by == "cell")
    found = torch.tensor([held_out_cells(model, y, hidden=hidden, mcmc=exact).elpd for _ in range(8)])
    assert_mean_of_eight(found, exact_cells(y, hidden, truth))
    result = held_out_cells(model, y, hidden=hidden, mcmc=exact)
    assert result.n_data_points == int(hidden.any(1).sum() if by == "row" else hidden.sum())


def test_cells_by_a_chain():
    y = torch.randn(15, 1) * LOADINGS + torch.randn(15, 4)
    result = held_out_cells(factor, y, fraction=0.2, mcmc=short)
    hidden_rows = result.n_data_points
    assert 0 < hidden_rows <= 12
    assert result.elpd < 0


def test_rows_go_with_the_first_tensor():
    seen = []

    def model(x, y, weight, matrix=None):
        seen.append((len(x), len(y), weight.shape, matrix.shape))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(b * x, 1.0), obs=y)

    exact = lambda model: Exact(lambda *args, **kwargs: {"b": torch.zeros(5)})  # noqa: E731
    result = k_fold(model, torch.randn(10), torch.randn(10), torch.ones(3), k=5, mcmc=exact, matrix=torch.ones(10, 2))
    assert (8, 8, (3,), (8, 2)) in seen
    assert (2, 2, (3,), (2, 2)) in seen
    assert result.n_data_points == 10


def columns_before_rows(y):
    m = pyro.sample("m", dist.Normal(0.0, SPREAD))
    with pyro.plate("rows", len(y)), pyro.plate("columns", y.shape[1]):
        pyro.sample("y", dist.Normal(m, 1.0), obs=y.mT)


def test_columns_are_not_taken_for_the_rows_of_a_fold():
    """Though a fold has as many rows as there are columns."""
    with pytest.raises(ValueError, match=r"site 'y' has a likelihood of shape \(4, 12\), expected 12 rows"):
        k_fold(columns_before_rows, torch.randn(12, 4), k=3, mcmc=lambda _: Exact(lambda y: {"m": torch.zeros(5)}))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="k_fold: the model has no observed site"):
        k_fold(lambda y: pyro.sample("m", dist.Normal(0.0, 1.0)), torch.randn(12), k=3, mcmc=exact_mean)
    with pytest.raises(ValueError, match=r"held_out_cells: fraction=nan"):
        held_out_cells(factor, torch.randn(12, 4), fraction=float("nan"))
    with pytest.raises(ValueError, match=r"held_out_cells: .*booleans of shape"):
        held_out_cells(factor, torch.randn(12, 4), hidden=[[True] * 4] * 12)
    y = torch.randn(10)

    def own_scores(y):
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def in_one(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(m, torch.ones(len(y))).to_event(1), obs=y)

    def careless(y, observed):
        mean_of_rows(y.flatten())

    with pytest.raises(ValueError, match=r"k_fold: sites \['z'\] have a value for each row.*held_out_cells"):
        k_fold(own_scores, y, k=2, mcmc=exact_mean)
    with pytest.raises(ValueError, match=r"site 'y' has a likelihood of shape .* observe it in a plate of rows"):
        k_fold(in_one, y, k=2, mcmc=exact_mean)
    with pytest.raises(ValueError, match="k=1, expected an integer from 2"):
        k_fold(mean_of_rows, y, k=1)
    with pytest.raises(ValueError, match="folds has shape"):
        k_fold(mean_of_rows, y, folds=torch.zeros(10))
    with pytest.raises(ValueError, match=r"is a tensor.*k_fold\(model, y, \.\.\.\)"):
        k_fold(mean_of_rows, [1.0])
    with pytest.raises(ValueError, match="the model has no argument `observed`"):
        held_out_cells(mean_of_rows, y)
    with pytest.raises(ValueError, match="must hide some of the cells"):
        held_out_cells(factor, torch.randn(5, 4), fraction=0.0)
    with pytest.raises(ValueError, match="not zero where `observed` is False everywhere"):
        held_out_cells(careless, torch.randn(5, 2), mcmc=lambda model: Exact(lambda y, observed: {"m": torch.zeros(9)}))
