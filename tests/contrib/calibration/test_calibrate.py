"""Calibration of users' models: right ones raise no alarm, planted faults do, and no failed fit is lost.

Right models are held to a level of 1e-4 each, so that all of them together raise an alarm in fewer than 1 of 1000 runs.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, NUTS
from pyro.infer.autoguide.initialization import init_to_value
from torch.distributions.transforms import ExpTransform

from problems import calibration as problem
from pyro_manifold.contrib.calibration import Conditioned, StoredError
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC, SGLD, calibrate

LEVEL = 1e-4
Y = torch.zeros(3)


def model(y, spread=1.0, noise=1.0):
    m = pyro.sample("m", dist.Normal(0.0, spread))
    s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(m, s * noise), obs=y)


def components(y):
    U = pyro.sample("U", StiefelUniform(3, 2))
    s = pyro.sample("s", dist.HalfNormal(2.0).expand([2]).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(3), U * s[..., None, :], torch.ones(3)), obs=y)


def mixture(y):
    m = pyro.sample("m", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(m + 2 * z, 0.5), obs=y)


together = partial(calibrate, vectorized=True, num_datasets=100, num_samples=200, level=LEVEL)
single = partial(calibrate, num_datasets=20, num_samples=10, warmup_steps=0, disable_progbar=True)
"""For tests of what is done with fits: the shortest ones."""


def untuned(model):
    return OHMC(model, step_size=0.3, adapt_step_size=False, adapt_mass_matrix=False)


def of_pyro(model):
    """Kernel that takes the least time to begin."""
    return HMC(model, step_size=0.3, num_steps=2, adapt_step_size=False)


# ---- right models -------------------------------------------------------------------------------------------


def test_a_right_model_raises_no_alarm():
    result = together(model, OHMC, Y)
    assert list(result.ranks.columns) == ["m", "s", "log likelihood", "log density"]
    assert result.ranks.shape == (100, 4)
    assert not result.alarm


@pytest.mark.long
def test_a_right_model_about_its_data():
    result = together(model, OHMC, Y + 4, conditioned_on=True, num_chains=2)
    assert not result.alarm


@pytest.mark.long
def test_columns_without_signs_are_ranked_by_invariants():
    result = together(components, OHMC, torch.zeros(4, 3), num_datasets=60)
    assert not any(name.startswith(("U[", "s[")) for name in result.ranks.columns)
    assert "U, s, eigenvalues[0]" in result.ranks.columns
    assert not result.alarm


@pytest.mark.long
def test_discrete_sites_are_summed_out():
    result = together(mixture, OHMC, Y, num_datasets=60)
    assert list(result.ranks.columns) == ["m", "log likelihood"]
    assert not result.alarm


# ---- planted faults -----------------------------------------------------------------------------------------


class WithoutJacobian(ExpTransform):
    def log_abs_det_jacobian(self, x, y):
        return torch.zeros_like(x)


class Uneven(StiefelUniform):
    """U[0,0] is positive in 90 % of draws."""

    def sample(self, sample_shape=()):
        U = super().sample(sample_shape)
        return torch.where((U[..., :1, :1] > 0) == (torch.rand(U[..., :1, :1].shape) < 0.9), U, -U)


def with_uneven():
    U = pyro.sample("U", Uneven(3, 2))
    scale = pyro.sample("scale", dist.LogNormal(0.0, problem.SPREAD))
    shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(shift + scale * U, problem.NOISE).expand([problem.ROWS, 3, 2]).to_event(3))


def of_problem():
    return problem.Model(torch.zeros(problem.ROWS, 3, 2))


faulty = partial(together, level=0.01)

FAULTS = {
    "a wrong scale of the likelihood": lambda: faulty(
        partial(model, noise=2.0), OHMC, Y, simulate=model, num_datasets=200
    ),
    "a wrong scale, about data": lambda: faulty(
        partial(model, noise=2.0), OHMC, torch.linspace(3, 5, 10), simulate=model, conditioned_on=True
    ),
    "a dropped Jacobian": lambda: faulty(
        of_problem(), lambda model: OHMC(model, transforms={"scale": WithoutJacobian().inv}), num_datasets=500
    ),
    "uneven prior masses": lambda: faulty(of_problem(), OHMC, simulate=with_uneven),
    "a short warm-up": lambda: faulty(of_problem(), OHMC, warmup_steps=1, num_samples=19, num_datasets=1000),
    "SGLD, 10 times the step": lambda: faulty(
        of_problem(), lambda model: SGLD(model, step_size=0.1, num_steps=10), num_datasets=300
    ),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of chains that hardly moved, for one
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_planted_faults_are_found(fault):
    assert FAULTS[fault]().alarm


@pytest.mark.long
def test_the_table_describes_a_wrong_prior(capsys):
    result = together(partial(model, spread=0.25), OHMC, Y, simulate=model)
    assert result.alarm
    assert "too narrow" in result.table().draws["m"]
    result.summary()
    assert capsys.readouterr().out.startswith("Ranks are not uniform: p")
    assert repr(result).startswith("<Calibration: NOT uniform ranks, p")
    assert "\n" not in repr(result)


# ---- one fit for each data set ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_study_continues_from_its_store(tmp_path):
    """Fits depend neither on the executor, nor on an interruption, nor on the number of data sets."""
    study = partial(single, model, untuned, Y, store=tmp_path)
    alone = study()
    for number in range(16, 20):  # as if the study had been killed
        (tmp_path / f"dataset-{number:06d}.npz").unlink()
    longer = study(resume=True, num_datasets=22, executor=ThreadPoolExecutor(2))
    assert longer.draws == alone.draws
    assert (longer.ranks[:20] == alone.ranks).all(axis=None)

    with pytest.raises(ValueError, match="already holds a study"):
        study()
    with pytest.raises(ValueError, match="num_samples was 10, and is 30"):
        study(resume=True, num_samples=30)
    with pytest.raises(ValueError, match="a simulated data set"):
        single(partial(model, spread=2.0), untuned, Y, store=tmp_path, resume=True)


@pytest.mark.long
def test_single_fits_about_data_continue(tmp_path):
    study = partial(single, model, of_pyro, Y, conditioned_on={"y": Y + 1}, store=tmp_path)
    alone = study()
    (tmp_path / "dataset-000007.npz").unlink()
    assert (study(resume=True).ranks == alone.ranks).all(axis=None)
    with pytest.raises(ValueError, match="the fingerprint of conditioned_on"):
        study(resume=True, conditioned_on=True)


@pytest.mark.long
def test_kernels_of_pyro():
    result = single(model, lambda model: NUTS(model, max_tree_depth=3), Y, warmup_steps=5)
    assert result.ranks.shape == (20, 4)


@pytest.mark.parametrize("hidden", [False, True])
def test_one_run_of_all_data_sets_shows_its_progress(capsys, hidden):
    single(model, OHMC, Y, vectorized=True, disable_progbar=hidden)
    assert ("10/10" in capsys.readouterr().err) is not hidden


@pytest.mark.long
def test_failed_fits_are_reported(tmp_path, capsys):
    made = itertools.count()

    def failing(conditioned):
        """One in four, so that at least the twenty fits remain that a test of ranks needs."""
        kernel = of_pyro(conditioned)
        if next(made) % 4 == 3:
            kernel.setup = failing_to_prepare
        return kernel

    with pytest.warns(UserWarning, match="of 30 fits have no ranks .* RuntimeError: no fit"):
        result = single(model, failing, Y, num_datasets=30, store=tmp_path)
    failed = result.failures[~result.failures.ranked]
    assert 7 <= len(failed) <= 8
    assert len(result.ranks) == 30 - len(failed)
    assert not set(result.ranks.index) & set(failed.index)
    assert f"{len(failed)} without ranks" in repr(result)
    result.summary()
    assert f"{len(failed)} of 30 fits have no ranks" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="RuntimeError: no fit"):
        again = single(model, failing, Y, num_datasets=30, store=tmp_path, resume=True)
    assert again.failures.equals(result.failures)


def failing_later(conditioned):
    kernel = OHMC(conditioned)
    kernel.run_of = failing_to_prepare
    return kernel


def failing_to_prepare(*_, **__):
    raise RuntimeError("no fit")


def test_the_error_of_all_fits_is_raised(tmp_path):
    with pytest.raises(RuntimeError, match="no fit"):
        single(model, failing_later, Y, store=tmp_path)
    with pytest.raises(StoredError, match="RuntimeError: no fit"):
        single(model, failing_later, Y, store=tmp_path, resume=True)


def test_data_that_are_not_finite_are_reported():
    def overflowing(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(torch.where(m > 1, torch.inf, m), 1.0), obs=y)

    with pytest.warns(UserWarning, match="simulated values of y are not finite"):
        result = together(overflowing, OHMC, torch.tensor(0.0), num_datasets=100)
    assert 3 <= (~result.failures.ranked).sum() <= 40
    assert result.num_datasets == 100


def test_chains_that_do_not_move_are_reported():
    kernel = partial(OHMC, step_size=1e6, adapt_step_size=False, adapt_mass_matrix=False)
    result = together(model, kernel, Y, num_datasets=20, num_samples=20, warmup_steps=0)
    assert result.failures.reason.str.contains("chains that hardly moved").sum() > 15
    assert result.failures.ranked.all()
    assert "with poor sampling" in repr(result)


# ---- models and arguments -----------------------------------------------------------------------------------


def test_data_may_be_missing_from_the_arguments():
    def optional(x, y=None):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(m * x, 1.0), obs=y)

    result = together(optional, OHMC, torch.arange(3.0), observed=["y"], num_datasets=50)
    assert list(result.ranks.columns) == ["m", "log likelihood", "log density"]
    with pytest.raises(ValueError, match="no observed site"):
        together(optional, OHMC, torch.arange(3.0))


def test_large_sites_have_a_limited_number_of_quantities():
    def many(y):
        m = pyro.sample("m", dist.Normal(torch.zeros(50), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y)

    result = together(many, OHMC, torch.zeros(50), max_entries=5, num_datasets=20)
    assert list(result.ranks.columns)[:5] == ["m[0]", "m[10]", "m[20]", "m[30]", "m[40]"]


def test_the_density_about_data_has_both_likelihoods():
    y, other, m, s = torch.randn(3), torch.randn(3), torch.tensor(0.3), torch.tensor(1.2)
    both = Conditioned(model, {"y": y}, {"y": other})
    trace = pyro.poutine.trace(pyro.poutine.condition(both, {"m": m, "s": s})).get_trace(Y)
    expected = dist.Normal(0.0, 1.0).log_prob(m) + dist.LogNormal(0.0, 0.3).log_prob(s)
    expected += dist.Normal(m, s).log_prob(y).sum() + dist.Normal(m, s).log_prob(other).sum()
    torch.testing.assert_close(trace.log_prob_sum(), expected)


def no_latent(y):
    pyro.sample("y", dist.Normal(torch.zeros(3), 1.0).to_event(1), obs=y)


def no_data():
    pyro.sample("m", dist.Normal(0.0, 1.0))


def with_factor(y):
    model(y)
    pyro.factor("pull", torch.tensor(1.0))


def improper(y):
    m = pyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.sample("y", dist.Normal(m, 1.0).expand([3]).to_event(1), obs=y)


def without_s(y):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(m, 1.0).expand([3]).to_event(1), obs=y)


def with_start(model):
    return OHMC(model, init_strategy=init_to_value(values={"m": torch.tensor(0.5)}))


BAD = {
    "no latent site": lambda: single(no_latent, OHMC, Y),
    "no observed site": lambda: single(no_data, OHMC),
    "site 'pull' is a pyro.factor": lambda: single(with_factor, OHMC, Y),
    "cannot be drawn from": lambda: single(improper, with_start, Y),
    "simulate lacks the site 's'": lambda: single(model, OHMC, Y, simulate=without_s),
    "num_datasets=5, expected at least 20": lambda: single(model, OHMC, Y, num_datasets=5),
    "num_datasets=2.5, expected a positive integer": lambda: single(model, OHMC, Y, num_datasets=2.5),
    "there are 4 draws of a data set, expected at least 9": lambda: single(model, OHMC, Y, num_samples=4),
    "level=2, expected a probability": lambda: single(model, OHMC, Y, level=2),
    "expected a concurrent.futures.Executor": lambda: single(model, OHMC, Y, executor=4),
    "expected a kernel class": lambda: single(model, OHMC(model), Y),
    "simulate=3, expected a Pyro model": lambda: single(model, OHMC, Y, simulate=3),
    "observed='y', expected a list": lambda: single(model, OHMC, Y, observed="y"),
    "observed names \\['x'\\], but": lambda: single(model, OHMC, Y, observed=["x"]),
    "the model observes \\['y'\\] too": lambda: single(model, OHMC, Y, observed=["m"]),
    "conditioned_on is a Tensor, expected True": lambda: single(model, OHMC, Y, conditioned_on=Y),
    "conditioned_on has \\['x'\\], expected the observed sites \\['y'\\]": lambda: single(
        model, OHMC, Y, conditioned_on={"x": Y}
    ),
    "store is for fits of single data sets": lambda: single(model, OHMC, Y, vectorized=True, store="x"),
    "is for kernels of this package, not NUTS": lambda: single(model, NUTS, Y, vectorized=True),
    "pass its folder as store=": lambda: single(model, OHMC, Y, resume=True),
    "vectorized=1, expected True or False": lambda: single(model, OHMC, Y, vectorized=1),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message):
    with pytest.raises(ValueError, match=message) as error:
        BAD[message]()
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_improper_priors_can_be_checked_about_data():
    result = together(improper, with_start, Y + 1, conditioned_on=True, num_datasets=100)
    assert not result.alarm


def test_summed_out_sites_are_not_supported_about_data():
    with pytest.raises(NotImplementedError, match="summed out"):
        single(mixture, OHMC, Y, conditioned_on=True)
