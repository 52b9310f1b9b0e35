"""Stored runs: resumed bit for bit, refused where they do not fit, safe where the disk is full or a file is damaged."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_manifold.diagnostics import open_run
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC, OSGHMC, Shards, Store, Superchains, Until
from pyro_manifold.infer.mcmc.running.record import Record
from pyro_manifold.store.archive import Archive, packed
from pyro_manifold.store.reading import StoredRun
from tests.infer.models import concentrated

WARMUP, DRAWS, CHAINS = 30, 40, 3


def positive(pull=4.0):
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.sample("s", dist.LogNormal(0.0, 1.0))
    pyro.factor("pull", pull * U[0, 0])


def made(
    folder=None,
    *,
    resume=False,
    kernel=None,
    seed=1,
    draws=DRAWS,
    args=(),
    stop_at=None,
    by=None,
    loader=None,
    **options,
):
    """A run; ``stop_at`` interrupts it in that iteration, by a signal unless ``by`` raises something."""
    pyro.set_rng_seed(seed)

    def stop(kernel, params, stage, index):
        if stop_at == (stage, index):
            if by is not None:
                raise by
            os.kill(os.getpid(), signal.SIGINT)

    store = folder if folder is None or isinstance(folder, Store) else Store(folder, seconds=1e-6, draws=7)
    warmup_steps = options.pop("warmup_steps", WARMUP)
    chains = options.pop("num_chains", CHAINS)
    mcmc = MCMC(
        kernel or OHMC(positive),
        draws,
        warmup_steps,
        num_chains=chains,
        disable_progbar=True,
        store=store,
        resume=resume,
        hook_fn=stop if stop_at else None,
        **options,
    )
    mcmc.run(*args, data_loader=loader)
    return mcmc


@cache
def whole(**options):
    """Draws and statistics of a run that nobody stored or stopped."""
    return contents(made(**options))


def contents(run):
    return run.get_samples(group_by_chain=True), run.get_extra_fields(group_by_chain=True)


def same(run, expected):
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(contents(run), expected, strict=True)
    )


def test_storing_changes_no_draw_and_reads_like_memory(tmp_path):
    stored, other = made(tmp_path / "a"), made()
    assert same(stored, contents(other))
    assert same(made(Store(tmp_path / "b", draws=1000)), contents(other))
    assert stored.diagnostics()["divergences"] == other.diagnostics()["divergences"]
    assert stored.get_samples(5)["U"].shape == (5, 3, 2)
    idata = stored.to_inferencedata(log_likelihood=False)
    assert idata.posterior["s"].shape == (CHAINS, DRAWS)


@pytest.mark.parametrize(
    ("stop_at", "words"),
    [
        (("Warmup", 0), "Interrupted at iteration 2 (warm-up has 30)"),
        (("Warmup", 13), "Interrupted at iteration 15 (warm-up has 30)"),
        (("Warmup", 29), "Interrupted at iteration 31 (warm-up has 30)"),
        (("Sample", 21), "kept 11 of 20 draws"),
    ],
)
def test_an_interrupt_waits_for_its_iteration_and_the_run_goes_on(tmp_path, stop_at, words):
    expected = whole(thinning=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made(tmp_path, stop_at=stop_at, thinning=2)
        except KeyboardInterrupt:
            assert stop_at[0] == "Warmup"
    assert any(words in str(each.message) for each in told), [str(each.message) for each in told]
    assert same(made(tmp_path, resume=True, seed=5, thinning=2), expected)


def test_an_error_keeps_draws_and_the_run_goes_on(tmp_path):
    with pytest.raises(RuntimeError, match="mine") as raised:
        made(tmp_path, stop_at=("Sample", 20), by=RuntimeError("mine"))
    assert "kept 21 of 40 draws" in raised.value.__notes__[0]
    assert StoredRun(tmp_path).draws == 21
    assert same(made(tmp_path, resume=True, seed=5), whole())


def data():
    return torch.randn(24, 4, generator=torch.Generator().manual_seed(3))


def rows(y):
    U = pyro.sample("U", StiefelUniform(4, 2))
    with pyro.plate("rows", 24, subsample_size=len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(4), torch.eye(4) + U @ U.mT), obs=y)


def test_a_loader_goes_on_in_the_middle_of_a_pass(tmp_path):
    def run(folder, **options):
        loader = DataLoader(TensorDataset(data()), batch_size=6, shuffle=True)
        return made(folder, kernel=OSGHMC(rows, step_size=0.01, friction=0.1), loader=loader, **options)

    expected = contents(run(tmp_path / "whole"))
    with pytest.warns(UserWarning, match="Interrupted: kept"):
        run(tmp_path / "stopped", stop_at=("Sample", 9))
    assert same(run(tmp_path / "stopped", resume=True, seed=4), expected)
    other = DataLoader(TensorDataset(data() + 1), batch_size=6, shuffle=True)
    with pytest.raises(ValueError, match="the fingerprint of data_loader was"):
        made(
            tmp_path / "stopped",
            resume=True,
            kernel=OSGHMC(rows, step_size=0.01, friction=0.1),
            loader=other,
        )


def test_a_process_may_end_at_any_file_operation(tmp_path, monkeypatch):
    """What is on disk just before and after each renaming is what a killed process leaves."""
    replace, snapshots = os.replace, []

    def recorded(source, destination):
        for moment in ("before", "after"):
            if moment == "after":
                replace(source, destination)
            snapshots.append(tmp_path / f"{len(snapshots)}")
            shutil.copytree(tmp_path / "run", snapshots[-1])

    monkeypatch.setattr(os, "replace", recorded)
    expected = contents(made(Store(tmp_path / "run", draws=6), draws=15, warmup_steps=8))
    monkeypatch.undo()
    draws = expected[0]["U"]
    assert len(snapshots) == 2 * (3 + 2 * 3)  # manifest, first checkpoint, symmetries
    for snapshot in snapshots[1:]:  # each with a manifest
        seen = StoredRun(snapshot).draws if (snapshot / "manifest.json").exists() else 0
        made_again = []
        keeps = made(
            Store(snapshot, draws=6), draws=max(seen, 1), warmup_steps=8, resume=True, consumers=[made_again.append]
        )
        assert not (seen and made_again), "a draw that is seen is there to stay"
        assert keeps.num_samples == max(seen, 1)
        if snapshot in snapshots[-6:]:
            keeps.continue_run(15 - keeps.num_samples) if keeps.num_samples < 15 else None
            assert same(keeps, expected)
        else:
            assert torch.equal(keeps.get_samples(group_by_chain=True)["U"], draws[:, : keeps.num_samples])


def test_a_process_that_is_killed_goes_on_in_another(tmp_path):
    program = (
        "import pathlib, os, signal, torch; torch.set_default_dtype(torch.float64); torch.set_num_threads(1)\n"
        "from tests.infer.mcmc.running.test_on_disk import made\n"
        "kill = lambda iteration: iteration.draw == 19 and os.kill(os.getpid(), signal.SIGKILL)\n"
        f"made(pathlib.Path({str(tmp_path)!r}), consumers=[kill])"
    )
    found = subprocess.run([sys.executable, "-c", program], env=os.environ, cwd=os.getcwd())
    assert found.returncode == -signal.SIGKILL
    assert 14 <= StoredRun(tmp_path).draws <= 20
    assert same(made(tmp_path, resume=True, seed=8), whole())


# ---- continued ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_is_continued(tmp_path, stored):
    expected = whole(draws=70)
    mcmc = made(tmp_path if stored else None, draws=25)
    mcmc.continue_run(30)
    mcmc.continue_run(15)
    assert same(mcmc, expected)
    assert mcmc.num_samples == 70
    assert mcmc.summary() is None
    if stored:
        again = made(tmp_path, draws=25, resume=True)
        assert again.get_samples(group_by_chain=True)["U"].shape[1] == 25, "a program that is run again sees the same"
        again.continue_run(45)
        assert same(again, expected)


def test_an_interrupted_run_is_continued_from_where_it_was():
    with pytest.warns(UserWarning, match="kept 23 of 40"):
        mcmc = made(stop_at=("Sample", 22), by=KeyboardInterrupt())
    mcmc._hook = None
    mcmc.continue_run(17)
    assert mcmc.get_samples(group_by_chain=True)["U"].shape[1] == 40


def test_an_interrupted_warm_up_is_kept():
    calls = []

    def stop(*_):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt

    pyro.set_rng_seed(1)
    mcmc = MCMC(OHMC(positive), DRAWS, WARMUP, num_chains=CHAINS, disable_progbar=True, hook_fn=stop)
    with (
        pytest.warns(UserWarning, match="Interrupted at iteration 12 "),
        pytest.raises(KeyboardInterrupt),
    ):
        mcmc.run()
    mcmc.continue_run(DRAWS)
    assert same(mcmc, whole())


def test_nothing_to_continue_is_a_sentence():
    with pytest.raises(ValueError, match="needs a vectorised run"):
        MCMC(OHMC(positive), 3).continue_run(4)
    with pytest.raises(ValueError, match="num_samples=0, expected a positive integer"):
        MCMC(OHMC(positive), 3).continue_run(0)


# ---- refused -----------------------------------------------------------------------------------------------------


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
        ({"warmup_steps": 31}, "warmup_steps was 30, and is 31"),
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


def test_another_version_and_another_machine(tmp_path):
    made(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "machine": {**manifest["machine"], "threads": "64"}}))
    with pytest.warns(UserWarning, match=r"threads was 64, and is 1.* by rounding"):
        made(tmp_path, resume=True)
    path.write_text(json.dumps({**manifest, "versions": {**manifest["versions"], "pyro_manifold": "0.0.1"}}))
    with pytest.raises(ValueError, match=r"version of pyro_manifold was 0\.0\.1, and is"):
        made(tmp_path, resume=True)


def test_a_run_in_the_format_before_is_read_and_does_not_go_on(tmp_path):
    made(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    parts = {"the model's code": "function, 0123456789abcdef", "num_superchains": "None"}
    path.write_text(json.dumps({**manifest, "format": 1, "parts": parts}))
    assert open_run(tmp_path).posterior.sizes["draw"] == DRAWS
    with pytest.raises(ValueError, match=r"another run: an earlier version .* format 1, .* another folder"):
        made(tmp_path, resume=True)


def test_another_version_of_python_changes_nothing(tmp_path):
    made(tmp_path, draws=20)
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
def test_the_newest_file_is_damaged(tmp_path, stem, harm):
    mcmc = made(tmp_path)
    harm(newest(tmp_path, stem))
    quiet = stem == "checkpoint" and harm is gone
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resumed = made(tmp_path, resume=True, seed=9)
    said = [str(each.message) for each in told]
    assert quiet or any("later draws are made again" in words for words in said), said
    assert same(resumed, whole())
    with pytest.raises(ValueError, match="open the run again"):
        mcmc.get_samples()


def test_an_older_file_is_damaged(tmp_path):
    made(tmp_path)
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
def test_hostile_manifests_are_sentences(tmp_path, entry, value, words):
    made(tmp_path, draws=10)
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
def test_hostile_draws_are_sentences(tmp_path, about, arrays, words):
    made(tmp_path, draws=7)
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
@pytest.mark.parametrize(("capacity", "stored", "kept"), [(7, 21, 7), (1000, 0, DRAWS)])
def test_a_folder_that_is_gone_takes_no_draw_from_memory(tmp_path, capacity, stored, kept, renamed):
    folder = tmp_path / "run"

    def end(iteration):
        if iteration.draw == 20:
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


# ---- a full disk -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C as Python has it: a shell that runs tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here; test_files.py has a disk that says it is full")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_a_sentence_and_nothing_is_lost(small_disk, tmp_path):
    folder = small_disk / "run"
    with pytest.raises(
        OSError, match=r"No space left on device\): earlier draws are intact; free disk space"
    ) as raised:
        made(Store(folder, draws=25), draws=400)
    assert "MCMC kept" in raised.value.__notes__[0]
    there = StoredRun(folder).draws
    assert 0 < there < 400
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    resumed = made(Store(folder, draws=25), draws=400, resume=True, seed=3)
    assert same(resumed, whole(draws=400))


# ---- read while it runs ------------------------------------------------------------------------------------------


def test_a_run_is_read_while_it_goes_on(tmp_path):
    seen = []

    def look(iteration):
        if iteration.draw in (3, 20):
            seen.append(open_run(tmp_path).posterior["U"])

    mcmc = made(Store(tmp_path, draws=1), consumers=[look])
    draws = mcmc.get_samples(group_by_chain=True)["U"].numpy()
    assert [len(each.draw) for each in seen] == [4, 21]
    for each in seen:
        assert np.array_equal(each.values, draws[:, : len(each.draw)])


def test_a_draw_that_is_under_way_is_remembered():
    """With thinning, a divergence before a checkpoint counts for the draw after it."""
    before, after = Record(), Record()
    before.add({"diverging": torch.tensor([True, False])}, kept=False)
    after.begin(before.unfinished())
    after.add({"diverging": torch.tensor([False, False])})
    assert after.statistics()["diverging"].tolist() == [[True], [False]]


def test_memory_does_not_grow_with_draws(tmp_path):
    """What waits is never more than a file has room for."""
    waiting = []
    store = Store(tmp_path, seconds=1e6, draws=8)
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(concentrated), 100, 5, store=store, disable_progbar=True, consumers=[lambda _: waiting.append(1)])
    mcmc.run()
    storage = mcmc._sampling._storage
    assert storage._buffers._room == 8
    assert [chunk[0] for chunk in storage._chunks] == [8] * 12 + [4]


def test_a_goal_looks_at_what_is_stored_and_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path):
    until = Until(ess=150, max_samples=2000)
    options = {"until": until, "num_chains": 4, "warmup_steps": 40, "disable_progbar": True}
    pyro.set_rng_seed(3)
    whole = MCMC(OHMC(concentrated), **options)
    whole.run()
    pyro.set_rng_seed(3)
    stored = MCMC(OHMC(concentrated), store=tmp_path / "run", **options)
    stored.run()
    assert stored.num_samples == whole.num_samples < 2000
    assert stored.stopped == whole.stopped
    assert torch.equal(torch.as_tensor(stored.get_samples()["U"]), whole.get_samples()["U"])

    def stop(iteration):
        if iteration.draw == 70:
            raise KeyboardInterrupt

    pyro.set_rng_seed(3)
    broken = MCMC(OHMC(concentrated), store=tmp_path / "broken", consumers=[stop], **options)
    with pytest.warns(UserWarning, match="kept"):
        broken.run()
    again = MCMC(OHMC(concentrated), store=tmp_path / "broken", resume=True, **options)
    again.run()
    assert again.num_samples == whole.num_samples
    assert torch.equal(torch.as_tensor(again.get_samples()["U"]), whole.get_samples()["U"])


def test_goals_and_superchains_are_for_runs_in_this_process():
    with ThreadPoolExecutor(1) as executor:
        groups = Superchains(2, size=2)
        for options, name in (({"until": {"ess": 10}}, "until"), ({"num_chains": groups}, "Superchains")):
            with pytest.raises(ValueError, match=name):
                MCMC(OHMC(concentrated), 10, **{"num_chains": 4, "chain_method": Shards(executor, 2), **options})


def test_a_whole_run_and_shards_do_not_share_a_folder(tmp_path):
    made(tmp_path / "whole", num_chains=4)
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ValueError, match="a run without shards"):
            made(tmp_path / "whole", num_chains=4, resume=True, chain_method=Shards(executor, 2))
        made(tmp_path / "shards", num_chains=4, chain_method=Shards(executor, 2))
    with pytest.raises(ValueError, match="a run in shards"):
        made(tmp_path / "shards", num_chains=4, resume=True)


def test_draws_of_others_are_not_overwritten(tmp_path):
    first = made(tmp_path / "run", draws=20)
    made(tmp_path / "run", draws=60, resume=True)
    with pytest.raises(ValueError, match="has since been written to"):
        first.continue_run(10)
    assert open_run(tmp_path / "run").posterior.sizes["draw"] == 60
    (tmp_path / "run" / "manifest.json").unlink()
    for resume in (False, True):
        with pytest.raises(ValueError, match="no manifest"):
            made(tmp_path / "run", resume=resume)


def test_a_store_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = made("here")
    monkeypatch.chdir("/")
    assert run.get_samples()["U"].shape[0] == DRAWS * CHAINS
    run.continue_run(5)
    for path in ("", "a\0b", 5):
        with pytest.raises(ValueError, match="expected the path"):
            made(path)


def test_a_goal_judges_the_draws_that_are_asked_for(tmp_path):
    options = {"num_chains": 2, "warmup_steps": 10, "disable_progbar": True}
    with pytest.warns(UserWarning, match="Stopped at max_samples"):
        MCMC(OHMC(concentrated), store=tmp_path / "run", until=Until(ess=1e6, max_samples=60), **options).run()
    until = Until(ess=1e6, max_samples=30)
    again = MCMC(OHMC(concentrated), 10, store=tmp_path / "run", resume=True, until=until, **options)
    with pytest.warns(UserWarning, match="Stopped at max_samples, 30 draws"):
        again.run()
    assert again.num_samples == 30
