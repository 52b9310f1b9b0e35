"""Bad arguments of the papers' programs end in one sentence, and stored runs are not shown for other settings."""

import importlib
import json
import shlex

import pytest
import torch

from benchmarks import stored
from benchmarks.images import generated, mnist
from benchmarks.papers.nnsghmc import paper_runs
from benchmarks.papers.variational import compare
from pyro_manifold.infer import MetaSampler

CASES = [
    ("nnsghmc.mnist", "--short --paper --sampler networks --kernels PSGLD", "invalid choice: 'PSGLD'"),
    ("nnsghmc.mnist", "--short --paper --sampler networks --seeds 0", "0, expected an integer ≥ 1"),
    ("nnsghmc.mnist", "--short --paper --sampler networks --validate", "--validate has no effect with --paper"),
    ("nnsghmc.mnist", "--short --sampler networks --tune", "--tune has no effect without --paper"),
    ("nnsghmc.mnist", "--short --sampler nobody", "There is no sampler 'nobody'"),
    ("nnsghmc.mnist", "--short --paper --train f.npz --digits 3210", "digits in ascending order"),
    ("nnsghmc.mnist", "--store empty --figure curves.png", "has no runs of --paper"),
    ("nnsghmc.mnist", "--figure nowhere/curves.png", "expected a file in a folder that exists"),
    ("nnsghmc.mnist", "--contours contours.png", "--contours needs --sampler"),
    ("nnsghmc.mnist", "--sampler networks --contours contours.png", "whose Q sees the energy"),
    ("nnsghmc.music", "--store empty --figure curves.png", "has no runs"),
    ("nnsghmc.music", "--short --train f.npz --training-chains 1", "expected 4 or more"),
    ("nnsghmc.gaussian", "--covariances empty", "with files Cov_rand_*"),
    ("nnsghmc.gaussian", "--train nowhere/f.npz", "expected a file in a folder that exists"),
    ("nnsghmc.gaussian", "--figure nowhere/f.png", "expected a file in a folder that exists"),
    ("nnsghmc.gaussian", "--train f.npz --figure f.png", "--figure has no effect with --train"),
    ("nnsghmc.gaussian", "--rounds 3", "--rounds has no effect without --train"),
    ("nnsghmc.gaussian", "--short --steps 100", "--steps has no effect with --short"),
    ("variational.compare", "spline --methods nobody", "invalid choice: 'nobody'"),
    ("variational.compare", "ionosphere --seeds 3", "--seeds has no effect on ionosphere"),
    ("variational.compare", "leukemia --ranks 0", "--ranks 0 is for the splines"),
    ("variational.figure", "nowhere", "nowhere is no folder"),
    ("msd.robot_arm", "--draws 30 --dropped 25", "expected --dropped and more than"),
    ("msd.robot_arm", "--step-size 0", "expected a finite number > 0"),
    ("msd.paper_table", "--figure nowhere/figure.png", "expected a file in a folder that exists"),
    ("ohmc.mnist", "--small --first-seed 7", "--first-seed has no effect without --paper"),
    ("ohmc.mnist", "--small --step-size 0.5", "--step-size has no effect with --small"),
    ("ohmc.mnist", "--small --held-out 600", "expected fewer than the 600 training images"),
    ("ohmc.vgg", "--small --rate 0.5", "--rate has no effect with --small"),
    ("ohmc.vgg", "--data empty", "cifar-10-batches-py as --data"),
    ("ohmc.low_rank_network", "--small --epochs 3", "--epochs has no effect with --small"),
    ("ohmc.ratings", "--data empty", "u.data of MovieLens-100k as --data"),
    ("ohmc.exponentials", "--chains 0", "0, expected an integer ≥ 1"),
    ("ohmc.figures", "--folder nowhere", "expected a folder that exists"),
    ("ohmc.paper_tables", "--small --step-sizes", "expected at least one argument"),
]


@pytest.mark.parametrize(("name", "arguments", "sentence"), CASES, ids=[f"{name} {words}" for name, words, _ in CASES])
def test_one_sentence(name, arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    main = importlib.import_module(f"benchmarks.papers.{name}").main
    with pytest.raises(SystemExit) as end:
        main(shlex.split(arguments))
    torch.set_default_dtype(torch.float64)
    said = capsys.readouterr().err if end.value.code == 2 else str(end.value)
    assert sentence in said
    assert said.strip().splitlines()[-1].count(sentence) == 1


def test_files_that_are_not_mnist(tmp_path):
    with pytest.raises(SystemExit, match="is missing: give the folder"):
        mnist(tmp_path, "train")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"no images")
    with pytest.raises(SystemExit, match="is damaged or no file of MNIST"):
        mnist(tmp_path, "train")


TRAIN, TEST = generated(60, 1), generated(40, 2)
OTHERS = {
    "rate": {"rate": 2e-3},
    "chains": {"chains": 3},
    "sampler": {"sampler": MetaSampler.load("gaussian")},
    "training images": {"train": generated(60, 3)},
    "test images": {"test": generated(40, 3)},
}


@pytest.mark.filterwarnings("ignore:No native code")  # where there is no C compiler
def test_a_stored_run_is_not_shown_for_other_settings(tmp_path):
    first = {"rate": 1e-3, "sampler": MetaSampler.load("networks"), "train": TRAIN, "test": TEST, "chains": 2}

    def run(**options):
        return paper_runs.Run(tmp_path / "run.pt", "ReLU", "NNSGHMC", seed=1, **{**first, **options})

    torch.set_default_dtype(torch.float32)
    run().advance(10)
    assert len(run().curve) == 1
    for changed, options in OTHERS.items():
        with pytest.raises(SystemExit, match=f"has a run with {changed}"):
            run(**options)
    (tmp_path / "run.pt").unlink()
    assert run(**OTHERS["rate"]).curve == []  # a page without its state is that of nothing


def test_fits_with_other_settings_are_kept(tmp_path):
    row = {"method": "VAFC", "rank": 1, "settings": [0.0, 4, 8, 10, "log"]}
    path = tmp_path / "spline.json"
    stored.write_json(path, [row, {"method": "NUTS", "rank": ""}])
    assert set(compare.stored(path, row["settings"])) == {("VAFC", 1), ("NUTS", "")}
    with pytest.raises(SystemExit, match="pass another --name"):
        compare.stored(path, [0.0, 3, 8, 10, "log"])
    assert json.loads(path.read_text())[0] == row


def test_damaged_files(tmp_path):
    for read in (stored.read_json, stored.read_state):
        (tmp_path / "file").write_bytes(b"{")
        with pytest.raises(SystemExit, match="is damaged"):
            read(tmp_path / "file")
