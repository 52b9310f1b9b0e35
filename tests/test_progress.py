"""Progress in a file is a line each minute, and in a terminal a bar."""

import io
import itertools

import pyro
import pyro.distributions as dist
import pytest

from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, seconds=1.0, steps=60, **options):
    """What a bar of so many steps shows, if each of them takes so long."""
    clock = itertools.count(0.0, seconds / 2)  # read twice in a step
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bar(**options) as bar:
        for _ in range(steps):
            bar.update()
    return stream.getvalue()


@pytest.mark.parametrize("total", [60, None])
def test_a_file_has_a_line_each_minute(monkeypatch, total):
    text = shown(monkeypatch, io.StringIO(), seconds=10.0, total=total)
    lines = text.splitlines()
    assert 5 <= len(lines) <= 14  # in ten minutes or more, by how often the clock is read
    assert "\r" not in text
    assert "\x1b" not in text
    assert "60" in lines[-1]


def test_a_terminal_has_one_line_that_changes(monkeypatch):
    text = shown(monkeypatch, Terminal(), total=60)
    assert text.count("\r") > 10
    assert text.count("\n") == 1


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_shown_where_it_is_disabled(monkeypatch, stream):
    assert shown(monkeypatch, stream(), total=60, disable=True) == ""


class Writer:
    """A stream that has only what `print` needs, as some loggers install."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def getvalue(self):
        return self.text


@pytest.mark.parametrize("stream", [None, Writer()])
def test_any_stream_will_do(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bar(total=3) as bar:
        bar.update()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    with progress_bar(total=3) as bar:
        bar.update()


def test_a_run_writes_lines(capsys):
    MCMC(OHMC(lambda: pyro.sample("x", dist.Normal(0.0, 1.0))), num_samples=10, warmup_steps=10).run()
    lines = capsys.readouterr().err.splitlines()
    assert "\r" not in "".join(lines)
    assert lines[-1].startswith("Sample: 100 %, 20/20 [")
