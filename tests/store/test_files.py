"""Files that are whole or not there, also where the disk is full."""

import errno
import os
import resource
import signal
import subprocess
import sys

import pytest

from pyro_manifold.store import locked, remove_unfinished, was_being_written, write_durably


def test_all_are_written_or_none(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    write_durably({first: b"1", second: b"2"})
    fsync = os.fsync
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"second cannot be written \(No space left on device\): earlier draws are intact"
    ):
        write_durably({first: b"3", second: b"4"})
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_limit_of_the_system_is_a_sentence(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match="cannot be written"):
            write_durably({tmp_path / "large": bytes(2000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_what_a_stopped_process_leaves_is_known_and_removed(tmp_path):
    path = tmp_path / "draws-000000.npz"
    (tmp_path / "draws-000000.npz.partial").touch()
    assert was_being_written(path)
    remove_unfinished(tmp_path)
    assert not was_being_written(path)


@pytest.mark.long
def test_two_processes_do_not_write_to_one_folder(tmp_path):
    program = (
        "import sys, pathlib; from pyro_manifold.store.files import locked\n"
        f"with locked(pathlib.Path({str(tmp_path)!r})): pass"
    )
    with locked(tmp_path):
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert "Another process is writing to store=" in found.stderr
    with locked(tmp_path):
        pass


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    """A worker of a loader may outlive a process that was killed."""
    held, ended = os.pipe(), os.pipe()
    with locked(tmp_path):
        child = os.fork()
        if not child:
            os.write(held[1], b"x")
            os.read(ended[0], 1)
            os._exit(0)
        os.read(held[0], 1)
        with pytest.raises(ValueError, match="Another process is writing"), locked(tmp_path):
            pass
    try:
        with locked(tmp_path):
            pass
    finally:
        os.write(ended[1], b"x")
        os.waitpid(child, 0)


@pytest.mark.long
def test_a_lock_ends_with_a_process_that_is_killed_though_its_children_live(tmp_path):
    program = (
        "import os, pathlib, signal, sys; from pyro_manifold.store.files import locked\n"
        f"with locked(pathlib.Path({str(tmp_path)!r})):\n"
        "    if not os.fork(): print('ready', flush=True); sys.stdin.read(); os._exit(0)\n"
        "    signal.pause()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ, **pipes)
    with process:
        process.stdout.readline()
        process.kill()
        process.wait()
        with locked(tmp_path):
            pass
        process.stdin.close()
