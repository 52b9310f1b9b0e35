"""Advice on divergences, for draws whose scale is near 0 at them, or is not."""

import re
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.reparam import LocScaleReparam

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import divergence_advice, summarise
from pyro_manifold.infer import MCMC, OHMC

CHAIN = 100  # draws of each of four chains
REPARAM = 'poutine.reparam(model, {"x": LocScaleReparam(0.0)})'


def effects(family=dist.Normal):
    """Effects of eight groups, with a spread of their own."""
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    with pyro.plate("groups", 8):
        x = pyro.sample("x", family(0.0, spread))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(8))


def shrinkage():
    """The scale is a function of two sites."""
    common = pyro.sample("common", dist.HalfCauchy(1.0))
    own = pyro.sample("own", dist.HalfCauchy(torch.ones(8)).to_event(1))
    x = pyro.sample("x", dist.Normal(torch.zeros(8), common * own).to_event(1))
    pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.zeros(8))


def correlated():
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    matrix = torch.eye(2) * spread + torch.tensor([[0.0, 0.0], [0.1, 0.0]])
    pyro.sample("x", dist.MultivariateNormal(torch.zeros(2), scale_tril=matrix))


def noise():
    mean, spread = pyro.sample("mean", dist.Normal(0.0, 1.0)), pyro.sample("spread", dist.HalfNormal(1.0))
    pyro.sample("y", dist.Normal(mean, spread), obs=torch.tensor(1.0))


def draws_of(model, count=CHAIN):
    """Draws from the prior, as four chains."""
    drawn = [pyro.poutine.trace(model).get_trace().nodes for _ in range(4 * count)]
    names = [name for name, site in drawn[0].items() if site["type"] == "sample" and not site["is_observed"]]
    names = [name for name in names if name != "groups"]
    return {name: torch.stack([nodes[name]["value"] for nodes in drawn]).unflatten(0, (4, count)) for name in names}


def lowest(scale, count):
    """The draws with the smallest scales."""
    return scale <= scale.flatten().kthvalue(count).values


def test_the_reparametrisation_that_is_advised_runs():
    names = {"poutine": pyro.poutine, "LocScaleReparam": LocScaleReparam, "model": effects}
    nodes = pyro.poutine.trace(eval(REPARAM, names)).get_trace().nodes
    assert "x_decentered" in nodes


def advice(model, samples, diverging):
    return divergence_advice(Program(model), samples, diverging)


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_scale_near_0_is_named_with_the_form_that_mends_it(count):
    samples = draws_of(effects)
    said = advice(effects, samples, lowest(samples["spread"], count))
    assert said.startswith(
        "At divergences the scale of the site `x`, which `spread` sets, is near 0: on average below "
    )
    share = 100 - 50 * count / (4 * CHAIN)
    assert f"below that of {f'{share:.0f}' if share < 99.5 else 'more than 99'} % of the draws" in said
    assert "may be missing from the draws, even if R-hat is good" in said
    assert REPARAM in said


def test_other_causes_are_possible_where_the_scale_is_not_near_0():
    samples = draws_of(effects)
    highest = ~lowest(samples["spread"], 380)
    one_in_the_middle = lowest(samples["spread"], 60) & ~lowest(samples["spread"], 59)
    for diverging in (highest, one_in_the_middle, torch.rand(4, CHAIN) < 0.1, None):
        said = advice(effects, samples, diverging)
        assert said.startswith("Divergences are steps that are too long")
        assert "may be missing from the draws, even if R-hat is good" in said
        assert "or a scale is near 0 (that of `x` depends on `spread`), where the non-centred form may help" in said
        assert "target_accept_prob" in said


def test_forms_that_a_handler_does_not_write_and_data_have_other_remedies():
    samples = draws_of(lambda: effects(dist.LogNormal))
    said = advice(lambda: effects(dist.LogNormal), samples, lowest(samples["spread"], 4))
    assert "`x`, which `spread` sets, is near 0" in said
    assert "non-centred" in said
    assert "LocScaleReparam" not in said
    samples = draws_of(correlated)
    assert "LocScaleReparam" not in advice(correlated, samples, lowest(samples["spread"], 4))
    samples = draws_of(noise)
    said = advice(noise, samples, lowest(samples["spread"], 4))
    assert "the scale of the observed site `y`, which `spread` sets, is near 0" in said
    assert "Give `spread` a prior that avoids a scale of 0" in said
    assert "non-centred" not in said


def test_a_scale_of_two_sites_is_that_of_both():
    samples = draws_of(shrinkage)
    said = advice(shrinkage, samples, lowest(samples["common"] * samples["own"].amin(-1), 10))
    assert "`x`, which `common` and `own` set, is near 0" in said


def test_models_that_cannot_be_run_have_the_general_advice():
    def broken():
        raise RuntimeError("no")

    samples = {"x": torch.randn(4, 10)}
    for model in (None, broken):
        said = divergence_advice(Program(model), samples, torch.ones(4, 10, dtype=torch.bool))
        assert "or a scale is near 0; then raise target_accept_prob" in said


def test_a_summary_has_the_advice(capsys):
    mcmc = MCMC(OHMC(effects), 50, 20, num_chains=4, disable_progbar=True)
    mcmc.run()
    diverging = lowest(mcmc.get_samples(group_by_chain=True)["spread"], 10)
    statistics = {**mcmc.posterior.statistics, "diverging": diverging}
    print(summarise(replace(mcmc.posterior, statistics=statistics), max_rows=1))
    text = capsys.readouterr().out
    sentence = r"Number of divergences: \d+\nAt divergences the scale of the site `x`, which `spread` sets, is near 0"
    assert re.search(sentence, text)
    assert "SMC" not in text
