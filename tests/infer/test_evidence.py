"""The evidence of several models side by side, against evidences that are known."""

import math
import warnings
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.infer import OHMC, SMC, compare_evidence
from pyro_manifold.infer.smc import warn_of_differences

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


# A straight line or a cubic may be the best by chance.
@pytest.mark.filterwarnings("ignore:compare_evidence. the largest evidence is at degree")
def test_one_model_over_an_argument(data):
    table = compare_evidence(polynomial, *data, over={"degree": iter(range(1, 4))}, smc=few)
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
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*The log evidences of 2 runs differ")
def test_several_models_runs_that_are_done_and_combinations(data):
    def constant(x, y):
        polynomial(x, y, 0)

    done = few(polynomial, 64, 2)
    done.run(*data, degree=2)
    table = compare_evidence({"constant": constant, "parabola": done}, *data, smc=lambda model: few(model, 64, 2))
    assert table.index.tolist() == ["constant", "parabola"]
    assert table.log_evidence["parabola"] == done.log_evidence
    assert math.isnan(table.seconds["parabola"])
    assert table.log_evidence.idxmax() == "parabola"

    def scaled(x, y, degree, scale):
        polynomial(x * scale, y, degree)

    over = {"degree": [0, 1], "scale": [1.0]}
    pairs = compare_evidence(scaled, *data, over=over, smc=lambda model: few(model, 64, 2))
    assert pairs.index.tolist() == [(0, 1.0), (1, 1.0)]
    assert list(pairs.index.names) == ["degree", "scale"]


def test_bad_input_is_named(data):
    with pytest.raises(ValueError, match=r"pass several models.*or one model and over="):
        compare_evidence(polynomial, *data)
    with pytest.raises(ValueError, match=r"pass several models.*or one model and over="):
        compare_evidence({"a": polynomial}, *data, over={"degree": [1]})
    with pytest.raises(ValueError, match="models is empty"):
        compare_evidence({}, *data)
    with pytest.raises(ValueError, match=r"models is 3, expected"):
        compare_evidence(3, *data)
    with pytest.raises(ValueError, match=r"over\['degree'\] is 2, expected a list"):
        compare_evidence(polynomial, *data, over={"degree": 2})
    with pytest.raises(ValueError, match=r"over is \[1, 2\], expected \{argument: values\}, such as \{'rank'"):
        compare_evidence(polynomial, *data, over=[1, 2])
    with pytest.raises(ValueError, match=r"models\['a'\] is 3, expected a Pyro model or an SMC"):
        compare_evidence({"a": 3}, *data)
    with pytest.raises(ValueError, match=r"smc is <.*expected lambda model"):
        compare_evidence(polynomial, *data, over={"degree": [1]}, smc=SMC(OHMC(polynomial)))
    with pytest.raises(ValueError, match=r"smc returned OHMC|smc returned <"):
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
    one_run = partial(few, particles=128, runs=1)
    with pytest.warns(UserWarning, match="compare_evidence, the model 'first': look here"):
        compare_evidence({"first": warns}, y, smc=one_run)
    with pytest.raises(TypeError, match="no such argument") as error:
        compare_evidence({"first": fails}, y, smc=one_run)
    assert error.value.__notes__ == ["compare_evidence: raised by the model 'first'."]


def conjugate(y, shift=0.0, scale=1.0):
    """Evidence known: the further the shift, the lower."""
    m = pyro.sample("m", dist.Normal(shift, 0.1))
    pyro.sample("y", dist.Normal(m, scale).expand([len(y)]).to_event(1), obs=y)


def fails(y, shift=0.0):
    raise RuntimeError(f"no luck at {shift}\nand a long report")


def test_a_model_that_fails_leaves_the_evidence_of_the_others():
    y = torch.zeros(5)

    def some_fail(y, shift):
        (fails if shift == 1.0 else conjugate)(y, shift)

    expected = r"^compare_evidence, the model 1.0: the run failed, and its row is NaN \(RuntimeError: no luck at 1.0\)$"
    with pytest.warns(UserWarning, match=expected):
        table = compare_evidence(some_fail, y, over={"shift": [2.0, 1.0, 0.0, -1.0]}, smc=partial(few, particles=64))
    assert table.index.tolist() == [2.0, 1.0, 0.0, -1.0]
    assert table.loc[1.0].isna().all()
    assert table.drop(1.0).notna().all(axis=None)
    assert float(table.probability.sum()) == pytest.approx(1.0)
    assert table.probability.idxmax() == 0.0
    with pytest.raises(RuntimeError, match=r"no luck at 1\.0"):
        compare_evidence(fails, y, over={"shift": [1.0, 2.0]}, smc=few)


def test_an_interrupt_leaves_the_evidence_of_the_models_that_are_done():
    def interrupted(y, shift):
        if shift == 3.0:
            raise KeyboardInterrupt
        conjugate(y, shift)

    y, few_particles = torch.zeros(5), partial(few, particles=64)
    with pytest.warns(UserWarning, match=r"^compare_evidence: interrupted during the model 3.0; rows .* are NaN"):
        table = compare_evidence(interrupted, y, over={"shift": [1.0, 0.0, 2.0, 3.0, 4.0]}, smc=few_particles)
    assert table.log_evidence.notna().tolist() == [True, True, True, False, False]
    with pytest.raises(KeyboardInterrupt):
        compare_evidence(interrupted, y, over={"shift": [3.0, 0.0]}, smc=few_particles)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0, 1.0], "the largest evidence is at shift=1.0, the smallest value tried: try smaller ones."),
        pytest.param(
            [-3, -2, -1],
            "the largest evidence is at shift=-1, the largest value tried: try larger ones.",
            marks=pytest.mark.long,
        ),
        ([1, 2], None),  # an integer such as a rank begins at 1
        pytest.param([0.0, 1.0], None, marks=pytest.mark.long),
        pytest.param([-1.0, 0.0, 1.0], None, marks=pytest.mark.long),
        ([1.0], None),
        pytest.param([3.0, 1.0, 2.0], None, marks=pytest.mark.long),  # no order
    ],
)
def test_the_end_of_a_range_is_reported(values, expected):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare_evidence(conjugate, torch.zeros(20), over={"shift": values}, smc=partial(few, particles=64))
    assert [str(each.message) for each in caught] == ([f"compare_evidence: {expected}"] if expected else [])
    assert all(each.filename == __file__ for each in caught)


@pytest.mark.long
def test_the_end_of_one_of_two_ranges():
    over = {"shift": [-1.0, 0.0, 1.0], "scale": [0.5, 1.0]}
    with pytest.warns(UserWarning, match="is at scale=0.5, the smallest value tried") as caught:
        compare_evidence(conjugate, torch.zeros(20), over=over, smc=partial(few, particles=64))
    assert len(caught) == 1


class Spread(SMC):
    """An SMC whose runs differ by 3 nats."""

    def run(self, *args, **kwargs):
        super().run(*args, **kwargs)
        self.result.log_evidences.copy_(self.result.log_evidences[0] + 3.0 * torch.linspace(-1, 1, 8))
        warn_of_differences(self.result)


@pytest.mark.parametrize(("shift", "said"), [(0.5, True), pytest.param(8.0, False, marks=pytest.mark.long)])
def test_relevant_differences_between_runs_are_reported(shift, said):
    """One model is worse by a few nats or by 500, and the runs of both have a standard deviation of 2."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = compare_evidence(
            {"near": conjugate, "far": partial(conjugate, shift=shift)},
            torch.zeros(50),
            smc=lambda model: Spread(OHMC(model), 64, 8, disable_progbar=True),
        )
    gap = -float(table.difference["far"])
    assert (gap < 8) == said
    pattern = "compare_evidence, the model {!r}: The log evidences of 8 runs differ"
    found = [str(each.message) for each in caught if "differ" in str(each.message)]
    assert [
        message.startswith(pattern.format(name)) for message, name in zip(found, ("near", "far"), strict=False)
    ] == [True] * len(found)
    assert len(found) == (2 if said else 0)
