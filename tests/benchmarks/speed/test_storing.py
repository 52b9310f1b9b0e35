"""What storing costs: memory is told as a run goes, and draws are those of one worker."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib
import pytest

from benchmarks.speed.storing import memory, workers

matplotlib.use("Agg")


def test_memory_is_reported_a_hundred_times(tmp_path, capsys):
    memory.main(["--child", "200", str(tmp_path / "run")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(iteration) for iteration, _ in lines] == list(range(2, 201, 2))
    assert all(float(size) > 10 for _, size in lines)


def test_the_last_nine_tenths_of_a_stored_run_are_reported(monkeypatch, tmp_path, capsys):
    def known(iterations, store):
        if store:
            Path(store).mkdir()
            Path(store, "part").write_bytes(bytes(2**20))
        return [(iterations // 20, 1.0), (iterations // 2, 7.5), (iterations, 8.0)]

    monkeypatch.setattr(memory, "measured", known)
    memory.main(["--iterations", "2000", "--kept", "100", "--figure", str(tmp_path / "memory.png")])
    stored, kept = capsys.readouterr().out.splitlines()
    assert stored == "stored, 2,000 iterations: 7.5 to 8.0 MiB from a tenth on, last 8.0; 1 MiB on disk"
    assert kept == "in memory, 100 iterations: 1.0 MiB at first, 8.0 at last"
    assert (tmp_path / "memory.png").exists()


@pytest.mark.filterwarnings("ignore")  # of a run that is too short for what it says
def test_workers_draw_the_same(monkeypatch, capsys):
    """One thread stands for the processes, which are started elsewhere."""
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(1))
    workers.main(["--workers", "1", "2", "--shards", "2", "--chains", "2", "--draws", "5", "--repeats", "1"])
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 1", "| 2"]
    assert all(row.endswith("| yes |") for row in rows)
