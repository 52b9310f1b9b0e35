"""Energies and gradients of many chains are those of each, however many are computed together."""

import pytest
import torch

from pyro_manifold.target import batched
from pyro_manifold.target.batched import BatchedPotential

DATA = torch.randn(20, 3, dtype=torch.float64)


def potential(sites):
    return ((DATA @ sites["w"]).sin() + sites["b"]).square().sum()


@pytest.mark.parametrize("chains", [1, 2, 6, 7])
def test_chains_in_parts_of_a_size_that_memory_keeps(chains, monkeypatch):
    sites = {"w": torch.randn(chains, 3), "b": torch.randn(chains)}
    calls = []
    whole = BatchedPotential(potential, sites)(sites)
    monkeypatch.setattr(batched, "_MAPPED_ANEW", 3 * DATA.element_size() * DATA.numel())
    monkeypatch.setattr(batched, "transpose_narrow_products", lambda graph: calls.append(graph) or graph)
    in_parts = BatchedPotential(potential, sites)
    assert in_parts.graph.form == "traced"
    assert len(calls) == (2 if chains == 7 else 1)  # one graph for three chains together, one for the rest
    energy, gradient = in_parts(sites)
    torch.testing.assert_close(energy, whole[0])
    for name, value in gradient.items():
        torch.testing.assert_close(value, whole[1][name])


def test_on_batches_of_each_chain_in_parts(monkeypatch):
    monkeypatch.setattr(batched, "_MAPPED_ANEW", 2 * 5 * DATA.element_size())
    sites, rows = {"w": torch.randn(5, 3)}, {"rows": torch.randint(20, (5, 5))}

    def on_batch(sites, batch):
        return (DATA[batch["rows"]] @ sites["w"]).exp().sum()

    for own in (True, False):
        batch = rows if own else {"rows": rows["rows"][0]}
        found = BatchedPotential(on_batch, sites, batch=batch, own_batches=own)
        energy, _ = found(sites, batch)
        each = [on_batch({"w": w}, {"rows": rows["rows"][k if own else 0]}) for k, w in enumerate(sites["w"])]
        torch.testing.assert_close(energy, torch.stack(each))
