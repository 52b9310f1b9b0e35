"""Models of posteriordb have one density in Pyro, NumPyro and PyMC, and are read from a folder of its form."""

import json
import zipfile

import numpy as np
import pytest
import torch

from benchmarks.problems.posteriordb import Problem, languages, names
from benchmarks.problems.posteriordb.models import MODELS
from benchmarks.speed import posteriordb
from pyro_manifold.infer import OHMC
from tests.benchmarks.problems.test_published import density
from tests.benchmarks.problems.test_published_peers import by_pymc
from tests.benchmarks.requirements import needs

ROWS, POINTS = 12, 4
LOOPS = ("hmm_drive_0", "hmm_drive_1", "hmm_example", "arma11", "garch11", "lotka_volterra", "one_comp_mm_elim_abs")
RNG = np.random.default_rng(0)
SIZES = ("weight", "diam1", "diam2", "canopy_height", "total_height", "density")
COLUMNS = ("earn", "height", "kid_score", "mom_iq", "partyid7", "real_ideo", "race_adj", "educ1", "income", *SIZES)
REGRESSION = (
    {name: 0.5 + RNG.random(ROWS) for name in COLUMNS}
    | {name: RNG.integers(0, 2, ROWS) for name in ("male", "mom_hs", "group", "gender")}
    | {name: RNG.integers(1, 5, ROWS) for name in ("mom_work", "age_discrete")}
)
SERIES = RNG.normal(size=ROWS)
SCHOOLS = {"y": SERIES[:8], "sigma": np.full(8, 2.0)}
DRIVES = {"u": abs(SERIES), "v": RNG.random(ROWS), "alpha": np.array([[4.0, 2], [2, 4]]), "tau": 0.1, "rho": 0.1}
OTHER = {
    "arK": {"K": 2, "y": SERIES},
    "arma11": {"y": SERIES},
    "garch11": {"y": SERIES, "sigma1": 0.5},
    "blr": {"X": RNG.normal(size=(ROWS, 3)), "y": SERIES},
    "diamonds": {"X": RNG.normal(size=(ROWS, 3)), "Y": SERIES},
    "gp_regr": {"x": np.arange(5.0), "y": SERIES[:5]},
    "gp_pois_regr": {"x": np.arange(5.0), "k": RNG.integers(0, 9, 5)},
    "eight_schools_centered": SCHOOLS, "eight_schools_noncentered": SCHOOLS,
    "hmm_drive_0": DRIVES, "hmm_drive_1": DRIVES,
    "hmm_example": {"y": SERIES + 5},
    "kilpisjarvi": {"x": np.arange(ROWS), "y": SERIES, "pmualpha": 9.0, "psalpha": 100.0, "pmubeta": 0, "psbeta": 0.03},
    "lotka_volterra": {"ts": np.arange(1.0, 4), "y_init": np.array([30.0, 4]), "y": 10 + RNG.random((3, 2))},
    "low_dim_gauss_mix": {"y": SERIES},
    "one_comp_mm_elim_abs": {"D": 30, "V": 2, "t0": 0, "times": np.arange(0.5, 3), "C_hat": 5 + RNG.random(3)},
}  # fmt: skip
over_models = pytest.mark.parametrize("model", MODELS)


def data_of(model):
    bushes = {name: REGRESSION[name] for name in (*SIZES, "group")}
    return OTHER.get(model, bushes if "mesquite" in model else REGRESSION)


def in_pyro(model):
    return lambda: MODELS[model](languages.Pyro(), data_of(model))


def points(model):
    """Values where chains begin, and densities there by Pyro."""
    values = {site: x.numpy() for site, x in OHMC(in_pyro(model)).prepare(POINTS, 0, None).values.items()}
    at = [{site: x[k] for site, x in values.items()} for k in range(POINTS)]
    tensors = [{site: torch.as_tensor(x) for site, x in point.items()} for point in at]
    return at, np.array([float(density(in_pyro(model), point)) for point in tensors])


def assert_alike(found, expected):
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-8, atol=1e-7)


@pytest.mark.long
@needs("numpyro")
@over_models
def test_the_density_in_numpyro_up_to_a_constant(model):
    import jax
    from numpyro.infer.util import log_density

    at, expected = points(model)
    with jax.enable_x64(True):
        language = languages.NumPyro()
        found = [float(log_density(lambda: MODELS[model](language, data_of(model)), (), {}, x)[0]) for x in at]
    assert_alike(np.array(found), expected)


@pytest.mark.long
@needs("pymc")
@pytest.mark.parametrize("model", [model for model in MODELS if model not in LOOPS])
def test_the_density_in_pymc_up_to_a_constant(model):
    import pymc

    at, expected = points(model)
    with pymc.Model() as program:
        MODELS[model](languages.PyMC(), data_of(model))
    assert_alike(np.array(by_pymc(program, at)), expected)


@pytest.fixture
def folder(tmp_path):
    """A folder of the form of posteriordb, with a regression that it does not have."""

    def zipped(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, json.dumps(content))

    about = {"model_name": "kidscore_momiq", "data_name": "kids", "reference_posterior_name": "kids-kidscore_momiq"}
    (tmp_path / "posteriors").mkdir()
    for name, entries in {"kids-kidscore_momiq": about, "other": about | {"model_name": "none of ours"}}.items():
        (tmp_path / "posteriors" / f"{name}.json").write_text(json.dumps({"name": name, **entries}))
    zipped(tmp_path / "data/data/kids.json.zip", {name: list(map(float, x)) for name, x in REGRESSION.items()})
    chains = [{name: RNG.normal(k, 1, 500).tolist() for k, name in enumerate(("beta[1]", "beta[2]", "sigma"))}] * 2
    zipped(tmp_path / "reference_posteriors/draws/draws/kids-kidscore_momiq.json.zip", chains)
    return tmp_path


def test_a_posterior_is_read_with_its_reference_draws(folder):
    assert names(folder) == ["kids-kidscore_momiq"]
    problem = Problem(folder, "kids-kidscore_momiq")
    reference = problem.references()["beta[2]"]
    assert reference.mean == pytest.approx(1, abs=5 * reference.mean_error)
    assert reference.deviation == pytest.approx(1, abs=5 * reference.deviation_error)
    draws = {"beta": np.random.default_rng(1).normal([0, 1], 1, (2, 400, 2)), "sigma": RNG.normal(2, 1, (2, 400))}
    values = problem.values(draws)
    assert {name: x.shape for name, x in values.items()} == dict.fromkeys(("beta[1]", "beta[2]", "sigma"), (2, 400))
    np.testing.assert_array_equal(values["beta[2]"], draws["beta"][..., 1])
    assert max(posteriordb.distances(values, problem.references())) < 4.5
    values["sigma"] = 1.3 * values["sigma"]
    z, of_deviations = posteriordb.distances(values, problem.references())
    assert z > 8
    assert of_deviations > 4.5


def test_the_table_takes_the_better_setting_of_each_peer(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("POSTERIORDB", str(folder))
    common = {"seconds": 3.0, "compiling": 1.0, "cpu_seconds": 3.0, "divergences": 0, "rhat": 1.001, "parameters": 3}
    runs = {
        posteriordb.run_key("kids-kidscore_momiq", package, setting, (1000, 1000), 0): common
        | {"ess": ess, "z": 1.0, "z_of_deviations": 2.0}
        for package, setting, ess in (
            (posteriordb.OURS, "OHMC", 3000), ("NumPyro", "diagonal", 1000), ("NumPyro", "dense", 1500),
        )
    }  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    posteriordb.main(["--show", "--results", str(tmp_path / "runs.json")])
    row = capsys.readouterr().out.strip().splitlines()[-1]
    assert row == "| kids-kidscore_momiq | 3 | 1.0 | 2.0 | 1.001 | 3.0 | 1000 | 2.00 | dense, 1.001 |"
