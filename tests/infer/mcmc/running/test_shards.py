"""Chains spread over executors: the same draws by any of them, whatever happens to their workers."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
import warnings
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import open_run
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, Shards, Store
from pyro_manifold.infer.mcmc.running import run_shard
from pyro_manifold.store import StoredRun

SHARDS, CHAINS = 4, 8
SPAWN = multiprocessing.get_context("spawn")


def a_model():
    """Local, so that only cloudpickle can send it."""

    def model(pull):
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("s", dist.LogNormal(0.0, 1.0))
        pyro.factor("pull", pull * U[0, 0])

    return model


def made(executor, model=None, draws=20, warmup_steps=15, shards=SHARDS, threads=1, seed=1, chains=CHAINS, **options):
    pyro.set_rng_seed(seed)
    mcmc = MCMC(
        OHMC(model or a_model()),
        draws,
        warmup_steps,
        num_chains=chains,
        chain_method=Shards(executor, shards, threads),
        disable_progbar=True,
        **options,
    )
    mcmc.run(torch.tensor(2.0))
    return mcmc


class Here(ThreadPoolExecutor):
    """This process."""

    def __init__(self, workers=1):
        super().__init__(workers)


@pytest.fixture(scope="module")
def expected():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with Here() as executor:
        return made(executor).get_samples(group_by_chain=True)


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_draws_do_not_depend_on_workers(expected, tmp_path):
    assert expected["U"].shape == (CHAINS, 20, 3, 2)
    assert len({float(x) for x in expected["s"][:, 0]}) == CHAINS, "each chain has draws of its own"
    with Here(4) as executor:
        mcmc = made(executor, store=tmp_path / "run")
    assert same(mcmc.get_samples(group_by_chain=True), expected)
    assert mcmc.get_extra_fields(group_by_chain=True)["lp"].shape == (CHAINS, 20)
    assert open_run(tmp_path / "run").posterior["U"].shape == (CHAINS, 20, 3, 2)
    assert set(mcmc.diagnostics()) >= {"U", "s", "divergences", "acceptance_rate"}


def deadly(place):
    """A model that kills the first process which has a checkpoint."""

    def model(pull):
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("s", dist.LogNormal(0.0, 1.0))
        pyro.factor("pull", pull * U[0, 0])

    def fatal(pull):
        model(pull)
        mark = Path(place, "killed")
        if len(list(Path(place).glob("run/shard-0002/checkpoint-*"))) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return fatal


@pytest.mark.long
def test_a_pool_of_two_whose_worker_is_killed(expected, tmp_path):
    executor = partial(ProcessPoolExecutor, 2, mp_context=SPAWN)
    mcmc = made(executor, deadly(tmp_path), store=Store(tmp_path / "run", draws=3))
    assert (tmp_path / "killed").exists()
    assert same(mcmc.get_samples(group_by_chain=True), expected)


@pytest.mark.long
def test_without_another_executor_what_is_stored_can_be_resumed(expected, tmp_path):
    model = deadly(tmp_path)
    store = Store(tmp_path / "run", draws=3)
    with (
        ProcessPoolExecutor(1, mp_context=SPAWN) as executor,
        pytest.raises(RuntimeError, match="with a new executor"),
    ):
        made(executor, model, store=store)
    assert StoredRun(tmp_path / "run" / "shard-0000").draws == 20
    with Here() as executor:
        mcmc = made(executor, model, store=store, resume=True, seed=77)
    assert same(mcmc.get_samples(group_by_chain=True), expected)


@pytest.mark.long
def test_dask_with_a_worker_killed(expected, tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask's package distributed is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Dask's own: a port that is taken, a worker that is gone
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            mcmc = made(client.get_executor(), deadly(tmp_path), store=Store(tmp_path / "run", draws=3))
    assert (tmp_path / "killed").exists()
    assert same(mcmc.get_samples(group_by_chain=True), expected)


@pytest.mark.long
def test_loky(expected):
    loky = pytest.importorskip("loky", reason="loky is not installed")
    assert same(made(partial(loky.get_reusable_executor, 1)).get_samples(group_by_chain=True), expected)


PROGRAM = """
import pyro, torch
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor
from tests.infer.mcmc.running.test_shards import a_model, made

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    assert MPI.COMM_WORLD.Get_size() == 2
    with MPIPoolExecutor() as executor:
        print(made(executor).get_samples()["s"].tolist())
"""


def two_ranks(*arguments):
    """Run Python in two ranks of Open MPI, or skip the test where there is none."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        pytest.skip("there is no MPI launcher (mpiexec) here")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [mpiexec, *root, "--oversubscribe", "--bind-to", "none", "-n", "2", sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)


@pytest.mark.long
def test_two_ranks_of_openmpi(expected, tmp_path):
    if two_ranks("-c", "from mpi4py import MPI; assert MPI.COMM_WORLD.Get_size() == 2").returncode:
        pytest.skip("mpiexec cannot start two ranks of mpi4py here, which needs Open MPI")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = two_ranks("-m", "mpi4py.futures", str(program))
    assert found.returncode == 0, found.stderr[-2000:]
    assert json.loads(found.stdout.splitlines()[-1]) == expected["s"].flatten().tolist()


def test_a_run_in_shards_is_continued(expected, tmp_path):
    with Here() as executor:
        mcmc = made(executor, draws=12, store=tmp_path / "run")
        mcmc.continue_run(8)
        assert same(mcmc.get_samples(group_by_chain=True), expected)
        with pytest.raises(ValueError, match="has 4 shards, expected 2"):
            made(executor, shards=2, store=tmp_path / "run", resume=True)
        with pytest.raises(ValueError, match="already holds a run"):
            made(executor, store=tmp_path / "run")
        unstored = made(executor, shards=1, draws=2, warmup_steps=2, chains=1)
        with pytest.raises(ValueError, match="and a store if it is in shards"):
            unstored.continue_run(2)


def test_each_shard_checks_its_model_and_its_start(tmp_path):
    starts = {"U": torch.linalg.qr(torch.randn(4, 3, 2))[0], "s": torch.arange(4.0)}
    helpers = types.SimpleNamespace(scale=1.0)

    def model(pull):
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("s", dist.LogNormal(0.0, helpers.scale))
        pyro.factor("pull", pull * U[0, 0])

    options = {"shards": 2, "chains": 4, "initial_params": starts, "store": tmp_path / "run"}
    with Here() as executor:
        made(executor, model, draws=4, warmup_steps=3, **options)
        starts["s"][3] = 0.5
        with pytest.raises(ValueError, match="the fingerprint of initial_params was") as raised:
            made(executor, model, draws=8, warmup_steps=3, resume=True, **options)
        assert raised.value.__notes__ == ["In shard 1 of 2."]
        starts["s"][3], helpers.scale = 3.0, 1.5
        with pytest.raises(ValueError, match=r"another density \(at reference point 0, .*gradient of 's'"):
            made(executor, model, draws=8, warmup_steps=3, resume=True, **options)
        helpers.scale = 1.0
        made(executor, model, draws=8, warmup_steps=3, resume=True, **options)


def test_errors_of_the_model_are_raised_at_once():
    class MineError(Exception):
        def __init__(self, one, other):
            super().__init__(one)

    def wrong(pull):
        raise MineError("no data", 2)

    with Here() as executor, pytest.raises(RuntimeError, match="MineError: no data") as raised:
        made(executor, wrong)
    assert raised.value.__notes__ == ["In shard 0 of 4."]


class Losing(Here):
    """Loses a shard now and then."""

    def __init__(self, times):
        super().__init__()
        self.times, self.calls = times, []

    def submit(self, function, payload, number, attempt):
        self.calls.append((number, attempt))
        if number == 1 and attempt < self.times:
            future = Future()
            future.set_exception(ConnectionError("gone"))
            return future
        return super().submit(function, payload, number, attempt)


def test_lost_shards_are_submitted_again_but_not_for_ever(expected):
    with Losing(2) as executor:
        assert same(made(executor).get_samples(group_by_chain=True), expected)
    assert [call for call in executor.calls if call[0] == 1] == [(1, 0), (1, 1), (1, 2)]
    with Losing(5) as executor, pytest.raises(RuntimeError, match=r"shard 1 ended 3 times \(gone\)"):
        made(executor)


def test_starts_are_those_of_chains():
    starts = {"U": torch.linalg.qr(torch.randn(4, 3, 2))[0], "s": torch.arange(4.0)}
    with Here() as executor:
        for shards in (2, 4):
            mcmc = made(executor, draws=1, warmup_steps=0, shards=shards, chains=4, initial_params=starts)
            assert mcmc.get_samples()["U"].shape == (4, 3, 2)


def test_a_shard_leaves_the_process_as_it_was():
    import cloudpickle

    from pyro_manifold.infer.mcmc.running import Job

    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    options = {"thinning": 1, "save_params": None, "warmup_steps": 2, "disable_validation": True}
    kernel, arguments = OHMC(a_model()), (torch.ones((), dtype=torch.float32),)
    job = Job(MCMC, kernel, 2, 2, None, options, kernel.program(arguments, {}), None, 5)
    outcome = run_shard(cloudpickle.dumps((job, 2, 3, torch.float32)), 1, 0)
    assert outcome.error is None
    assert outcome.samples["U"].dtype == torch.float32
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
    assert threading.active_count() >= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor": 3}, "executor=3, expected a concurrent.futures.Executor"),
        ({"executor": lambda: 3}, "executor returned 3, expected"),
        ({"executor": Here(), "shards": 0}, "count=0, expected a positive number"),
        ({"executor": Here(), "shards": 3}, "num_chains=4 is not divisible by the number of shards, 3"),
        ({"executor": Here(), "threads": 0.5}, "threads=0.5, expected an integer"),
        ({"executor": Here(), "hook_fn": print}, "hook_fn is not supported with shards"),
        ({"executor": Here(), "consumers": [print]}, "consumers is not supported with shards"),
    ],
)
def test_bad_input_is_a_sentence(options, words):
    def go():
        how = {name: options.pop(name) for name in ("executor", "shards", "threads") if name in options}
        made(draws=3, chains=4, **{"shards": 1, **how}, **options)

    with pytest.raises(ValueError, match=words):
        go()


def test_a_broken_pool_is_what_it_is_taken_for():
    from pyro_manifold.infer.mcmc.running import is_loss

    assert is_loss(BrokenProcessPool())
    assert not is_loss(ValueError())
