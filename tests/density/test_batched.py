"""Energies and gradients of many chains are those of each, however many are computed together."""

import math

import numpy as np
import pytest
import scipy.special
import torch

from pyro_manifold.compiled import vectorisation
from pyro_manifold.density import BatchedPotential, value_and_gradient

DATA = torch.randn(20, 3, dtype=torch.float64)


def potential(sites):
    return ((DATA @ sites["w"]).sin() + sites["b"]).square().sum()


@pytest.mark.parametrize("chains", [1, 2, 6, 7])
def test_chains_in_parts_of_a_size_that_memory_keeps(chains, monkeypatch):
    sites = {"w": torch.randn(chains, 3), "b": torch.randn(chains)}
    calls = []
    whole = BatchedPotential(potential, sites)(sites)
    monkeypatch.setattr(vectorisation, "_LARGEST_KEPT_BLOCK", 3 * DATA.element_size() * DATA.numel())
    folded = vectorisation.folded_graph
    monkeypatch.setattr(
        vectorisation, "folded_graph", lambda *some, **more: calls.append(some) or folded(*some, **more)
    )
    in_parts = BatchedPotential(potential, sites)
    assert in_parts.graph.backend == "traced"
    assert len(calls) == (0 if chains == 1 else 1)  # for three chains together; of one there is a graph already
    energy, gradient = in_parts(sites)
    torch.testing.assert_close(energy, whole[0])
    for name, value in gradient.items():
        torch.testing.assert_close(value, whole[1][name])


def test_on_batches_of_each_chain_in_parts(monkeypatch):
    monkeypatch.setattr(vectorisation, "_LARGEST_KEPT_BLOCK", 2 * 5 * DATA.element_size())
    sites, rows = {"w": torch.randn(5, 3)}, {"rows": torch.randint(20, (5, 5))}

    def on_batch(sites, batch):
        return (DATA[batch["rows"]] @ sites["w"]).exp().sum()

    for own in (True, False):
        batch = rows if own else {"rows": rows["rows"][0]}
        found = BatchedPotential(on_batch, sites, batch=batch, own_batches=own)
        energy, _ = found(sites, batch)
        each = [on_batch({"w": w}, {"rows": rows["rows"][k if own else 0]}) for k, w in enumerate(sites["w"])]
        torch.testing.assert_close(energy, torch.stack(each))


def staircase(sites):
    """A density that has no gradient."""
    return torch.floor(sites["x"].detach() * 4).square().sum()


def staircase_by_numpy(sites):
    return torch.as_tensor(np.floor(sites["x"].detach().numpy() * 4)).square().sum()


@pytest.mark.parametrize(("potential", "form"), [(staircase, "traced"), (staircase_by_numpy, "loop")])
def test_energies_without_gradients(potential, form):
    x = torch.randn(3, 2)
    energies = BatchedPotential(potential, {"x": x}, gradient=False, warn=False)
    assert energies.graph.backend == form
    energy, gradient = energies({"x": x})
    assert gradient == {}
    torch.testing.assert_close(energy, torch.floor(x * 4).square().sum(1))


def imputed(sites):
    whole = LINE.clone()
    whole[[1, 4]] = sites["x"]
    return (whole.diff() ** 2).sum()


def in_slices(sites):
    steps = torch.zeros(5)
    steps[1:-1] = sites["x"].sum()
    steps[::2] += sites["x"][0]
    steps.view(-1)[::3] += 1
    return (steps.cumsum(0) - 1).square().sum()


def scattered(sites):
    sums = torch.zeros(3).scatter_add_(0, torch.tensor([2, 2]), sites["x"])
    sums.masked_fill_(torch.tensor([True, False, False]), 2.0)
    return (sums - 1).square().sum()


LINE = torch.arange(6, dtype=torch.float64)


@pytest.mark.parametrize("potential", [imputed, in_slices, scattered])
def test_what_a_model_writes_in_place_may_differ_from_chain_to_chain(potential):
    x = torch.randn(3, 2)
    batched = BatchedPotential(potential, {"x": x})
    assert batched.graph.backend == "traced"
    energy, gradient = batched({"x": x})
    for row, found, slope in zip(x, energy, gradient["x"], strict=True):
        leaf = row.clone().requires_grad_()
        expected = potential({"x": leaf})
        torch.testing.assert_close(found, expected.detach())
        torch.testing.assert_close(slope, torch.autograd.grad(expected, leaf)[0])


@pytest.mark.parametrize("strange", [False, True])
def test_parameters_of_the_model_keep_no_iterations_in_memory(strange):
    """A tensor that requires a gradient would keep its whole graph."""
    layer = torch.nn.Linear(2, 2)

    def potential(sites):
        values = layer(sites["x"])
        if strange:  # what no graph can hold
            values = (values + torch.zeros(2).as_subclass(Strange)).as_subclass(torch.Tensor)
        return values.square().sum()

    x = torch.randn(3, 2)
    batched = BatchedPotential(potential, {"x": x}, warn=False)
    assert batched.graph.backend == ("vmapped" if strange else "traced")
    energy, gradient = batched({"x": x})
    assert not energy.requires_grad
    assert not gradient["x"].requires_grad


class Strange(torch.Tensor):
    pass


def test_a_probit_likelihood_is_not_a_loop_over_chains():
    """torch.vmap has no rule for log_ndtr: it would loop over the chains, and warn each time."""
    functorch = torch._C._functorch
    sites = {"w": 3 * torch.randn(5, 3)}

    def probit(sites):
        return -torch.special.log_ndtr(DATA @ sites["w"]).sum()

    functorch._set_vmap_fallback_enabled(False)
    try:
        found = BatchedPotential(probit, sites)
        energy, gradient = found(sites)
    finally:
        functorch._set_vmap_fallback_enabled(True)
    assert found.graph.backend == "traced"
    at = sites["w"] @ DATA.T
    below = torch.as_tensor(scipy.special.log_ndtr(at.numpy()))
    torch.testing.assert_close(energy, -below.sum(-1))
    ratios = torch.exp(-at.square() / 2 - math.log(2 * math.pi) / 2 - below)
    torch.testing.assert_close(gradient["w"], -ratios @ DATA)


def test_inference_mode_is_refused():
    """Each gradient would be 0 there; in no_grad they are recorded all the same."""
    sites = {"x": torch.tensor([0.5, 1.0])}

    def potential(sites):
        return sites["x"].square().sum()

    with torch.inference_mode(), pytest.raises(ValueError, match=r"inside of torch.inference_mode\(\): run outside"):
        value_and_gradient(potential, sites)
    with torch.no_grad():
        assert value_and_gradient(potential, sites)[1]["x"].tolist() == [1.0, 2.0]


def test_operators_without_a_batching_rule_are_silent(capfd):
    """Torch writes such warnings in C++, to the error stream."""

    def potential(sites):
        x = sites["x"].clone()
        x.clamp_(min=torch.tensor([-1.0, 0.0]))
        return x.logsumexp(0) + torch.bucketize(x.detach(), torch.tensor([0.0, 1.0])).sum()

    sites = {"x": torch.randn(4, 2)}
    density = BatchedPotential(potential, sites, {})
    for _ in range(3):
        density(sites)
    assert capfd.readouterr().err == ""
