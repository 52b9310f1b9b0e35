"""The native recurrence of the music program, and runs that are stored and go on."""

import os
import shlex

import numpy as np
import pytest
import scipy.io
import torch

from benchmarks.papers.nnsghmc import gru, music, music_samplers
from pyro_manifold.infer import SGHMC
from tests.infer.mcmc.compilers import native_code
from tests.parameters import long_except

pytestmark = native_code
UNITS = 5


@pytest.fixture
def data(monkeypatch):
    torch.set_default_dtype(torch.float32)
    return music_samplers.pieces(None, "Nottingham", "traindata")


def notes_of(data, row):
    first, last = data.starts[row : row + 2].tolist()
    return data.notes[first:last]


def by_autograd(weights, notes):
    """The same by torch's operators."""
    heard, heard_bias, state, state_bias, out, out_bias = weights
    played = notes.to(out.dtype)
    before = torch.nn.functional.pad(played[:-1], (0, 0, 1, 0))
    net = torch.nn.GRU(gru.NOTES, UNITS)
    names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")  # its gates have the same order
    parameters = dict(zip(names, (heard, heard_bias, state, state_bias), strict=True))
    states, _ = torch.func.functional_call(net, parameters, (before,))
    logits = states @ out.T + out_bias
    return (played * logits - torch.nn.functional.softplus(logits)).sum(1).mean()


def weights_of(chains):
    torch.manual_seed(0)
    shapes = [(3 * UNITS, gru.NOTES), (3 * UNITS,), (3 * UNITS, UNITS), (3 * UNITS,), (gru.NOTES, UNITS), (gru.NOTES,)]
    return [torch.randn(chains, *shape) / 2 for shape in shapes]


def test_value_and_gradient_are_those_of_autograd(data):
    weights = [x[0].requires_grad_() for x in weights_of(1)]
    for row in range(3):
        found = gru.mean_likelihood(weights, *data, torch.tensor([row]))
        expected = by_autograd(weights, notes_of(data, row))
        torch.testing.assert_close(found, expected)
        slopes = torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights)
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_chains_have_pieces_of_their_own(data):
    weights, rows = weights_of(3), torch.tensor([[0], [4], [2]])

    def one(row, *weights):
        return gru.likelihood([x.unsqueeze(0) for x in weights], *data, row)

    value, *slopes = (x.squeeze(1) for x in torch.func.vmap(one)(rows, *weights))
    for chain, row in enumerate(rows.flatten()):
        leaves = [x[chain].requires_grad_() for x in weights]
        expected = by_autograd(leaves, notes_of(data, row))
        torch.testing.assert_close(value[chain], expected.detach())
        for found, right in zip(slopes, torch.autograd.grad(expected, leaves), strict=True):
            torch.testing.assert_close(found[chain], right, rtol=1e-4, atol=1e-5)


def test_pieces_of_a_file_that_is_stored_by_columns(tmp_path, data):
    generated = np.random.default_rng(0).random((2, 6, gru.NOTES)) < 0.3
    pieces = np.empty((1, 2), dtype=object)
    pieces[0] = list(generated.astype(float))
    scipy.io.savemat(tmp_path / "Nottingham.mat", {"traindata": pieces})
    read = music_samplers.pieces(tmp_path, "Nottingham", "traindata")
    assert read.starts.tolist() == [0, 6, 12]
    weights = [x[0] for x in weights_of(1)]
    for row in range(2):
        found = gru.mean_likelihood(weights, *read, torch.tensor([row]))
        torch.testing.assert_close(found, by_autograd(weights, torch.tensor(generated[row])))
    with pytest.raises(ValueError, match="contiguous"):
        gru.mean_likelihood(weights, read.notes.T.contiguous().T, read.starts, torch.tensor([0]))


def test_the_density_of_a_kernel_is_a_graph(data):
    chains = music_samplers.Chains(SGHMC, UNITS, data, 2, 0, step_size=1e-3)
    assert chains._run.backends["density"] == "traced"


def test_the_likelihood_of_each_time(data):
    weights = weights_of(2)
    each = music_samplers.likelihoods(weights, data)
    assert each.shape == (2, len(data.notes))
    for chain in range(2):
        first = each[chain, : data.starts[1]].mean()
        torch.testing.assert_close(first, by_autograd([x[chain] for x in weights], notes_of(data, 0)))


def test_the_curve_averages_the_later_half():
    each = torch.tensor([[[-9.0]], [[-1.0]], [[-3.0]]])
    found = music.curve(each).flatten()
    late = -torch.tensor([-1.0, -3.0]).exp().mean().log()
    torch.testing.assert_close(found, torch.stack([torch.tensor(9.0), torch.tensor(1.0), late]))


@pytest.mark.long
def test_a_sampler_of_music(tmp_path, capsys):
    path, figure = tmp_path / "sampler.npz", tmp_path / "curves.png"
    options = f"--short --units {UNITS} --store {tmp_path / 'store'} --chains 2 --epochs 2 --collection Nottingham"
    music.main(shlex.split(f"--short --train {path} --rounds 1 --units 8 --training-chains 4"))
    music.main(shlex.split(f"{options} --sampler {path} --samplers NNSGHMC SGHMC --offset 0.5"))
    music.main(shlex.split(f"{options} --figure {figure}"))
    assert "| Nottingham | NNSGHMC |" in capsys.readouterr().out
    assert figure.exists()


@pytest.mark.parametrize("sampler", long_except(["SGHMC", "NNSGHMC", "Adam", "Santa"], "Adam"))
def test_a_stored_run_continues(sampler, tmp_path, capsys, monkeypatch):
    def made(folder):
        command = f"--short --sampler networks --units {UNITS} --chains 2 --collection Nottingham --epochs 4"
        music.main(shlex.split(f"{command} --samplers {sampler} --store {tmp_path / folder}"))
        (file,) = (tmp_path / folder).glob("*.pt")
        return torch.stack(torch.load(file, weights_only=True)["likelihoods"])

    whole, stored, replace = made("whole"), [], os.replace

    def replaced(*paths):
        replace(*paths)
        stored.append(paths)
        if len(stored) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        made("parts")
    assert torch.equal(made("parts"), whole)
    assert len(stored) == 4
    assert bool((whole[-1].mean(1) > whole[0].mean(1)).all())
    assert f"| Nottingham | {sampler} |" in capsys.readouterr().out
