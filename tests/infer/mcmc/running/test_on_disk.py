"""Stored runs: resumed bit for bit, read while they go on, and intact where the disk is full."""

import os
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_manifold.diagnostics import open_run
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, OSGHMC, Shards, Store, Superchains, Until
from pyro_manifold.infer.mcmc.running import Record
from pyro_manifold.store import StoredRun
from tests.infer.mcmc.running.stored_runs import CHAINS, DRAWS, WARMUP, contents, made, positive, same, whole
from tests.infer.models import concentrated


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
        pytest.param(("Warmup", 0), "Interrupted at iteration 2 (warm-up has 12)", marks=pytest.mark.long),
        (("Warmup", 5), "Interrupted at iteration 7 (warm-up has 12)"),
        pytest.param(("Warmup", 11), "Interrupted at iteration 13 (warm-up has 12)", marks=pytest.mark.long),
        (("Sample", 13), "kept 7 of 12 draws"),
    ],
)
def test_an_interrupt_waits_for_its_iteration_and_the_run_continues(tmp_path, stop_at, words):
    expected = whole(thinning=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made(tmp_path, stop_at=stop_at, thinning=2)
        except KeyboardInterrupt:
            assert stop_at[0] == "Warmup"
    assert any(words in str(each.message) for each in told), [str(each.message) for each in told]
    assert same(made(tmp_path, resume=True, seed=5, thinning=2), expected)


def test_an_error_keeps_draws_and_the_run_continues(tmp_path):
    with pytest.raises(RuntimeError, match="mine") as raised:
        made(tmp_path, stop_at=("Sample", 12), by=RuntimeError("mine"))
    assert "kept 13 of 24 draws" in raised.value.__notes__[0]
    assert StoredRun(tmp_path).draws == 13
    assert same(made(tmp_path, resume=True, seed=5), whole())


def data():
    return torch.randn(24, 4, generator=torch.Generator().manual_seed(3))


def rows(y):
    U = pyro.sample("U", StiefelUniform(4, 2))
    with pyro.plate("rows", 24, subsample_size=len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(4), torch.eye(4) + U @ U.mT), obs=y)


@pytest.mark.long
def test_a_loader_continues_in_the_middle_of_a_pass(tmp_path):
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


@pytest.mark.long
def test_a_process_may_end_at_any_file_operation(tmp_path, monkeypatch):
    """A killed process leaves what is on disk just before or after a renaming."""
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


@pytest.mark.long
def test_a_process_that_is_killed_continues_in_another(tmp_path):
    program = (
        "import pathlib, os, signal, torch; torch.set_default_dtype(torch.float64)\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "from tests.infer.mcmc.running.stored_runs import made\n"
        "kill = lambda iteration: iteration.draw == 19 and os.kill(os.getpid(), signal.SIGKILL)\n"
        f"made(pathlib.Path({str(tmp_path)!r}), consumers=[kill])"
    )
    found = subprocess.run([sys.executable, "-c", program], env=os.environ, cwd=Path(__file__).parents[4])
    assert found.returncode == -signal.SIGKILL
    assert 14 <= StoredRun(tmp_path).draws <= 20
    assert same(made(tmp_path, resume=True, seed=8), whole())


# ---- continued ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_is_continued(tmp_path, stored, monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")  # which begins where enough iterations are planned
    expected = contents(made(draws=40))
    mcmc = made(tmp_path if stored else None, draws=15)
    mcmc.continue_run(15)
    mcmc.continue_run(10)
    assert same(mcmc, expected)
    assert mcmc.num_samples == 40
    assert mcmc.summary() is None
    if stored:
        again = made(tmp_path, draws=15, resume=True)
        assert again.get_samples(group_by_chain=True)["U"].shape[1] == 15, "a program that is run again sees the same"
        again.continue_run(25)
        assert same(again, expected)


def test_an_interrupted_run_is_continued_from_where_it_was():
    with pytest.warns(UserWarning, match="kept 13 of 24"):
        mcmc = made(stop_at=("Sample", 12), by=KeyboardInterrupt())
    mcmc._hook = None
    mcmc.continue_run(11)
    assert same(mcmc, whole())


def test_an_interrupted_warm_up_is_kept():
    calls = []

    def stop(*_):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt

    pyro.set_rng_seed(1)
    mcmc = MCMC(OHMC(positive), DRAWS, WARMUP, num_chains=CHAINS, disable_progbar=True, hook_fn=stop)
    with (
        pytest.warns(UserWarning, match="Interrupted at iteration 7 "),
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


# ---- a full disk -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    size = max(96 * 1024, 10 * os.sysconf("SC_PAGE_SIZE"))  # a file takes whole pages, which may be large ones
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here; test_files.py has a disk that says it is full")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.long
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


def test_a_run_is_read_while_it_continues(tmp_path):
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
    """Draws that wait are never more than a file has room for."""
    waiting = []
    store = Store(tmp_path, seconds=1e6, draws=8)
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(concentrated), 100, 5, store=store, disable_progbar=True, consumers=[lambda _: waiting.append(1)])
    mcmc.run()
    storage = mcmc._sampling._storage
    assert storage._buffers._room == 8
    assert [chunk[0] for chunk in storage._chunks] == [8] * 12 + [4]


@pytest.mark.long
def test_a_goal_looks_at_what_is_stored_and_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path):
    until = Until(ess=100, max_samples=2000)
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
        if iteration.draw == 40:
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
    made(tmp_path / "run", draws=30, resume=True)
    with pytest.raises(ValueError, match="has since been written to"):
        first.continue_run(10)
    assert open_run(tmp_path / "run").posterior.sizes["draw"] == 30
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
