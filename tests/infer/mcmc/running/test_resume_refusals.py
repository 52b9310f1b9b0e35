"""Changes that the density alone does not show are refused, by runs that are resumed, continued or in shards."""

import dataclasses
import shutil
import types
from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_value
from torch.distributions import AffineTransform
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from pyro_manifold.distributions import SpecialOrthogonalUniform, StiefelUniform, stiefel
from pyro_manifold.distributions.constraints import grassmann
from pyro_manifold.infer import MCMC, OHMC, SGLD, ReplicaExchange, Shards, Store
from pyro_manifold.infer.mcmc.running import ReferencePoints, Run
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel


def made(folder, kernel, args=(), kwargs=None, *, resume=False, draws=8, chains=2, warmup_steps=6, **options):
    pyro.set_rng_seed(5 if resume else 1)
    store = None if folder is None else Store(folder, draws=3)
    mcmc = MCMC(
        kernel, draws, warmup_steps, num_chains=chains, disable_progbar=True, store=store, resume=resume, **options
    )
    mcmc.run(*args, **(kwargs or {}))
    return mcmc


# ---- what positions mean -----------------------------------------------------------------------------------------


def in_units_of(unit):
    x = pyro.sample("x", dist.Uniform(0.0, unit))
    pyro.sample("y", dist.Normal(x / unit, 0.2), obs=torch.tensor(0.3))


@pytest.mark.filterwarnings("ignore:No replica of")
def test_another_unit_of_replicas_is_refused(tmp_path):
    options = {"tempering": ReplicaExchange(levels=3), "warmup_steps": 20}
    made(tmp_path, OHMC(in_units_of), (1.0,), **options)
    with pytest.raises(ValueError, match=r"another density \(at reference point 0, the value of 'x' was 0\.\d+ and is"):
        made(tmp_path, OHMC(in_units_of), (1000.0,), resume=True, **options)
    assert made(tmp_path, OHMC(in_units_of), (1.0,), resume=True, **options).num_samples == 8


class OnlyTheFirst(ThreadPoolExecutor):
    """Is interrupted before it takes a second shard."""

    def submit(self, function, payload, number, attempt):
        if number:
            raise KeyboardInterrupt
        future = super().submit(function, payload, number, attempt)
        future.result()
        return future


def test_a_refused_run_in_shards_begins_none(tmp_path):
    def go(executor, unit):
        options = {"chain_method": Shards(executor, 2), "store": tmp_path / "run"}
        pyro.set_rng_seed(3)
        with executor:
            mcmc = MCMC(OHMC(in_units_of), 4, 4, num_chains=2, disable_progbar=True, resume=True, **options)
            mcmc.run(unit)
        return mcmc.get_samples()["x"]

    with pytest.raises(KeyboardInterrupt):
        go(OnlyTheFirst(1), 1.0)
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    with pytest.raises(ValueError, match="the value of 'x' was") as raised:
        go(ThreadPoolExecutor(1), 1000.0)
    assert raised.value.__notes__ == ["In shard 0 of 2."]
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before
    resumed = go(ThreadPoolExecutor(1), 1.0)
    shutil.rmtree(tmp_path / "run")
    assert torch.equal(resumed, go(ThreadPoolExecutor(1), 1.0))


def test_another_transform_of_a_kernel_is_another_density():
    def kernel(scale):
        return OHMC(lambda: pyro.sample("x", dist.Normal(0.0, 1.0)), transforms={"x": AffineTransform(0.0, 1 / scale)})

    target, other = (kernel(scale).program((), {}).target for scale in (1.0, 3.0))
    start = {"x": torch.zeros(2)}
    assert "the value of 'x' was" in ReferencePoints.near(target, start).difference(other, start)


# ---- the manifold of a site --------------------------------------------------------------------------------------


def on(prior):
    U = pyro.sample("U", prior)
    pyro.factor("pull", 2 * U[0, 0])


def test_another_manifold_is_refused_and_the_run_stays_usable(tmp_path):
    """Of an improper prior; of uniform distributions, with every kernel: `test_conformance.py`."""
    before, after = (dist.ImproperUniform(support, (), (3, 2)) for support in (stiefel, grassmann))
    start = init_to_value(values={"U": torch.eye(3)[:, :2]})
    made(tmp_path, OHMC(on, init_strategy=start), (before,))
    with pytest.raises(ValueError, match=r"the site 'U' was float64 \(3, 2\) on \w+\(\), and is float64"):
        made(tmp_path, OHMC(on, init_strategy=start), (after,), resume=True)
    assert made(tmp_path, OHMC(on, init_strategy=start), (before,), resume=True, draws=12).num_samples == 12


def test_another_manifold_of_a_potential_is_refused(tmp_path):
    starts = {"U": torch.eye(3).expand(2, 3, 3).clone()}

    def kernel(manifold):
        return OHMC(potential_fn=lambda z: -z["U"][0, 0], manifolds={"U": manifold})

    made(tmp_path, kernel(SpecialOrthogonal()), initial_params=starts)
    with pytest.raises(ValueError, match=r"on SpecialOrthogonal\(\), and is float64 \(3, 3\) on Stiefel\(\)"):
        made(tmp_path, kernel(Stiefel()), initial_params=starts, resume=True)


def test_a_run_is_not_continued_on_another_manifold():
    now = types.SimpleNamespace(prior=StiefelUniform(3, 3))
    mcmc = made(None, OHMC(lambda: pyro.sample("U", now.prior)))
    before, now.prior = now.prior, SpecialOrthogonalUniform(3)
    with pytest.raises(ValueError, match=r"continue_run: .* on Stiefel\(\), and is .* on SpecialOrthogonal\(\)"):
        mcmc.continue_run(4)
    now.prior = before
    state = torch.get_rng_state()
    mcmc.continue_run(4)
    assert mcmc.num_samples == 12
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_is_not_continued_with_another_support():
    now = types.SimpleNamespace(largest=1.0)

    def model():
        pyro.sample("x", dist.ImproperUniform(dist.constraints.interval(0.0, now.largest), (), ()))

    mcmc = made(None, OHMC(model, init_strategy=init_to_value(values={"x": torch.tensor(0.4)})))
    now.largest = 5.0
    with pytest.raises(ValueError, match=r"continue_run: .*the value of 'x' was"):
        mcmc.continue_run(4)


def test_shapes_and_names_of_sites_that_are_not_kept_are_sentences(tmp_path):
    def model(name, size):
        pyro.sample(name, dist.Normal(torch.zeros(size), 1.0).to_event(1))
        pyro.sample("w", dist.Normal(0.0, 1.0))

    made(tmp_path, OHMC(model), ("v", 2), save_params=["w"])
    for args, words in (
        (("v", 3), r"\(2,\) in unconstrained space, and is float64 \(3,\)"),
        (("u", 2), "'u' was none"),
    ):
        with pytest.raises(ValueError, match=rf"store='.*' holds a run of another density .*{words}"):
            made(tmp_path, OHMC(model), args, save_params=["w"], resume=True)


# ---- data that come in parts -------------------------------------------------------------------------------------


def rows(y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 64, subsample_size=8) as index:
        pyro.sample("y", dist.Normal(w, 1.0), obs=y[index] if len(y) > 8 else y)


SOURCES = {
    "argument": lambda y: ((y,), {}),
    "data set": lambda y: ((), {"data_loader": DataLoader(TensorDataset(y), batch_size=8, shuffle=True)}),
    "joined": lambda y: ((), {"data_loader": DataLoader(ConcatDataset([TensorDataset(y)]), batch_size=8)}),
    "batches": lambda y: ((), {"data_loader": list(y.split(8))}),
}


@pytest.mark.parametrize(("source", "stored"), [("argument", True), *[(source, False) for source in SOURCES]])
def test_a_run_is_not_continued_with_other_data(tmp_path, source, stored):
    y = torch.linspace(-1, 1, 64)
    args, kwargs = SOURCES[source](y)
    mcmc = made(tmp_path if stored else None, SGLD(rows, step_size=0.001), args, kwargs)
    mcmc.continue_run(2)
    y[40] += 0.01
    with pytest.raises(ValueError, match=r"continue_run: the fingerprint of .* was .*, and is .*: continue with"):
        mcmc.continue_run(2)
    y[40] = torch.linspace(-1, 1, 64)[40]
    mcmc.continue_run(2)
    assert mcmc.num_samples == 12


def test_equal_things_are_not_refused(tmp_path):
    y = torch.linspace(-1, 1, 64)
    zeros = torch.zeros(2)
    made(tmp_path, SGLD(rows, step_size=0.001, scales={"w": 1}), (y,), initial_params={"w": zeros})
    kernel = SGLD(rows, step_size=0.001, scales={"w": 1.0})
    assert made(tmp_path, kernel, (), {"y": y}, initial_params={"w": -zeros}, resume=True).num_samples == 8


# ---- settings ----------------------------------------------------------------------------------------------------


def normal():
    pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))


def test_equal_masses_are_known_by_their_numbers(tmp_path):
    masses = torch.tensor([1.0, 2.0, 3.0])
    made(tmp_path, OHMC(normal, inverse_mass_matrix={"w": masses}))
    equal = {("w",): masses.float().clone().requires_grad_()}
    torch.set_printoptions(precision=2)
    try:
        assert made(tmp_path, OHMC(normal, inverse_mass_matrix=equal), resume=True).num_samples == 8
        with pytest.raises(ValueError, match="the kernel's inverse_masses was"):
            made(tmp_path, OHMC(normal, inverse_mass_matrix={"w": 2 * masses}), resume=True)
    finally:
        torch.set_printoptions(profile="default")


@dataclasses.dataclass(repr=False)
class Table:
    table: torch.Tensor

    def __call__(self, step):
        return float(self.table[step])


@dataclasses.dataclass
class Words(Table):
    """As data classes are by default."""


@pytest.mark.parametrize("kind", [Table, Words])
def test_a_schedule_that_is_a_data_class_is_known_by_its_values(tmp_path, kind):
    table = torch.full((5000,), 0.01)
    made(tmp_path, SGLD(normal, step_size=kind(table)))
    assert made(tmp_path, SGLD(normal, step_size=kind(table.clone())), resume=True).num_samples == 8
    table[10] = table[100] = 0.02
    with pytest.raises(ValueError, match=r"step_size was a function, 0.01 at 0, 0.01 at 1, 0.01 at 10, .*, and is"):
        made(tmp_path, SGLD(normal, step_size=kind(table)), resume=True)


def test_the_order_in_which_a_model_makes_sites_on_manifolds_does_not_count(tmp_path):
    names = ["U", "V", "W"]

    def model():
        for name in names:
            on(StiefelUniform(3, 3)) if name == "U" else pyro.sample(name, StiefelUniform(3, 2))

    straight = made(None, OHMC(model), draws=16).get_samples()
    made(tmp_path, OHMC(model))
    names.reverse()
    resumed = made(tmp_path, OHMC(model), draws=16, resume=True).get_samples()
    assert all(torch.equal(resumed[name], straight[name]) for name in names)


def test_what_does_not_fit_names_the_store(tmp_path, monkeypatch):
    made(tmp_path, OHMC(normal))
    saved = Run.state_dict
    monkeypatch.setattr(Run, "state_dict", lambda run: saved(run) | {"random": torch.zeros(3)})
    made(tmp_path / "other", OHMC(normal))
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"store='.*other' holds another run, or is damaged \(The saved 'random' is"):
        made(tmp_path / "other", OHMC(normal), resume=True)


def test_a_folder_that_was_removed_is_an_error_without_draws(tmp_path):
    mcmc = made(tmp_path / "run", OHMC(normal))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(OSError, match="8 draws of each chain were stored in it, there are no later ones"):
        mcmc.continue_run(4)


# ---- single precision --------------------------------------------------------------------------------------------


@pytest.fixture
def single_precision():
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def well_and_badly_known(scale, x, y):
    b = pyro.sample("b", dist.Normal(torch.zeros(2), torch.tensor([1.0, scale])).to_event(1))
    pyro.sample("y", dist.Normal(x * b[0], 1e-3).to_event(1), obs=y)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.long
def test_the_prior_of_an_unidentified_parameter_is_checked_next_to_a_well_identified_one(tmp_path):
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    y = 1.3 * x + 1e-3 * torch.randn(2000, generator=torch.Generator().manual_seed(1))
    kernel = OHMC(well_and_badly_known, init_strategy=init_to_value(values={"b": torch.tensor([1.3, 0.0])}))
    made(tmp_path, kernel, (1.0, x, y), warmup_steps=50)
    for scale in (1.1, 10.0):
        with pytest.raises(ValueError, match="the gradient of 'b' differs"):
            made(tmp_path, kernel, (scale, x, y), warmup_steps=50, resume=True)
    rewritten = OHMC(
        lambda s, x, y: well_and_badly_known(s, x.flip(0), y.flip(0)), init_strategy=kernel._options.init_strategy
    )
    assert made(tmp_path, rewritten, (1.0, x, y), warmup_steps=50, resume=True).num_samples == 8
