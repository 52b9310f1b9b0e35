"""Changed models and data are noticed by their density, unchanged ones are never refused."""

import collections
import dataclasses
import decimal
import functools
import math
import threading
import types

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch.utils.data import DataLoader, Dataset

from pyro_manifold.density import target_from_model, target_from_potential
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, MSD, OHMC, OSGHMC, SGLD, Store
from pyro_manifold.infer.mcmc.running import ReferencePoints, difference, named

# ---- changes of one thing that a model names ---------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Slotted:
    value: float


def a_model(*, location=0.0, scale=1.0, noise=0.5, prior=dist.Normal, y=1.0):
    w = pyro.sample("w", prior(location, scale))
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.sample("y", dist.Normal(w + U[0, 0], noise), obs=torch.as_tensor(y))


def enclosing(read, value):
    """A model that reads its data from an object."""
    return lambda: a_model(y=read(value))


def in_module(**names):
    """A model that looks its names up in a module at each call, as an import does."""
    helpers = types.ModuleType("helpers")
    vars(helpers).update(names)
    return lambda: a_model(scale=helpers.SIGMA, location=helpers.location())


def from_store(value):
    """A model with a parameter of Pyro's store."""

    def model():
        a_model(location=pyro.param(f"location {value}", torch.tensor(value)))

    return model


def mixture(share):
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Categorical(torch.tensor([share, 1 - share])), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(w + z, 0.5), obs=torch.linspace(0, 1, 4))

    return model


def many(y):
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w, 1.0).expand([len(y)]).to_event(1), obs=y)

    return model


def bounded(largest):
    def model():
        w = pyro.sample("w", dist.Uniform(0.0, largest))
        pyro.sample("y", dist.Normal(w, 0.5), obs=torch.ones(()))

    return model


def with_outlier(size=10_000):
    y = torch.linspace(-1, 1, size)
    y[777] += 0.1
    return y


class Module(PyroModule):
    def __init__(self, scale=1.0, bias=0.3):
        super().__init__()
        self.w = PyroSample(dist.Normal(0.0, scale))
        self.bias = torch.nn.Parameter(torch.tensor(bias))

    def forward(self, y=1.0):
        return pyro.sample("y", dist.Normal(self.w + self.bias, 0.5), obs=torch.as_tensor(y))


def module(**options):
    pyro.clear_param_store()
    return Module(**options)


CHANGES = {
    "scale": (lambda: a_model(scale=1.0), lambda: a_model(scale=1.1)),
    "a little noise": (lambda: a_model(noise=0.5), lambda: a_model(noise=0.500001)),
    "family": (lambda: a_model(), lambda: a_model(prior=dist.Laplace)),
    "attribute of a module": (in_module(SIGMA=1.0, location=float), in_module(SIGMA=1.1, location=float)),
    "function of a module": (in_module(SIGMA=1.0, location=float), in_module(SIGMA=1.0, location=lambda: 0.1)),
    "range": (enclosing(sum, range(3)), enclosing(sum, range(4))),
    "slice": (enclosing([0.1, 0.2].__getitem__, 0), enclosing([0.1, 0.2].__getitem__, 1)),
    "deque": (enclosing(sum, collections.deque([1.0])), enclosing(sum, collections.deque([2.0]))),
    "Decimal": (enclosing(float, decimal.Decimal("1.0")), enclosing(float, decimal.Decimal("1.5"))),
    "slots": (enclosing(lambda s: s.value, Slotted(1.0)), enclosing(lambda s: s.value, Slotted(1.2))),
    "pyro.param": (from_store(0.0), from_store(0.2)),
    "partial": (functools.partial(a_model, y=2.0), functools.partial(a_model, y=2.1)),
    "summed out": (mixture(0.3), mixture(0.31)),
    "one of 10,000 data": (many(torch.linspace(-1, 1, 10_000)), many(with_outlier())),
    "weight of a module": (lambda: module()(), lambda: module(bias=0.4)()),
    "prior of a module": (lambda: module()(), lambda: module(scale=1.2)()),
    "bound of a prior": (bounded(5.0), bounded(6.0)),
    "a constant": (lambda: a_model(), lambda: (a_model(), pyro.factor("c", torch.tensor(0.1)))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_and_nothing_else_is(name):
    before, after = CHANGES[name]
    target = target_from_model(before)
    start = {site: x.unsqueeze(0) for site, x in target.draw().items()}
    points = ReferencePoints.near(target, start)
    assert points.difference(target_from_model(before), start) is None
    assert "at reference point 0, the log density was" in points.difference(target_from_model(after), start)


def test_points_are_on_their_manifolds_and_the_same_for_the_same_start():
    target = target_from_model(a_model)
    start = {site: x.unsqueeze(0) for site, x in target.draw().items()}
    points, again = (ReferencePoints.near(target, start) for _ in range(2))
    U = points.position["U"]
    assert U.shape == (3, 3, 2)
    assert torch.allclose(U.mT @ U, torch.eye(2).expand(3, 2, 2))
    assert all(torch.equal(points.position[name], again.position[name]) for name in start)
    state = torch.get_rng_state()
    ReferencePoints.near(target, start)
    assert torch.equal(torch.get_rng_state(), state)


def potential(function, size=2):
    start = {"w": torch.zeros(1, size)}
    return target_from_potential(function, start, {}, None), start


def test_a_model_that_fails_or_is_infinite_there_is_known_again_and_seen_where_it_is_finite():
    def failing(z):
        raise RuntimeError("no")

    def infinite(z):
        return torch.where(z["w"].abs().max() < 1e-9, 0.0, torch.inf) + z["w"].sum()

    for function in (failing, infinite):
        target, start = potential(function)
        points = ReferencePoints.near(target, start)
        assert not points.values["log density"].isfinite().any()
        assert points.difference(target, start) is None
        assert "log density" in points.difference(potential(lambda z: z["w"].square().sum())[0], start)


def test_gradients_differ_though_log_densities_agree():
    recorded = named(torch.zeros(2), {"a": torch.zeros(2, 3), "b": torch.zeros(2, 1), "c": torch.zeros(2, 0)})

    def found(_):
        return {**recorded, "'a'": torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.25, 0.0]])}

    position = {"a": torch.zeros(2, 3), "b": torch.zeros(2, 1), "c": torch.zeros(2, 0)}
    clause = difference(found, position, recorded, "where chain {} is")
    assert clause == "where chain 1 is, the gradient of 'a' differs by up to 0.25"


def test_a_chain_far_away_does_not_hide_another():
    recorded = named(torch.tensor([-1e12, -1.0]), {})
    clause = difference(lambda _: named(torch.tensor([-1e12, -1.1]), {}), {"a": torch.zeros(2)}, recorded, "at {}")
    assert clause == "at 1, the log density was -1 and is -1.1, -0.1"


def test_digits_that_rounding_loses_are_no_difference():
    """A square written out, in two orders: of 1e18 nothing is left."""

    def one(z):
        return named(-(z["a"] ** 2 - 2e9 * z["a"] + 1e18), {"a": z["a"]})

    def other(z):
        return named(-(z["a"] ** 2 + 1e18 - 2e9 * z["a"]), {"a": z["a"]})

    position = {"a": 1e9 + torch.tensor([0.3, math.pi])}
    assert not torch.allclose(one(position)["log density"], other(position)["log density"])
    assert difference(one, position, other(position), "at {}") is None
    assert difference(one, position, {**other(position), "log density": torch.tensor([1e6, 0.0])}, "at {}")


# ---- stored runs -------------------------------------------------------------------------------------------------


def made(folder, kernel, args=(), *, resume=False, loader=None, **options):
    pyro.set_rng_seed(5 if resume else 1)
    store = None if folder is None else Store(folder, draws=3)
    mcmc = MCMC(kernel, 8, 6, num_chains=2, disable_progbar=True, store=store, resume=resume, **options)
    mcmc.run(*args, data_loader=loader)
    return mcmc


class Lazy:
    """A model with what Python fills by itself, and what cannot be pickled."""

    def __init__(self):
        self.y, self.lock = torch.linspace(0, 1, 5), threading.Lock()

    @functools.cached_property
    def mean(self):
        return self.y.mean()

    @functools.cached_property
    def total(self):
        """Asked for by who looks at the draws."""
        return self.y.sum()

    @functools.cache  # noqa: B019
    def scale(self):
        return 0.5

    def __call__(self):
        w = pyro.sample("w", dist.Normal(self.mean, 1.0))
        pyro.sample("y", dist.Normal(w, self.scale()).expand([5]).to_event(1), obs=self.y)


def of(text):
    space = {"pyro": pyro, "dist": dist, "__name__": "__main__"}
    exec(text, space)
    return space["model"]


SOURCE = """
def model():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
"""
REWRITTEN = """
SCALE = 1.0
def prior(unused=3):
    "The same."
    return dist.Normal(0.0, SCALE)
def model():  # not a word of which is the same
    x = pyro.sample("w", prior()) + 1
"""
lazy = Lazy()


@pytest.mark.parametrize(
    "pair",
    {
        "cached_property": (lazy, lazy),
        "unpicklable": (Lazy(), Lazy()),
        "method": (Lazy().__call__, Lazy().__call__),
        "lambda": (lambda: a_model(), lambda: a_model()),
        "partial": (functools.partial(a_model, y=2.0), functools.partial(a_model, y=2.0)),
        "text": (of(SOURCE), of(REWRITTEN)),
        "module": (module(), module()),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_an_unchanged_model_continues(tmp_path, pair):
    before, after = pair[1]
    made(tmp_path, OHMC(before))
    assert not isinstance(before, Lazy) or before.total > 0
    assert made(tmp_path, OHMC(after), resume=True).num_samples == 8


@pytest.mark.long
def test_a_change_where_no_chain_is_is_noticed(tmp_path):
    """At the chains' positions both have the same density."""
    wall = types.SimpleNamespace(height=0.0)

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 0.01).expand([2]).to_event(1))
        pyro.factor("wall", -wall.height * (w.abs() - 0.2).clamp(min=0).sum())

    made(tmp_path, OHMC(model))
    wall.height = 5.0
    with pytest.raises(
        ValueError, match=r"of another density \(at reference point \d, the log density was .*resume it"
    ):
        made(tmp_path, OHMC(model), resume=True)


def test_the_metric_of_a_kernel_is_noticed(tmp_path):
    metric = types.SimpleNamespace(scale=1.0)

    def kernel():
        model = lambda: pyro.sample("w", dist.Normal(0.0, 1.0))  # noqa: E731
        return MSD(model, step_size=0.2, metric=lambda _: metric.scale * torch.ones(1, 1))

    made(tmp_path, kernel())
    made(tmp_path, kernel(), resume=True)
    metric.scale = 2.0
    with pytest.raises(ValueError, match="where chain 0 is, the metric differs"):
        made(tmp_path, kernel(), resume=True)


def test_initial_values_and_settings_are_noticed(tmp_path):
    starts = {"w": torch.zeros(2), "U": torch.eye(3)[:, :2].expand(2, 3, 2).clone()}
    made(tmp_path, OHMC(a_model), initial_params=starts)
    made(tmp_path, OHMC(a_model), initial_params={name: x.clone() for name, x in starts.items()}, resume=True)
    for other in ({**starts, "w": torch.ones(2)}, None):
        with pytest.raises(ValueError, match=r"the fingerprint of initial_params was .*, and is"):
            made(tmp_path, OHMC(a_model), initial_params=other, resume=True)
    for kernel in (OHMC(a_model, adapt_mass_matrix=False), OHMC(a_model, full_mass=True), GHMC(a_model)):
        with pytest.raises(ValueError, match=r"the kernel.* was .*, and is"):
            made(tmp_path, kernel, initial_params=starts, resume=True)


def rows(y, scale=1.0):
    w = pyro.sample("w", dist.Normal(0.0, scale))
    with pyro.plate("rows", 64, subsample_size=8) as index:
        pyro.sample("y", dist.Normal(w, 1.0), obs=y[index] if len(y) > 8 else y)


class Own(Dataset):
    def __init__(self, y):
        self.y, self.seen = y, {}

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.seen.setdefault(index, self.y[index])


def test_one_datum_of_minibatches_is_noticed(tmp_path):
    y = torch.linspace(-1, 1, 64)
    other = y.clone()
    other[40] += 0.01

    def by_plate(y, **options):
        return made(tmp_path / "plate", OSGHMC(rows, step_size=0.01, friction=0.1), (y,), **options)

    def by_loader(data, name="loader", **options):
        loader = DataLoader(data, batch_size=8, shuffle=True)
        return made(tmp_path / name, OSGHMC(rows, step_size=0.01, friction=0.1), loader=loader, **options)

    by_plate(y)
    by_plate(y.clone(), resume=True)
    with pytest.raises(ValueError, match="the fingerprint of the model's arguments was"):
        by_plate(other, resume=True)
    by_loader(y.tolist() and torch.utils.data.TensorDataset(y))
    by_loader(torch.utils.data.TensorDataset(y.clone()), resume=True)
    with pytest.raises(ValueError, match="the fingerprint of data_loader was"):
        by_loader(torch.utils.data.TensorDataset(other), resume=True)
    own = Own(y)
    by_loader(own, "own")
    by_loader(own, "own", resume=True)
    with pytest.raises(ValueError, match=r"of another density \(at reference point 0"):
        by_loader(Own(y + 0.1), "own", resume=True)


def test_a_schedule_that_is_a_function_is_known_by_its_values(tmp_path):
    y = torch.linspace(-1, 1, 64)
    table = [0.01, 0.005, *[0.001] * 30]
    made(tmp_path, SGLD(rows, step_size=lambda step: table[step]), (y,))
    made(tmp_path, SGLD(rows, step_size=table.__getitem__), (y,), resume=True)
    with pytest.raises(ValueError, match=r"step_size was a function, 0.01 at 0, 0.005 at 1, 0.001 at 10, and is"):
        made(tmp_path, SGLD(rows, step_size=lambda step: 0.5 * table[step]), (y,), resume=True)


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_is_not_continued_with_another_density(tmp_path, stored):
    helpers = types.SimpleNamespace(SIGMA=1.0)
    mcmc = made(tmp_path if stored else None, OHMC(lambda: a_model(scale=helpers.SIGMA)))
    before = mcmc.get_samples(group_by_chain=True)["w"]
    helpers.SIGMA = 1.5
    with pytest.raises(ValueError, match=r"continue_run: the density is no longer that of the run \(at reference"):
        mcmc.continue_run(4)
    assert torch.equal(mcmc.get_samples(group_by_chain=True)["w"], before)
    helpers.SIGMA = 1.0
    mcmc.continue_run(4)
    assert mcmc.num_samples == 12
