"""Tables of published models: the best setting counts, ratios are of seeds that both have, and wrong means show."""

import json

import pytest

from benchmarks.measure import PEERS
from benchmarks.speed import published
from benchmarks.speed.published import (
    COLUMNS,
    OURS,
    SETTINGS,
    best_settings,
    largest_distance,
    main,
    overview,
    page,
    pooled,
    run_key,
    shares,
)


def run(ess=100.0, seconds=10.0, compiling=4.0, mean=0.0, error=0.1):
    figures = {"ess": ess, "rhat": 1.0, "seconds": seconds, "compiling": compiling, "cpu_seconds": seconds}
    counts = {"gradients": 2000, "gradients_of_draws": 1000, "divergences": 0}
    return figures | counts | {"means": {"a": [mean, error], "b": [1.0, error]}}


def test_settings_are_of_peers():
    assert set(SETTINGS) <= set(PEERS)


def test_the_best_setting_is_chosen_for_each_clock():
    """Of 10 s with 9 s of compilation, and of 5 s without any, each is the better by one clock."""
    runs = {
        ("NumPyro", "one"): {0: run(seconds=10, compiling=9)},
        ("NumPyro", "other"): {0: run(seconds=5, compiling=0)},
    }
    assert best_settings(runs, "whole")["NumPyro"][0] == "other"
    assert best_settings(runs, "compiled")["NumPyro"][0] == "one"


def test_runs_that_failed_do_not_count():
    runs = {("nutpie", "one"): {0: {"failed": "why"}}, ("NumPyro", "one"): {0: {"failed": "why"}, 1: run()}}
    assert best_settings(runs, "whole") == {"NumPyro": ("one", {1: run()})}


def test_ratios_pair_seeds():
    best = {OURS: ("OHMC", {0: run(ess=50), 1: run(ess=80)}), "nutpie": ("diagonal", {1: run(ess=20), 2: run(ess=1)})}
    assert shares(best, "nutpie", lambda run: run["ess"]) == [4.0]


def test_estimates_are_pooled_over_seeds():
    found = pooled({0: run(mean=1.0, error=0.3), 1: run(mean=2.0, error=0.4)})
    assert found["a"] == pytest.approx((1.5, 0.25))


def test_the_package_whose_means_differ_is_seen():
    best = {name: ("setting", {0: run(mean=mean, error=0.3)}) for name, mean in ((OURS, 0.0), ("NumPyro", 3.0))}
    distance, what = largest_distance(OURS, best)
    assert distance == pytest.approx(3 / (0.3 * 2**0.5))
    assert what == "a, NumPyro"


def test_the_overview_counts_models_on_which_we_are_faster():
    models = {
        name: {OURS: ("OHMC", {0: run(ess=ess)}), "nutpie": ("diagonal", {0: run(ess=100)})}
        for name, ess in (("slow", 25.0), ("fast", 400.0))
    }
    text = overview(models, "whole")
    assert "| nutpie | ESS/s | 1 of 2 | 1.00 | 0.25, slow | 4.00, fast |" in text


def test_tables_have_a_row_for_each_package_and_say_what_failed():
    sizes, name = (5, 6), "rats"
    results = {run_key(name, OURS, "OHMC", sizes, seed): run() for seed in (0, 1)}
    results[run_key(name, "nutpie", "diagonal", sizes, 0)] = {"failed": "over 3 s"}
    results[run_key(name, "NumPyro", "vectorised", sizes, 0)] = run(seconds=20)
    results[run_key(name, "NumPyro", "sequential", (5, 7), 0)] = run(seconds=1)
    text = page(results, [name, "seeds"], sizes)
    lines = [line for line in text.splitlines() if line.startswith("| rats")]
    assert [line.split(" | ")[1] for line in lines] == [OURS, "NumPyro, vectorised"] * 2
    assert all(len(line.split(" | ")) == len(COLUMNS["whole"]) for line in lines[:2])
    assert "nutpie | diagonal | 5 + 6 | 0: over 3 s." in text


def test_runs_are_made_once_and_shown_again(tmp_path, monkeypatch, capsys):
    path, made = tmp_path / "results.json", []

    def known(problems, name, setting, threads, limit):
        made.append((name, setting.peer, setting.name, setting.warmup, setting.draws, setting.options["seed"]))
        return None, {"failed": "no time"}

    monkeypatch.setattr(published, "measure_apart", known)
    arguments = ["--only", "rats", "--packages", "nutpie", "--seeds", "3", "--results", str(path)]
    main(arguments)
    assert made == [("rats", "nutpie", setting, 500, 500, 3) for setting in ("diagonal", "low rank")]
    main(arguments)
    main(["--show", "--results", str(path)])
    assert len(made) == 2
    main([*arguments, "--long"])
    assert [sizes[3:5] for sizes in made[2:]] == [(500, 5000)] * 2
    assert len(json.loads(path.read_text())) == 4
    assert "no time" in capsys.readouterr().out


@pytest.mark.long
def test_one_model_runs_end_to_end(capsys):
    main(["--only", "non-centred", "--packages", OURS, "--seeds", "0", "--sizes", "30", "40"])
    text = capsys.readouterr().out
    assert text.count("| eight schools, non-centred | pyro_manifold |") == 2
