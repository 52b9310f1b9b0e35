"""Stores that belong to another run, or are damaged, hostile or gone: refused or read as far as they are intact."""

import json
import math
import os
import shutil
import warnings
from functools import cache

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import open_run
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC, Store
from pyro_manifold.store import Archive, StoredRun, packed
from tests.infer.mcmc.running.stored_runs import CHAINS, DRAWS, WARMUP, contents, made, positive, same, whole
from tests.infer.models import concentrated


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Return a function that fills a folder with a copy of a run, which is made once."""
    there = tmp_path_factory.mktemp("runs")

    @cache
    def original(draws):
        made(there / str(draws), draws=draws)
        return there / str(draws)

    return lambda folder, draws=DRAWS: shutil.copytree(original(draws), folder, dirs_exist_ok=True)


# ---- of another run ----------------------------------------------------------------------------------------------


def changed(pull=4.0):
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.sample("s", dist.LogNormal(0.0, 1.0))
    pyro.factor("pull", pull * U[0, 0] + 1e-4 * U[1, 1])


def test_another_run_is_refused_with_the_differences(tmp_path):
    made(tmp_path, args=(torch.tensor(4.0),))
    options = {"resume": True, "args": (torch.tensor(4.0),)}
    for other, words in (
        ({"resume": False}, "already holds a run: continue it with resume=True"),
        (
            {"kernel": OHMC(changed)},
            r"another density \(at reference point 0, .* differs by .*\): resume it",
        ),
        ({"args": (torch.tensor(5.0),)}, r"another density \(at reference point 0, the log density was"),
        ({"kernel": OHMC(positive, target_accept_prob=0.8)}, "the kernel's target_accept_prob was 0.9, and is 0.8"),
        ({"kernel": GHMC(positive)}, "the kernel was 'OHMC', and is 'GHMC'"),
        ({"num_chains": 4}, "chains was 3, and is 4"),
        ({"warmup_steps": 13}, "warmup_steps was 12, and is 13"),
        ({"thinning": 2}, "thinning was 1, and is 2"),
        ({"save_params": ["U"]}, r"the site s was float64 \(\), and is none"),
    ):
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(ValueError, match=words):
            made(tmp_path, **{**options, **other})
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert made(tmp_path, resume=True).num_samples == DRAWS, "the default is what was given"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": True}, "resume=True continues a stored run: pass its folder"),
        ({"store": 3}, "store=3, expected the path of a folder"),
        ({"store": "x", "resume": 1}, "resume=1, expected True or False"),
        ({"store": "x", "chain_method": "sequential"}, "store needs chain_method='vectorized'"),
        ({"store": "x", "transforms": {}}, "pass transforms to the kernel"),
    ],
)
def test_arguments_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        MCMC(OHMC(concentrated), 5, **options)
    for wrong, said in (({"seconds": 0}, "seconds=0"), ({"draws": 1.5}, "draws=1.5, expected an integer")):
        with pytest.raises(ValueError, match=said):
            Store("x", **wrong)


def test_another_version_and_another_machine(tmp_path, copied):
    copied(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "machine": {**manifest["machine"], "threads": "64"}}))
    with pytest.warns(UserWarning, match=rf"threads was 64, and is {torch.get_num_threads()}.* by rounding"):
        made(tmp_path, resume=True)
    path.write_text(json.dumps({**manifest, "versions": {**manifest["versions"], "pyro_manifold": "0.0.1"}}))
    with pytest.raises(ValueError, match=r"version of pyro_manifold was 0\.0\.1, and is"):
        made(tmp_path, resume=True)


def test_a_run_in_the_format_before_is_read_and_does_not_continue(tmp_path, copied):
    copied(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    parts = {"the model's code": "function, 0123456789abcdef", "num_superchains": "None"}
    path.write_text(json.dumps({**manifest, "format": 1, "parts": parts}))
    assert open_run(tmp_path).posterior.sizes["draw"] == DRAWS
    with pytest.raises(ValueError, match=r"another run: an earlier version .* format 1, .* another folder"):
        made(tmp_path, resume=True)


def test_another_version_of_python_changes_nothing(tmp_path, copied):
    copied(tmp_path, 20)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "versions": {**manifest["versions"], "python": "3.99"}}))
    assert same(made(tmp_path, resume=True), whole())


# ---- damaged -----------------------------------------------------------------------------------------------------


def newest(folder, stem):
    return sorted(folder.glob(f"{stem}-*.npz"))[-1]


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    """One bit of the largest array."""
    entry = max(Archive(path).entries.values(), key=lambda entry: entry.dtype.itemsize * math.prod(entry.shape))
    content = bytearray(path.read_bytes())
    content[entry.offset + entry.dtype.itemsize * math.prod(entry.shape) // 2] ^= 4
    path.write_bytes(content)


def gone(path):
    path.unlink()


@pytest.mark.parametrize("harm", [cut, flip, gone])
@pytest.mark.parametrize("stem", ["draws", "checkpoint"])
def test_the_newest_file_is_damaged(tmp_path, copied, stem, harm):
    copied(tmp_path)
    harm(newest(tmp_path, stem))
    quiet = stem == "checkpoint" and harm is gone
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resumed = made(tmp_path, resume=True, seed=9)
    said = [str(each.message) for each in told]
    assert quiet or any("later draws are made again" in words for words in said), said
    assert same(resumed, whole())


def test_draws_that_were_made_again_are_opened_again(tmp_path):
    mcmc = made(tmp_path)
    cut(newest(tmp_path, "draws"))
    with pytest.warns(UserWarning, match="later draws are made again"):
        made(tmp_path, resume=True, seed=9)
    with pytest.raises(ValueError, match="open the run again"):
        mcmc.get_samples()


def test_an_older_file_is_damaged(tmp_path, copied):
    copied(tmp_path)
    flip(tmp_path / "draws-000001.npz")
    with pytest.raises(ValueError, match=r"no usable checkpoint .*draws-000001\.npz is damaged"):
        made(tmp_path, resume=True)


def test_the_first_checkpoint_is_damaged(tmp_path):
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="Interrupted"):
        made(tmp_path, stop_at=("Warmup", 3))
    for path in tmp_path.glob("checkpoint-*"):
        cut(path)
    with pytest.warns(UserWarning, match="Continuing from iteration 0"):
        assert same(made(tmp_path, resume=True), whole())


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("sites", {"U": ["<f8", [10**9, 10**9]]}, "which is too large"),
        ("sites", {"U": ["O", [2]]}, "has the type O, expected numbers"),
        ("sites", {"U": ["<f8", [-1]]}, "has the shape"),
        ("sites", {"U": 3}, "damaged or was tampered with"),
        ("sites", {"../../U": ["<f8", [3, 2]]}, "no array 'posterior/../../U'"),
        ("chains", 10**12, "it has 1000000000000 chains"),
        ("chains", 0, "it has 0 chains"),
        ("chains", "3", "expected a number"),
        ("identity", "../..", "its identity is"),
        ("format", 4, "has the format 4, expected 1 to 3"),
        ("format", True, "has the format True, expected 1 to 3"),
        ("settings", [], "not a dictionary of strings"),
    ],
)
def test_hostile_manifests_are_sentences(tmp_path, copied, entry, value, words):
    copied(tmp_path, 10)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), entry: value}))
    for reader in (lambda: open_run(tmp_path), lambda: made(tmp_path, draws=10, resume=True)):
        with pytest.raises(ValueError, match=f"{words}|holds another run"):
            reader()


def rewritten(folder, name, about=None, arrays=None):
    """A file with other contents, and checksums that fit."""
    archive = Archive(folder / name)
    kept = {key: np.array(archive[key]) for key in archive.entries}
    content = packed({**archive.about, **(about or {})}, {**kept, **(arrays or {})})
    (folder / name).write_bytes(content)


def nested(depth):
    tree = {"value": 1}
    for _ in range(depth):
        tree = {"parts": {"x": tree}}
    return tree


@pytest.mark.parametrize(
    ("about", "arrays", "words"),
    [
        ({"draws": 10**15}, {}, "does not continue where the previous draws end"),
        ({"draws": "7"}, {}, "does not continue where the previous draws end"),
        ({"first": 3}, {}, "does not continue where the previous draws end"),
        ({}, {"posterior/U": np.zeros((3, 7, 3, 2), np.float32)}, "'posterior/U' is float32"),
        ({}, {"posterior/U": np.zeros((3, 8, 3, 2))}, r"'posterior/U' is float64 \(3, 8, 3, 2\), expected"),
        ({}, {"posterior/V": np.zeros(3)}, "which is not a site of the run"),
        ({}, {"sample_stats/../../lp": np.zeros(3)}, "expected .* damaged"),
    ],
)
def test_hostile_draws_are_sentences(tmp_path, copied, about, arrays, words):
    copied(tmp_path, 7)
    rewritten(tmp_path, "draws-000000.npz", about, arrays)
    with pytest.raises(ValueError, match=words):
        open_run(tmp_path)


@pytest.mark.parametrize(
    "about", [{"state": nested(300)}, {"state": {"value": 3}}, {"chunks": [[10**9, 1]]}, {"chunks": [[1, -2, 3]]}]
)
def test_hostile_checkpoints_are_passed_over(tmp_path, about):
    with pytest.warns(UserWarning, match="Interrupted"), pytest.raises(KeyboardInterrupt):
        made(tmp_path, stop_at=("Warmup", 3))
    rewritten(tmp_path, newest(tmp_path, "checkpoint").name, about)
    with pytest.warns(UserWarning, match="damaged|does not contain the state"):
        assert same(made(tmp_path, resume=True), whole())


def test_links_in_a_store_lead_nowhere(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    made(tmp_path / "run", draws=7)
    for name in ("lock", "checkpoint-000003.npz.partial", "draws-000001.npz.partial"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
        (tmp_path / "run" / name).symlink_to(precious)
    made(tmp_path / "run", draws=14, resume=True)
    assert precious.read_text() == "mine"


def test_files_of_another_run_are_sentences(tmp_path):
    made(tmp_path / "a", draws=20)
    made(tmp_path / "b", draws=20)
    os.replace(tmp_path / "b" / "draws-000001.npz", tmp_path / "a" / "draws-000001.npz")
    with pytest.raises(ValueError, match="belongs to another run"):
        open_run(tmp_path / "a")
    with pytest.raises(ValueError, match="no usable checkpoint"):
        made(tmp_path / "a", draws=20, resume=True)


def test_a_file_in_place_of_a_folder_is_a_sentence(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(ValueError, match="is a file, expected a folder"):
        made(tmp_path / "runs")
    with pytest.raises(OSError, match=r"store='.*runs/first' cannot be created \(Not a directory\)"):
        made(tmp_path / "runs" / "first")


def test_a_name_that_is_too_long_is_a_sentence(tmp_path):
    for folder in (tmp_path / ("a" * 300), Store(tmp_path / "/".join(["b" * 200] * 30))):
        for resume in (False, True):
            with pytest.raises(OSError, match=r"cannot be created \(File name too long\): choose another folder\.$"):
                made(folder, resume=resume)


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize(("capacity", "stored", "kept"), [(7, 14, 7), (1000, 0, DRAWS)])
def test_a_folder_that_is_gone_takes_no_draw_from_memory(tmp_path, capacity, stored, kept, renamed):
    folder = tmp_path / "run"

    def end(iteration):
        if iteration.draw == 13:
            folder.rename(tmp_path / "elsewhere") if renamed else shutil.rmtree(folder)

    pyro.set_rng_seed(1)
    store = Store(folder, seconds=1e6, draws=capacity)
    mcmc = MCMC(OHMC(positive), DRAWS, WARMUP, num_chains=CHAINS, store=store, consumers=[end], disable_progbar=True)
    words = f"was removed or renamed .* {stored} draws .* were stored in it, the {kept} later ones are in memory"
    with pytest.raises(OSError, match=words) as raised:
        mcmc.run()
    assert f"MCMC kept {kept} of {DRAWS}" in raised.value.__notes__[0]
    draws, statistics = contents(mcmc)
    expected, all_statistics = whole()
    assert all(torch.equal(x, expected[name][:, stored : stored + kept]) for name, x in draws.items())
    assert torch.equal(statistics["lp"], all_statistics["lp"][:, stored : stored + kept])
    with pytest.raises(OSError, match="was removed or renamed"):
        mcmc.continue_run(5)
    if renamed and stored:
        assert StoredRun(tmp_path / "elsewhere").draws == stored


def test_a_folder_that_is_gone_in_warm_up_is_a_sentence(tmp_path):
    def end(iteration):
        if iteration.index == 5 and (tmp_path / "run").exists():
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(OSError, match="was removed or renamed during the run"):
        made(tmp_path / "run", consumers=[end])
