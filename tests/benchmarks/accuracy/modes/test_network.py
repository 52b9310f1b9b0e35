"""Chains of a network that begin at particles, on few nodes."""

import numpy as np
import pytest
import torch

from benchmarks.accuracy.modes import network
from benchmarks.problems.network import NETWORK, eigenmodel
from pyro_manifold.distributions import StiefelUniform

NODES = 8


class Particles:
    """Random ones in place of those that SMC finds, which takes it a minute."""

    log_evidence = -1.0

    def __init__(self, kernel, *_, **__):
        pass

    def run(self, *data):
        assert data[-1] == NODES

    def initial_params(self, count):
        vectors = StiefelUniform(NODES, 3).sample((count,))
        return {"vectors": vectors, "values": torch.randn(count, 3), "intercept": torch.zeros(count)}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of runs that are too short for what they say
def test_every_seed_has_a_row(monkeypatch, capsys):
    links = np.triu(np.random.default_rng(0).random((NODES, NODES)) < 0.3, 1).astype(float)
    monkeypatch.setattr(network, "SMC", Particles)
    monkeypatch.setattr(network, "links", lambda: links + links.T)
    monkeypatch.setattr(network, "PROBLEMS", {NETWORK: eigenmodel(NETWORK, links + links.T, (0, 5))})
    network.main(["--seeds", "1", "--particles", "16", "--warmup", "20", "--draws", "4"])
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert len(row) == len(network.COLUMNS)
    assert row[2] == "-1.0"
    assert len(row[-1].split()) == 4


def test_missing_data_are_named(monkeypatch, capsys):
    monkeypatch.setattr(network, "links", lambda: None)
    network.main([])
    assert "protein_network" in capsys.readouterr().out
