"""CIFAR-10: files are read as they are written, images are moved and not changed, a thin network learns."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.papers.ohmc import vgg
from pyro_manifold.nn import OrthogonalConv2d


def test_reads_the_format_of_cifar10(tmp_path):
    vgg.generate(tmp_path, cases=3)
    images, labels = vgg.cifar10(tmp_path, "train")
    assert images.shape == (15, 3, 32, 32)
    content = pickle.loads((tmp_path / "data_batch_1").read_bytes())
    assert labels[:3].tolist() == content[b"labels"]
    # A row has all of red, then green, then blue, each row by row.
    green = (content[b"data"][0, 1024 + 32 * 5 + 7] / 255 - vgg.MEAN[1]) / vgg.DEVIATION[1]
    np.testing.assert_allclose(images[0, 1, 5, 7], green, rtol=1e-5)
    (tmp_path / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py as --data"):
        vgg.cifar10(tmp_path, "test")


def test_runs_no_program_of_a_file(tmp_path):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": print, b"labels": []}))
    with pytest.raises(pickle.UnpicklingError, match="does not belong"):
        vgg.cifar10(tmp_path, "test")


def test_images_are_moved_and_mirrored():
    """Every image of a batch is a window of the padded one or of its mirror image, the same in all channels."""
    images = torch.arange(1.0, 1 + 6 * 3 * 8 * 8).reshape(6, 3, 8, 8)
    data = vgg.Moved(images, torch.arange(6))
    moved, labels = data[list(range(6))]
    assert labels.tolist() == list(range(6))
    padded, size = nn.functional.pad(images, [vgg.MARGIN] * 4), 2 * vgg.MARGIN + 1
    for image, source in zip(moved, padded, strict=True):
        windows = [source[:, i : i + 8, j : j + 8] for i in range(size) for j in range(size)]
        assert any(torch.equal(image, each) or torch.equal(image, each.flip(-1)) for each in windows)
    assert not torch.equal(moved, images)


def test_all_kernels_are_orthogonal_or_none():
    for kind, count in {"orthogonal": 13, "plain": 0}.items():
        assert sum(isinstance(part, OrthogonalConv2d) for part in vgg.network(kind, 16).modules()) == count


def test_a_thin_network_learns(capsys, monkeypatch, tmp_path):
    """With five convolutions instead of thirteen, most of whose time is that of tracing."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(vgg, "STAGES", ((64,), (128,), (256,), (512,), (512,)))
    vgg.main(["--small", "--store", str(tmp_path)])
    *_, ensemble, _ = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert float(ensemble) > 25  # by chance 10, with a standard deviation of 5
