"""Every misuse that we could think of ends in one sentence, and what goes wrong while sampling keeps the draws."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, OSGHMC, PSGLD, SGHMC, SGLD, SGNHT, CosineCycles, PolynomialDecay

DATA = torch.linspace(-1, 1, 50, dtype=torch.float64)


def model():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 50, subsample_size=10) as rows:
        pyro.sample("y", dist.Normal(w, 0.5), obs=DATA[rows])


def on_batches(y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 50, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(w, 0.5), obs=y)


def rows_of_three(x):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", 50, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=x[:, 0])


def local():
    with pyro.plate("data", 50, subsample_size=10) as rows:
        pyro.sample("y", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)), 0.5), obs=DATA[rows])


def enumerated():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 50, subsample_size=10) as rows:
        z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(w * z, 0.5), obs=DATA[rows])


def matrix():
    pyro.sample("U", StiefelUniform(3, 2))


@pytest.mark.filterwarnings("ignore:Sites .* count the data of a batch")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SGLD(model, step_size=-0.1), "step_size=-0.1"),
        (lambda: SGLD(model, step_size="small"), "step_size='small'"),
        (lambda: SGLD(model, step_size=math.nan), "step_size=nan"),
        (lambda: SGLD(model, step_size=0.1, temperature=-1.0), "temperature=-1.0"),
        (lambda: SGLD(model, step_size=0.1, num_steps=0), "num_steps=0"),
        (lambda: SGLD(model, step_size=0.1, minibatches="ordered"), "minibatches='ordered'"),
        (lambda: SGLD(model, step_size=0.1, scales={"w": 0.0}), r"scales\['w'\]=0.0"),
        (lambda: SGLD(model, step_size=0.1, scales={"v": 1.0}).prepare(1, 0, None), r"scales names \['v'\]"),
        (lambda: PSGLD(model, step_size=0.1, scales={"w": 2.0}), "PSGLD, which adapts a scale"),
        (lambda: PSGLD(model, step_size=0.1, decay=1.0), "decay=1.0"),
        (lambda: PSGLD(model, step_size=0.1, damping=0.0), "damping=0.0"),
        (lambda: SGHMC(model, step_size=0.1, friction=0), "friction=0"),
        (lambda: SGHMC(model, step_size=0.1, friction=math.inf), "friction=inf"),
        (lambda: SGHMC(model, step_size=0.1, noise_estimate=0.2), "noise_estimate=0.2"),
        (lambda: SGHMC(model, step_size=0.1, noise_estimate="no"), "noise_estimate='no'"),
        (lambda: SGHMC(model, step_size=0.1, integrator="leapfrog"), "integrator='leapfrog'"),
        (lambda: SGHMC(model, step_size=0.1, integrator="euler", friction=1.5), "friction=1.5"),
        (lambda: SGNHT(model, step_size=0.1, friction=-1.0), "friction=-1.0"),
        (lambda: SGNHT(model, step_size=0.1, thermostat_mass=0.0), "thermostat_mass=0.0"),
        (lambda: SGNHT(model, step_size=0.1, thermostat_mass="light"), "thermostat_mass='light'"),
        (lambda: SGNHT(model, step_size=0.1, noise_estimate=0.01), "noise_estimate is not supported by SGNHT"),
        (lambda: SGNHT(model, step_size=0.1, minibatches="ordered"), "minibatches='ordered'"),
        (lambda: CosineCycles(0.1, 0), "length=0"),
        (lambda: CosineCycles(-0.1, 10), "initial=-0.1"),
        (lambda: PolynomialDecay(0.1, scale=0.0), "scale=0.0"),
        (lambda: SGHMC(matrix, step_size=0.1).prepare(1, 0, None), "Site 'U' .* use OSGHMC"),
        (lambda: SGLD(local, step_size=0.1).prepare(1, 0, None), "Site 'z' is sampled in the plate 'data'"),
        (lambda: SGLD(enumerated, step_size=0.1).prepare(1, 0, None), "Site 'z' is summed out by Pyro, and the plate"),
        (lambda: SGLD(model, step_size=0.1, per_chain_minibatches="no"), "per_chain_minibatches='no'"),
        (lambda: CosineCycles(0.1, 10, smallest=5.0), "smallest=5.0"),
        (lambda: sampled(on_batches, [DATA[:10]], potential=True), "not supported with potential_fn"),
        (lambda: MCMC(OHMC(model), 5).run(data_loader=[DATA]), "data_loader .* not OHMC"),
        (lambda: MCMC(SGLD(model, step_size=0.1), 5).run(data_loader=iter([DATA])), "data_loader is an iterator"),
        (lambda: MCMC(SGLD(model, step_size=0.1), 5).run(data_loader=3), "data_loader=3"),
        (lambda: sampled(on_batches, []), "data_loader gives no batch"),
        (lambda: sampled(on_batches, [DATA[:10], "text"]), "Part 0 of a batch of data_loader is 'text'"),
        (lambda: sampled(on_batches, [DATA[:10]], DATA), "data_loader supplies the positional arguments"),
        (
            lambda: sampled(on_batches, [DATA[:10], DATA[:8]], per_chain_minibatches=True),
            "per_chain_minibatches=True needs",
        ),
        (lambda: sampled(on_batches, [DATA[:10]], minibatches="symmetric"), "minibatches='symmetric' is for plates"),
        (lambda: sampled(on_batches, Shrinking()), "data_loader gave 1 batches in an epoch and has a length of 2"),
        (lambda: sampled(sites_of_batch, [DATA[:10], DATA[:8]]), "sites must not depend on the batch"),
        (lambda: sampled(unscaled, [DATA[:10], DATA[:8]]), "Site 'y' stands for 8 data .* for 10 on the first"),
        (lambda: sampled(on_batches, [(DATA[:10], DATA[:10])]), "takes 1 positional argument"),
        (lambda: sampled(on_batches, [DATA[:0]]), "Part 0 of a batch of data_loader has no rows"),
        (lambda: sampled(on_batches, [DATA[0]]), "Part 0 of a batch of data_loader is a single number"),
        (lambda: sampled(on_batches, [DATA[:10].numpy()]), "of type ndarray, expected a tensor"),
        (
            lambda: sampled(rows_of_three, [torch.ones(5, 3), torch.ones(5, 2)]),
            r"run on a batch of shapes \(5, 2\) .size",
        ),
    ],
)
def test_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as error:
        make()
    assert "\n" not in str(error.value)


def sampled(model, loader, *arguments, potential=False, **options):
    kernel = SGLD(None if potential else model, model if potential else None, step_size=1e-3, **options)
    mcmc = MCMC(kernel, 20, 0, num_chains=2, disable_progbar=True)
    mcmc.run(*arguments, data_loader=loader)
    return mcmc


class Shrinking:
    """A loader that has fewer batches in each pass."""

    def __init__(self):
        self._batches = 5

    def __iter__(self):
        self._batches -= 1
        return iter([DATA[:10]] * (self._batches - 1))


def sites_of_batch(y):
    w = pyro.sample("w", dist.Normal(torch.zeros(len(y)), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=y)


def unscaled(y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w, 0.5), obs=y)


def test_a_batch_that_stands_for_itself_is_noticed():
    source = DataLoader(TensorDataset(DATA), batch_size=10)
    with pytest.warns(UserWarning, match="Site 'y' stands for the 10 data of a batch, but data_loader has 50"):
        sampled(unscaled, source)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_schedule_that_goes_wrong_names_the_step(value):
    kernel = SGHMC(model, step_size=lambda step: 0.01 if step < 30 else value, num_steps=4)
    with pytest.raises(ValueError, match=rf"The schedule of step_size returns {value} at step 30"):
        MCMC(kernel, 20, 0, disable_progbar=True).run()


def quartic():
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("quartic", -(x**4).sum())


def test_divergence_keeps_the_draws():
    """Steps that grow: Euler's scheme leaves the numbers, and draws before that are kept."""
    kernel = SGHMC(quartic, step_size=lambda step: 0.01 if step < 100 else 5.0, num_steps=2)
    mcmc = MCMC(kernel, 200, 10, num_chains=3, disable_progbar=True)
    with pytest.warns(
        UserWarning,
        match=r"Site 'x' of chain \d became NaN or infinite at step 1\d\d, with step_size=5: .*kept \d+ of 200",
    ):
        mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)["x"]
    assert 40 <= draws.shape[1] < 60
    assert draws.isfinite().all()
    assert mcmc.num_samples == draws.shape[1]


def test_divergence_before_there_are_draws():
    mcmc = MCMC(OSGHMC(quartic, step_size=50.0), 20, 10, disable_progbar=True)
    with pytest.raises(ArithmeticError, match=r"with step_size=50: use a smaller step_size"):
        mcmc.run()


def without_plate(y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(w, 0.5).expand([len(y)]).to_event(1), obs=y)


def test_a_likelihood_without_a_plate_is_noticed():
    with pytest.warns(UserWarning, match=r"Sites \['y'\] count the data of a batch as if there were no others"):
        sampled(without_plate, [DATA[:10], DATA[10:20]])


class Failing:
    """A loader whose disk is gone after so many batches."""

    def __init__(self, batches):
        self._left = batches

    def __iter__(self):
        while True:
            self._left -= 1
            if self._left < 0:
                raise OSError("the disk is gone")
            yield DATA[:10]


def test_an_error_hours_in_keeps_the_draws():
    mcmc = MCMC(SGLD(on_batches, step_size=1e-3), 50, 0, disable_progbar=True)
    with pytest.raises(OSError, match="the disk is gone") as error:
        mcmc.run(data_loader=Failing(30))
    kept = len(mcmc.get_samples()["w"])
    assert 20 < kept <= 30
    assert error.value.__notes__ == [f"MCMC kept {kept} of 50 draws of each chain: get_samples() returns them."]


class Interrupting:
    """A loader in which someone presses Ctrl-C once."""

    def __init__(self):
        self._pressed = False

    def __len__(self):
        return 5

    def __iter__(self):
        for k in range(5):
            if k == 2 and not self._pressed:
                self._pressed = True
                raise KeyboardInterrupt
            yield DATA[10 * k : 10 * k + 10]


def test_a_run_continues_after_an_interrupt_in_the_loader():
    run, whole = (
        SGLD(on_batches, step_size=1e-3).prepare(2, 0, {"w": torch.zeros(2)}, data_loader=loader)
        for loader in (Interrupting(), [DATA[10 * k : 10 * k + 10] for k in range(5)])
    )
    made = 0
    while made < 12:
        try:
            run.advance()
            made += 1
        except KeyboardInterrupt:
            continue
    sites = [run.problem.batched.batches(k)["argument 0"] for k in range(7)]
    assert all(torch.equal(x, whole.problem.batched.batches(k)["argument 0"]) for k, x in enumerate(sites))
