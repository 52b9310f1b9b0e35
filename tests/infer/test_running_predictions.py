"""Means and variances of predictions while chains run, against the draws of the same run."""

import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.stats import gelman_rubin
from torch import nn

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, RunningPredictions
from pyro_manifold.infer.mcmc.running import Iteration, sample
from pyro_manifold.nn import to_bayesian_

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
Y = (X[:, 0] > 0).long()
NEW = X[:5] + 0.1


def model(x, y=None):
    """Logits of two classes; the scale is a site that is unconstrained while sampling."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    logits = scale * x @ U
    with pyro.plate("cases", len(x)):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)
    return logits


def probabilities(logits):
    return logits.softmax(-1)


def expected(samples, x=NEW):
    """Predictions at draws ``(chains, draws, ...)``."""
    return probabilities(samples["scale"][..., None, None] * (x @ samples["U"]))


def run(predictions, the_model=model, num_samples=30, num_chains=3, **options):
    kernel = OHMC(the_model, num_steps=4)
    chains = {"num_chains": num_chains, "consumers": [predictions], "disable_progbar": True}
    mcmc = MCMC(kernel, num_samples, 10, **chains, **options)
    mcmc.run(X, Y)
    return mcmc


def fed(predictions, draws=None, chains=3):
    """Draws ``(chains, draws, ...)`` that the predictions were given one by one, as a run gives them."""
    if draws is None:
        draws = {"U": StiefelUniform(3, 2).sample((chains, 30)), "scale": dist.LogNormal(0.0, 1.0).sample((chains, 30))}
    for k in range(len(next(iter(draws.values()))[0])):
        sites = {name: value[:, k] for name, value in draws.items()}
        predictions(Iteration("Sample", k, k, sites, {}, lambda sites: sites))
    return draws


def check(predictions, found):
    """Against predictions at all draws, ``(chains, draws, ...)``."""
    assert predictions.draws == found.shape[1]
    torch.testing.assert_close(predictions.chain_means, found.mean(1))
    torch.testing.assert_close(predictions.chain_variances, found.var(1))
    torch.testing.assert_close(predictions.mean, found.flatten(0, 1).mean(0))
    torch.testing.assert_close(predictions.variance, found.flatten(0, 1).var(0))


def test_they_are_those_of_the_draws():
    predictions = RunningPredictions(model, NEW, statistic=probabilities)
    found = expected(run(predictions, num_samples=42, thinning=4).get_samples(group_by_chain=True))
    assert found.shape == (3, 10, 5, 2)
    check(predictions, found)
    assert predictions._predict.backend == "traced"
    torch.testing.assert_close(predictions.r_hat, gelman_rubin(found, 0, 1))


def test_a_single_chain_has_no_r_hat():
    predictions = RunningPredictions(model, NEW, statistic=probabilities)
    check(predictions, expected(fed(predictions, chains=1)))
    assert predictions.r_hat.isnan().all()


@pytest.mark.long
def test_no_draw_need_be_kept_and_all_chains_are_run_at_once():
    runs = []

    def counted(x, y=None):
        runs.append(1)
        return model(x, y)

    predictions = RunningPredictions(counted, NEW, statistic=probabilities)
    mcmc = run(predictions, num_samples=60, num_chains=8, save_params=[])
    assert mcmc.get_samples() == {}
    assert predictions.draws == 60
    assert len(runs) < 20
    assert predictions.mean.sum(-1).allclose(torch.ones(5))


def test_what_is_returned_may_be_anything_that_the_statistic_maps():
    predictions = RunningPredictions(
        lambda x: {"logits": model(x)}, NEW, statistic=lambda returned: returned["logits"].argmax(-1) == 1
    )
    found = expected(fed(predictions)).argmax(-1) == 1
    check(predictions, found.double())


def test_a_part_of_the_model_will_do():
    """The temperature is a site of the sampler's model alone."""
    network = to_bayesian_(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), gain=1.0)
    predictions = RunningPredictions(network, NEW)
    shapes = {"0.bias": (4,), "2.weight": (2, 4), "2.bias": (2,), "temperature": ()}
    draws = {name: torch.randn(3, 30, *shape) for name, shape in shapes.items()}
    draws["0.basis"] = StiefelUniform(4, 3).sample((3, 30))
    fed(predictions, draws)
    hidden = torch.tanh(NEW @ draws["0.basis"].mT + draws["0.bias"].unsqueeze(-2))
    check(predictions, hidden @ draws["2.weight"].mT + draws["2.bias"].unsqueeze(-2))
    assert predictions._predict.backend == "traced"


def test_plates_that_subsample_do_not_matter():
    def subsampled(x):
        logits = model(x)
        with pyro.plate("some", len(x), subsample_size=2) as indices:
            pyro.sample("again", dist.Normal(logits[indices, 0], 1.0))
        return logits

    predictions = RunningPredictions(subsampled, NEW, statistic=probabilities)
    check(predictions, expected(fed(predictions)))
    assert predictions._predict.backend == "traced"


def test_what_is_written_in_place_is_not_lost():
    def in_place(x):
        logits, table = model(x), torch.zeros(len(x) + 1, 2)
        rows = table[: len(x)]
        rows.copy_(logits)
        return table

    predictions = RunningPredictions(in_place, NEW, statistic=lambda table: table[:-1].softmax(-1))
    check(predictions, expected(fed(predictions)))
    assert predictions._predict.backend == "traced"


def test_large_means_do_not_cancel():
    predictions = RunningPredictions(model, NEW, statistic=lambda logits: 1e8 + logits.softmax(-1))
    found = expected(fed(predictions))
    torch.testing.assert_close(predictions.variance, found.flatten(0, 1).var(0), rtol=1e-5, atol=1e-10)


def test_a_model_that_cannot_be_traced_is_run_chain_by_chain():
    def branching(x):
        logits = model(x)
        return logits if float(logits[0, 0].detach()) > 0 else 2 * logits

    predictions = RunningPredictions(branching, NEW, statistic=probabilities)
    with pytest.warns(UserWarning, match="the model cannot be traced .* continuing chain by chain, which is slow"):
        draws = fed(predictions)
    logits = expected(draws).log()
    first = (draws["scale"][..., None, None] * (NEW @ draws["U"]))[..., :1, :1]
    check(predictions, torch.where(first > 0, logits, 2 * logits).softmax(-1))


def test_a_branch_that_the_first_draw_did_not_show_is_found():
    predictions = RunningPredictions(
        lambda x: pyro.sample("x", dist.Normal(0.0, 1.0)), None, statistic=lambda x: x if x.detach().numpy() < 9 else -x
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions(draw(0, torch.randn(2)))
    assert predictions._predict.backend == "traced"
    with pytest.warns(UserWarning, match="at draw 1 the traced model differs from the model"):
        predictions(draw(1, torch.full((2,), 10.0)))
    with_later = torch.full((2,), 11.0)
    predictions(draw(2, with_later))
    assert predictions.draws == 3
    assert (predictions.mean < 0).all()


def draw(number, x):
    return Iteration("Sample", number, number, {"x": x}, {})


def test_random_predictions_are_reported():
    def noisy(x):
        return model(x) + pyro.sample("noise", dist.Normal(0.0, 1.0))

    with pytest.warns(UserWarning, match=r"not the same at each call with one draw; they depend on \['noise', 'y'\]"):
        fed(RunningPredictions(noisy, NEW))
    with pytest.warns(UserWarning, match="such as dropout"):
        fed(RunningPredictions(lambda x: nn.functional.dropout(model(x, Y[:5])), NEW))


def test_predictions_that_are_not_finite_are_named_and_not_taken_in():
    predictions = RunningPredictions(lambda: pyro.sample("x", dist.Normal(0.0, 1.0)))
    predictions(draw(0, torch.tensor([1.0, 2.0, 3.0])))
    with pytest.raises(ValueError, match=r"predictions of chains 0 and 2 at draw 1 are not finite: choose a statistic"):
        predictions(draw(1, torch.tensor([torch.inf, 2.0, torch.nan])))
    assert predictions.draws == 1
    assert torch.equal(predictions.chain_means, torch.tensor([1.0, 2.0, 3.0]))


def test_a_long_run_goes_on_in_another_process():
    """The run and its predictions, both by their state; or the predictions as a pickle."""
    whole = RunningPredictions(model, NEW, statistic=probabilities)
    kernel = OHMC(model, num_steps=4)
    first = kernel.prepare(3, 5, None, X, Y)
    sample(first, 10, 1, [whole])
    resumed = RunningPredictions(model, NEW, statistic=probabilities)
    resumed.load_state_dict(whole.state_dict())
    travelled = pickle.loads(pickle.dumps(whole))
    second = OHMC(model, num_steps=4).prepare(3, 5, None, X, Y)
    second.load_state_dict(first.state_dict())
    sample(first, 20, 1, [whole])
    assert sample(second, 20, 1, [resumed, travelled]).draws == 10
    for each in (resumed, travelled):
        assert each.draws == 20
        torch.testing.assert_close(each.mean, whole.mean)
        torch.testing.assert_close(each.chain_variances, whole.chain_variances)


def test_values_of_an_iteration_are_as_the_model_has_them():
    seen = []
    mcmc = run(seen.append)
    kept = [iteration.values for iteration in seen if iteration.kept]
    draws = mcmc.get_samples(group_by_chain=True)
    for name in ("U", "scale"):
        torch.testing.assert_close(torch.stack([values[name] for values in kept], 1), draws[name], rtol=1e-12, atol=0)
    assert seen[0].values is seen[0].values
    assert not torch.equal(seen[0].values["scale"], seen[0].sites["scale"])


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="model=3, expected a function"):
        RunningPredictions(3)
    with pytest.raises(ValueError, match="statistic='mean', expected a function"):
        RunningPredictions(model, statistic="mean")
    with pytest.raises(ValueError, match="there are no draws yet"):
        RunningPredictions(model, X).mean  # noqa: B018
    with pytest.raises(ValueError, match="the model returns a NoneType, expected a tensor"):
        fed(RunningPredictions(lambda: None))
    with pytest.raises(ValueError, match="statistic returns a float, expected a tensor"):
        fed(RunningPredictions(model, NEW, statistic=lambda logits: 1.0))
    predictions = RunningPredictions(model, NEW)
    fed(predictions)
    with pytest.raises(ValueError, match=r"shape \(2, 5, 2\), expected \(3, 5, 2\)"):
        fed(predictions, chains=2)
    with pytest.raises(ValueError, match=r"lacks \['means', 'squares'\]"):
        predictions.load_state_dict({"draws": 3})
    with pytest.raises(ValueError, match="is damaged"):
        predictions.load_state_dict({**predictions.state_dict(), "means": torch.zeros(2)})
