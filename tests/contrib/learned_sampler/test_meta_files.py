"""Samplers as files: what comes back, and what is said of files that hold none."""

import json
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.infer import MetaSampler, MetaTraining, TrainingSettings


def gaussian():
    pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))


def any_sampler():
    """Networks that nobody trained."""
    return MetaSampler.random(5, 1.0, torch.Generator().manual_seed(0), constant_curl=1.5, dimension=2)


def test_a_sampler_comes_back_from_its_file(tmp_path):
    sampler = replace(any_sampler(), command="by hand", gradient_scale=0.25)
    sampler.save(tmp_path / "sampler.npz")
    again = MetaSampler.load(tmp_path / "sampler.npz")
    assert again.fingerprint == sampler.fingerprint
    assert again.command == "by hand"
    assert again.gradient_scale == 0.25
    for name, value in again.tensors.items():
        assert torch.equal(value, sampler.tensors[name])


def test_numbers_of_numpy_are_plain_numbers_in_the_file(tmp_path):
    numbers = {"gradient_scale": np.float32(0.25), "constant_curl": np.int64(2), "data_size": np.int64(7)}
    sampler = replace(any_sampler(), **numbers)
    sampler.save(tmp_path / "sampler.npz")
    again = MetaSampler.load(tmp_path / "sampler.npz")
    assert again.fingerprint == sampler.fingerprint == replace(sampler, gradient_scale=0.25, data_size=7).fingerprint
    assert (again.gradient_scale, again.constant_curl, again.data_size) == (0.25, 2.0, 7)
    training = MetaTraining([gaussian], TrainingSettings(np.float32(0.05), chains=10, steps=20))
    training.save(tmp_path / "training.npz")
    MetaTraining([gaussian], TrainingSettings(np.float32(0.05), chains=10, steps=20)).load(tmp_path / "training.npz")


@pytest.mark.parametrize("name", MetaSampler.names())
def test_samplers_that_come_with_the_package(name):
    sampler = MetaSampler.load(name)
    assert sampler.command.startswith("python -m benchmarks.papers.nnsghmc.")


def rewritten(path, change):
    """The file with another page."""
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(str(arrays["about"]))
    change(about, arrays)
    arrays["about"] = np.array(json.dumps(about))
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda about, _: about.update(version=2), "has version 2, expected 1"),
        (lambda about, _: about.update(version="1"), "has version '1', expected 1"),
        (lambda about, _: about.update(kind="MetaTraining"), "contains a MetaTraining, expected a MetaSampler"),
        (lambda about, _: about.update({"curl inputs": ["energy"]}), "the curl inputs .'energy'., expected"),
        (lambda about, _: about.update({"friction inputs": 3}), "the friction inputs 3, expected"),
        (lambda about, _: about.pop("version"), "is damaged or not a MetaSampler"),
        (lambda about, _: about.update(step_size=-1), "is damaged or not a MetaSampler .step_size=-1"),
        (
            lambda about, _: about.update(energy_centre=float("nan")),
            "is damaged or not a MetaSampler .energy_centre=nan",
        ),
        (lambda about, _: about.update(constant_curl="a"), "is damaged or not a MetaSampler .constant_curl='a'"),
        (lambda about, _: about.update(dimension=2.5), "is damaged or not a MetaSampler .dimension=2.5"),
        (lambda about, _: about.update(command=5), "is damaged or not a MetaSampler .command=5"),
        (lambda about, _: about.update(random=5), "other tensors or constants than a sampler's"),
        (lambda _, arrays: arrays.update(more=np.zeros(1)), "other tensors or constants than a sampler's"),
        (
            lambda _, arrays: arrays.update({"curl bias": np.zeros(5, int)}),
            "'curl bias' has dtype torch.int64",
        ),
        (lambda _, arrays: arrays.pop("curl bias"), "is damaged or not a MetaSampler"),
        (lambda _, arrays: arrays.update({"curl weight": np.zeros((3, 3))}), "The network 'curl' has weights .3, 3."),
    ],
)
def test_files_of_other_kinds(tmp_path, change, sentence):
    path = tmp_path / "sampler.npz"
    any_sampler().save(path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=sentence) as error:
        MetaSampler.load(path)
    assert "\n" not in str(error.value)


def test_damaged_files(tmp_path):
    path = tmp_path / "sampler.npz"
    any_sampler().save(path)
    content = path.read_bytes()
    for damaged in (b"", content[:200], b"text"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged or not a MetaSampler"):
            MetaSampler.load(path)


@pytest.mark.parametrize("name", ["", "nobody", "."])
def test_files_that_are_not_there(name):
    with pytest.raises(FileNotFoundError, match=f"There is no sampler '{name}': pass a file"):
        MetaSampler.load(name)


@pytest.mark.parametrize("path", [None, 3, "."])
def test_no_path_of_a_file(path):
    with pytest.raises(ValueError, match="expected the path of a file"):
        any_sampler().save(path)
