"""Networks ranked against long chains: every way has a row; other data and chains that disagree are refused."""

import json

import numpy as np
import pyro
import pytest
import torch

from benchmarks.accuracy.networks import quality, reference, scores
from benchmarks.accuracy.networks.small_network import bayesian_network, patterns, plain_network
from benchmarks.image_classifier import posterior
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A reference of generated images, made by the command."""
    path = tmp_path_factory.mktemp("reference") / "short.npz"
    torch.set_default_dtype(torch.float64)
    reference.main(["--short", "--chains", "4", "--draws", "60", "--warmup", "40", "--out", str(path)])
    return path


@pytest.fixture(scope="module")
def kept_orthogonal(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "orthogonal.npz"
    torch.set_default_dtype(torch.float64)
    lengths = ["--chains", "4", "--draws", "60", "--warmup", "40"]
    reference.main(["--short", "--orthogonal", *lengths, "--out", str(path)])
    return path


@pytest.mark.long
def test_a_reference_is_kept_with_what_made_it_and_without_images(kept):
    found, about = reference.load(kept)
    data = patterns()
    assert found.shape == (3, len(data.tested_labels), 10)
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:2], dtype=torch.float32))
    assert about["fingerprint"] == data.fingerprint
    assert (about["chains"], about["draws"]) == (4, 60)
    assert 0 < about["halves"]["total_variation"] < 0.5
    with np.load(kept) as arrays:
        assert set(arrays) == {"probabilities", "about"}


def test_chains_that_disagree_are_refused(tmp_path):
    about = {"r_hat": {"tested": [1.0, 1.2, 3.0]}}
    with pytest.raises(RuntimeError, match=r"up to 1\.2"):
        reference.save(tmp_path / "bad.npz", None, about)
    about["r_hat"]["tested"][1] = float("nan")  # one chain
    with pytest.raises(RuntimeError, match="disagree"):
        reference.save(tmp_path / "bad.npz", None, about)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_every_way_has_a_row(kept, kept_orthogonal, capsys):
    quality.main(["--short", "--reference", str(kept), "--orthogonal-reference", str(kept_orthogonal)])
    first, second = capsys.readouterr().out.split("\n### ")
    rows = [line.strip("| ").split(" | ") for line in first.splitlines() if line.startswith("|")][2:]
    names = [row[0] for row in rows]
    assert names[0] == "reference"
    ways = {"SGLD, cycles", "PSGLD, constant", "SGHMC, temperature 0", "OHMC", "one network, Adam"}
    assert ways < set(names)
    assert len(names) == 12
    at = quality.COLUMNS.index("total variation")
    distances = [float(row[at]) for row in rows if len(row) > at]
    assert distances[1:] == sorted(distances[1:]), "ranked"
    assert second.count("OSGHMC") == 3
    assert second.count("masses adapted") == 1


@pytest.mark.long
def test_a_reference_of_other_images_is_refused(kept, tmp_path, capsys):
    found, about = reference.load(kept)
    other = tmp_path / "other.npz"
    np.savez_compressed(other, probabilities=found.numpy(), about=np.array(json.dumps(about | {"fingerprint": "0"})))
    with pytest.raises(SystemExit):
        quality.main(["--short", "--reference", str(other)])
    assert "other images" in capsys.readouterr().err


def test_without_data_the_commands_say_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYRO_MANIFOLD_DATA", str(tmp_path))
    for main in (quality.main, reference.main):
        with pytest.raises(SystemExit) as refused:
            main([])
        # argparse prints the sentence and exits with 2; other exits carry it, and Python prints it.
        assert "--data" in f"{refused.value} {capsys.readouterr().err}"


def test_members_of_an_ensemble_and_chains_have_the_same_density():
    """Adam's loss on all data is the potential energy by the number of cases, up to a constant."""
    data, network = patterns(), plain_network(4).double()
    potential = SGHMC(posterior(bayesian_network(4), data.images, data.labels), step_size=1e-3).prepare(1, 0, None)
    sites = {name: value[0] for name, value in potential.sites.items()}
    network.load_state_dict(sites)
    loss = torch.nn.functional.cross_entropy(network(data.images), data.labels, reduction="sum")
    prior = 0.5 * sum(parameter.square().sum() for parameter in network.parameters())
    gradients = torch.autograd.grad(loss + prior, list(network.parameters()))
    _, slopes = potential.problem.potential(potential.state.position)
    slopes = potential.problem.layout.unpack(slopes)
    for (name, _), gradient in zip(network.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(slopes[name][0], gradient)


def test_osghmc_without_orthonormal_matrices_is_sghmc():
    """Why it has no row of its own."""
    data, draws = patterns(), []
    for kernel in (SGHMC, OSGHMC):
        pyro.set_rng_seed(0)
        made = kernel(posterior(bayesian_network(4), data.images, data.labels, 16), step_size=0.02, num_steps=5)
        mcmc = MCMC(made, 2, 0, disable_progbar=True)
        mcmc.run()
        draws.append(mcmc.get_samples()["2.weight"])
    torch.testing.assert_close(*draws)  # of two kernels, whose operations may be rounded differently


def test_scores_are_those_of_scikit_learn_and_by_hand():
    metrics = pytest.importorskip("sklearn.metrics")
    p, q, y = torch.randn(200, 5).softmax(-1), torch.randn(200, 5).softmax(-1), torch.randint(5, (200,))
    assert float(scores.agreement(p, q)) == pytest.approx(metrics.accuracy_score(q.argmax(-1), p.argmax(-1)))
    assert float(scores.negative_log_likelihood(p, y)) == pytest.approx(metrics.log_loss(y, p, labels=range(5)))
    two, binary = p[:, :2] / p[:, :2].sum(-1, keepdim=True), y % 2
    assert float(scores.brier(two, binary)) == pytest.approx(2 * metrics.brier_score_loss(binary, two[:, 1]))
    inside, outside = scores.entropy(p), (2 * scores.entropy(q)).round(decimals=1)
    truth = torch.cat([torch.zeros(200), torch.ones(200)])
    expected = metrics.roc_auc_score(truth, torch.cat([inside, outside]))
    assert float(scores.auroc(inside, outside)) == pytest.approx(expected)
    assert scores.total_variation(torch.eye(2), torch.eye(2).flip(0)) == 1
    # Bins (1/4, 1/2] and (1/2, 3/4]: |1 − 1/2| and |0 − 5/8|, half of the examples in each.
    halves = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.625, 0.375], [0.625, 0.375]])
    assert float(scores.calibration_error(halves, torch.tensor([0, 0, 1, 1]), bins=4)) == pytest.approx(0.5625)
