"""CIFAR-10: files are read as they are written, images are moved and not changed, a thin network learns."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
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
    with pytest.raises(SystemExit, match="cifar-10-batches-py as --data"):
        vgg.cifar10(tmp_path, "test")


def test_pictures_in_folders_of_classes_are_read_as_the_other_format(tmp_path):
    """The classes of CIFAR-10 are numbered in the order of the alphabet."""
    vgg.generate(tmp_path, cases=20)
    content, names = pickle.loads((tmp_path / "test_batch").read_bytes()), "ABCDEFGHIJ"
    for number, (row, label) in enumerate(zip(content[b"data"], content[b"labels"], strict=True)):
        place = tmp_path / "pictures" / "test" / names[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(3, 32, 32).transpose(1, 2, 0)).save(place / f"{number:04}.png")
    known = sorted(set(content[b"labels"]))
    images, labels = vgg.cifar10(tmp_path, "test")
    order = sorted(range(20), key=lambda k: (int(labels[k]), k))
    found, numbers = vgg.cifar10(tmp_path / "pictures", "test")
    assert torch.equal(found, images[order])
    assert [known[k] for k in numbers.tolist()] == labels[order].tolist()


def test_held_out_images_are_of_all_classes_and_of_none_that_are_trained_on():
    labels = torch.arange(10).repeat_interleave(100)
    train, test = vgg.split((torch.arange(1000), labels), 200)
    assert sorted([*train[0].tolist(), *test[0].tolist()]) == list(range(1000))
    assert len(test[1]) == 200
    assert torch.equal(test[1], labels[test[0]])
    assert test[1].bincount().min() >= 8


def test_a_budget_in_epochs_is_spent():
    options = vgg.budget(30, 50_000, 128)
    steps = round(options["descent"] * 390) + options["burn_in"] + options["members"] * options["between"]
    assert abs(steps - 30 * 390) < 10
    shares = [vgg.half_cosine(step, 1000, 50) for step in range(1001)]
    assert shares[:50] == sorted(shares[:50])
    assert shares[50:] == sorted(shares[50:], reverse=True)
    assert shares[0] == 0.02
    assert shares[-1] == 0.01


def test_runs_no_program_of_a_file(tmp_path):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": print, b"labels": []}))
    with pytest.raises(SystemExit, match="does not belong"):
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


def accuracies(capsys):
    """After descent, of the last draw, the mean of draws and the ensemble."""
    return [float(cell) for cell in capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")[1:5]]


@pytest.mark.long
def test_a_thin_network_learns(capsys, monkeypatch, tmp_path):
    """With five convolutions instead of thirteen, most of whose time is that of tracing."""
    monkeypatch.setattr(vgg, "STAGES", ((64,), (128,), (256,), (512,), (512,)))
    vgg.main(["--small", "--store", str(tmp_path)])
    descended, *_, ensemble = accuracies(capsys)
    assert min(descended, ensemble) > 25  # by chance 10, with a standard deviation of 5
    files = {path: path.read_bytes() for path in tmp_path.glob("*/*/descent/*.npz")}
    assert files
    # At another temperature, draws of another step size begin where the same descent ended.
    vgg.main(["--small", "--temperature", "4", "--step-size", "1e-2", "--store", str(tmp_path)])
    again, *_, ensemble = accuracies(capsys)
    assert again == descended
    assert ensemble < descended
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*/descent/*.npz")} == files
