"""SVI over two processes on loopback: equal parameters, the mean of gradients, and what goes wrong."""

import os
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.distributed
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

from pyro_manifold import constraints
from pyro_manifold.contrib import DistributedOptimizer
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
from pyro_manifold.manifolds import Stiefel
from pyro_manifold.optim import RiemannianAdam, RiemannianMomentum

PROCESSES = 2
ROWS = torch.randn(12, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def bits():
    """All parameters of this process."""
    return {name: value.detach().clone() for name, value in pyro.get_param_store().items()}


def regression(y):
    U = pyro.sample("U", StiefelUniform(5, 2))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(ROWS), subsample_size=len(y)):
        pyro.sample("y", dist.Normal(scale * U, 1.0).to_event(2), obs=y)


def with_minibatches(rank):
    """Every process has rows, minibatches, noise and initial values of its own."""
    pyro.set_rng_seed(rank)
    svi = SVI(
        regression,
        AutoStiefelLowRankMultivariateNormal(regression, rank=2),
        DistributedOptimizer(RiemannianAdam({"lr": 0.05})),
        Trace_ELBO(),
    )
    rows = ROWS[rank::PROCESSES]
    for _ in range(10):
        svi.step(rows[torch.randperm(len(rows))[:3]])
    return bits()


def nearest(rows):
    """The orthonormal matrix nearest to the mean of all rows, from some of them."""
    X = pyro.param("X", lambda: Stiefel().random_point(5, 2), constraint=constraints.stiefel)
    shift = pyro.param("shift", torch.zeros(2))
    with pyro.plate("rows", len(ROWS), subsample_size=len(rows)):
        pyro.factor("fit", -0.5 * (rows - X - shift).square().sum((-2, -1)))


def of_all_rows(optim, rows, steps=20):
    pyro.get_param_store().clear()
    torch.manual_seed(0)
    svi = SVI(nearest, lambda rows: None, optim, Trace_ELBO())
    for _ in range(steps):
        svi.step(rows)
    return bits()


def mean_of_gradients(rank):
    optim = DistributedOptimizer(RiemannianMomentum({"lr": 0.002}))
    # The first step meets new parameters, and so does not count rows of other processes: all of them are here.
    pyro.set_rng_seed(rank)
    of_all_rows(optim, ROWS, steps=1)
    svi = SVI(nearest, lambda rows: None, optim, Trace_ELBO())
    for _ in range(19):
        svi.step(ROWS[rank::PROCESSES])
    return bits()


def partly_used(rank):
    """Process 1 leaves a parameter out of every second step."""

    def model(step):
        a = pyro.param("a", torch.tensor(float(rank)))
        if rank == 0 or step % 2 == 0:
            pyro.factor("of b", -(pyro.param("b", torch.tensor(5.0 + rank)) - a).square())
        pyro.factor("of a", -(a - rank).square())

    svi = SVI(model, lambda step: None, DistributedOptimizer(RiemannianAdam({"lr": 0.1})), Trace_ELBO())
    for step in range(300):
        svi.step(step)
    return bits()


def sentence(rank, model, expected=ValueError):
    svi = SVI(model, lambda: None, DistributedOptimizer(RiemannianAdam({"lr": 0.1})), Trace_ELBO())
    with pytest.raises(expected) as raised:
        svi.step()
    return str(raised.value)


def unknown(rank):
    return sentence(rank, lambda: pyro.factor("f", -pyro.param("only here" if rank else "there", torch.ones(2)).sum()))


def of_other_shapes(rank):
    return sentence(rank, lambda: pyro.factor("f", -pyro.param("w", torch.ones(2 + rank)).sum()))


def same_seeds(rank):
    pyro.set_rng_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of_all_rows(DistributedOptimizer(RiemannianAdam({"lr": 0.1})), ROWS, steps=2)
    return [str(each.message) for each in caught]


SCENES = (with_minibatches, mean_of_gradients, partly_used, unknown, of_other_shapes, same_seeds)


def work(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES
    )
    found = {}
    for scene in SCENES:
        pyro.clear_param_store()
        found[scene.__name__] = scene(rank)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of each scene in each process; starting processes takes most of the time."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=PROCESSES)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


def test_a_single_process_takes_the_steps_of_the_optimiser(tmp_path):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    alone = of_all_rows(RiemannianMomentum({"lr": 0.002}), ROWS)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        together = of_all_rows(DistributedOptimizer(RiemannianMomentum({"lr": 0.002})), ROWS)
    finally:
        torch.distributed.destroy_process_group()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("scene", ["with_minibatches", "mean_of_gradients", "partly_used"])
def test_parameters_are_equal_to_the_last_bit(found, scene):
    first, second = (each[scene] for each in found)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.long
def test_steps_are_those_of_one_process_with_all_rows(found):
    alone = of_all_rows(RiemannianMomentum({"lr": 0.002}), ROWS)
    assert not torch.allclose(alone["X"], ROWS.mean(0))
    # Process 0 has the seed 0 too, and so the initial value of the processes.
    for name, value in alone.items():
        torch.testing.assert_close(found[0]["mean_of_gradients"][name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_a_parameter_that_a_process_leaves_out_counts_with_gradient_zero(found):
    """The mean of the losses (a - rank)² and a half to a whole of (b - a)²: a = b = 1/2."""
    for name in ("a", "b"):
        assert abs(float(found[0]["partly_used"][name]) - 0.5) < 0.01


@pytest.mark.long
def test_sentences(found):
    for each in found:
        assert "Process 0 has no parameter 'only here'" in each["unknown"]
        assert "Parameter 'w' has shape and dtype ((3,), 'torch.float64') in process 1" in each["of_other_shapes"]
        assert any("pyro.set_rng_seed(seed + rank)" in said for said in each["same_seeds"])


def test_bad_arguments():
    with pytest.raises(ValueError, match="optim is 3, expected an optimiser for SVI"):
        DistributedOptimizer(3)
    with pytest.raises(ValueError, match="expected an optimiser for SVI"):
        DistributedOptimizer(DistributedOptimizer(RiemannianAdam({"lr": 0.1})))
    svi = SVI(regression, AutoNormal(regression), DistributedOptimizer(RiemannianAdam({"lr": 0.1})), Trace_ELBO())
    with pytest.raises(RuntimeError, match="there is no process group"):
        svi.step(ROWS)
