"""Compiled code on disk: found again, and loaded only if no other user could have written it."""

import ctypes
import gc
import os
import re
import shutil
import stat
import subprocess
import sys
import time

import pytest
import torch

from pyro_manifold.compiled.native import compiler
from tests.compiled.native.loops import native_function
from tests.infer.mcmc.compilers import native_code

pytestmark = native_code

SOURCE = "int answer(void) { return 42; }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def count_builds(monkeypatch):
    built, build = [], compiler._build
    monkeypatch.setattr(compiler, "_build", lambda *arguments: built.append(arguments) or build(*arguments))
    return built


def test_what_was_compiled_is_found_again(folder, monkeypatch):
    built = count_builds(monkeypatch)
    assert [compiler.compiled(SOURCE, 4).answer() for _ in range(2)] == [42, 42]
    assert len(built) == 1
    compiler.compiled(SOURCE, 2)
    compiler.compiled(SOURCE + " ", 2)
    assert len(built) == 3
    assert len(list(folder.iterdir())) == 3  # and nothing else is left there


def test_the_folder_is_the_users_own(folder):
    compiler.compiled(SOURCE, 4)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    assert compiler.cache_folder() is None
    assert compiler.compiled(SOURCE, 4).answer() == 42
    assert list(folder.iterdir()) == []


def test_a_link_in_place_of_the_folder_is_not_followed(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert compiler.cache_folder() is None


def test_files_of_others_are_compiled_again(folder, monkeypatch):
    compiler.compiled(SOURCE, 4)
    (library,) = folder.iterdir()
    built = count_builds(monkeypatch)
    library.chmod(0o777)
    compiler.compiled(SOURCE, 4)
    assert len(built) == 1
    assert not stat.S_IMODE(library.stat().st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert compiler.cache_folder() is None


@pytest.mark.parametrize("share", [0, 0.01, 0.5])
def test_half_a_file_is_compiled_again(folder, monkeypatch, share):
    """A crash of the machine can leave one; to load it would end the process."""
    compiler.compiled(SOURCE, 4)
    (library,) = folder.iterdir()
    content = library.read_bytes()
    half = content[: int(share * len(content))]
    library.unlink()  # this process has it in memory
    library.write_bytes(half + bytes(len(content) - len(half)) if share == 0.5 else half)
    library.chmod(0o700)
    built = count_builds(monkeypatch)
    assert compiler.compiled(SOURCE, 4).answer() == 42
    assert len(built) == 1
    assert [kept.read_bytes() for kept in folder.iterdir()] == [content]


def test_a_full_disk_costs_the_cache_alone(folder, monkeypatch):
    build = compiler._build

    def full(text, place, key):
        if place == folder:
            raise OSError(28, "No space left on device")
        return build(text, place, key)

    monkeypatch.setattr(compiler, "_build", full)
    assert compiler.compiled(SOURCE, 4).answer() == 42
    assert list(folder.iterdir()) == []


def test_a_compiler_without_output_is_an_error(folder, monkeypatch):
    monkeypatch.setattr(compiler, "path_of_compiler", lambda: "true")
    with pytest.raises(compiler.NoCompilerError, match="the C compiler failed"):
        compiler.compiled(SOURCE, 4)


def test_messages_of_the_compiler_are_reported(folder):
    with pytest.raises(compiler.NoCompilerError, match=r"the C compiler failed: .*error"):
        compiler.compiled("int answer(void) { return x; }", 4)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_a_generous_umask_costs_nothing(folder, monkeypatch, umask):
    before = os.umask(umask)
    try:
        compiler.compiled(SOURCE, 4)
        built = count_builds(monkeypatch)
        compiler.compiled(SOURCE, 4)
    finally:
        os.umask(before)
    assert not built
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]} == {0o700}


def test_a_link_in_place_of_a_library_is_not_followed(folder, tmp_path, monkeypatch):
    compiler.compiled(SOURCE, 4)
    (library,) = folder.iterdir()
    elsewhere = tmp_path / "elsewhere.so"
    library.rename(elsewhere)
    content = elsewhere.read_bytes()
    library.symlink_to(elsewhere)
    built = count_builds(monkeypatch)
    assert compiler.compiled(SOURCE, 4).answer() == 42
    assert len(built) == 1
    assert not library.is_symlink()
    assert elsewhere.read_bytes() == content


AT_ONCE = """
import importlib.util, sys
specification = importlib.util.spec_from_file_location("compiler", sys.argv[1])  # alone, without torch
compiler = importlib.util.module_from_spec(specification)
specification.loader.exec_module(compiler)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(3):
    assert compiler.compiled("int answer(void) { return 42; }", 4).answer() == 42
    assert compiler.compiled(f"int answer(void) {{ return {turn}; }}", 4).answer() == turn
"""


@pytest.mark.parametrize("megabytes", ["256", "0.02"])
def test_processes_that_compile_the_same_at_once(folder, megabytes):
    """Processes with room for one library remove those that others have just made or found."""
    environment = {**os.environ, "PYRO_MANIFOLD_CACHE_SIZE": megabytes}
    command = [sys.executable, "-c", AT_ONCE, compiler.__file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in processes]
    assert ended == [("", 0)] * 4
    kept = list(folder.iterdir())
    assert all(path.suffix == ".so" for path in kept)
    assert len(kept) == (4 if megabytes == "256" else 1)


def numbered(number):
    return f"int answer(void) {{ return {number}; }}"


def size_of_one(folder):
    compiler.compiled(SOURCE, 4)
    (library,) = folder.iterdir()
    size = library.stat().st_size
    library.unlink()
    return size


def test_the_oldest_by_use_are_removed_beyond_the_bound(folder, monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_CACHE_SIZE", str(3.5 * size_of_one(folder) / 2**20))
    libraries = []
    for number in range(3):
        compiler.compiled(numbered(number), 4)
        (new,) = set(folder.iterdir()) - set(libraries)
        libraries.append(new)
        os.utime(new, (time.time() - 100 + number,) * 2)
    compiler.compiled(numbered(0), 4)  # the oldest by its making has been used last
    compiler.compiled(numbered(3), 4)
    left = set(folder.iterdir())
    assert len(left) == 3
    assert {libraries[0], libraries[2]} < left


@pytest.mark.parametrize("megabytes", ["0", "0.0001"])
def test_no_room_keeps_nothing_and_runs(folder, monkeypatch, megabytes):
    monkeypatch.setenv("PYRO_MANIFOLD_CACHE_SIZE", megabytes)
    assert [compiler.compiled(SOURCE, 4).answer() for _ in range(2)] == [42, 42]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("given", ["many", "-1", "nan", "inf"])
def test_an_invalid_size_limit_is_an_error(folder, monkeypatch, given):
    monkeypatch.setenv("PYRO_MANIFOLD_CACHE_SIZE", given)
    with pytest.raises(compiler.NoCompilerError, match=f"PYRO_MANIFOLD_CACHE_SIZE='{given}' .*, expected megabytes"):
        compiler.compiled(SOURCE, 4)


def test_what_a_killed_build_left_is_removed(folder):
    compiler.compiled(SOURCE, 4)
    for name, age in (("build-old", 2 * 3600), ("build-new", 60)):
        (folder / name).mkdir()
        (folder / name / "loop.c").write_text(SOURCE)
        os.utime(folder / name, (time.time() - age,) * 2)
    compiler.compiled(SOURCE, 2)
    assert sorted(path.name for path in folder.glob("build-*")) == ["build-new"]
    shutil.rmtree(folder / "build-new")


def is_loaded(path):
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


@pytest.mark.long
def test_a_library_is_unloaded_with_the_last_that_uses_it(folder):
    library = compiler.compiled(SOURCE, 4)
    (path,) = folder.iterdir()
    again, answer = compiler.compiled(SOURCE, 4), library.answer
    del library, again
    gc.collect()
    assert answer() == 42  # still there
    del answer
    gc.collect()
    assert not is_loaded(path)


def test_loops_of_many_models_are_unloaded(folder):
    inputs = [torch.randn(3, 2)]
    for number in range(5):
        (found,) = native_function(lambda x, number=number: [x * x + number], *inputs)(1, *inputs)
        torch.testing.assert_close(found, inputs[0].square() + number)
    gc.collect()
    assert not any(map(is_loaded, folder.iterdir()))


def test_other_data_of_the_same_shape_need_no_compiler(folder, monkeypatch):
    inputs = [torch.randn(3, 2)]
    built = count_builds(monkeypatch)
    for data in (torch.tensor([1.0, 2.0]), torch.tensor([5.0, -2.0])):
        (found,) = native_function(lambda x, data=data: [x * data], *inputs)(1, *inputs)
        torch.testing.assert_close(found, inputs[0] * data)
    assert len(built) == 1


def test_arrays_leave_room_on_the_stack_of_a_thread():
    """The stack has two megabytes where the system sets no limit; a vector has 64 bytes."""

    def many(x):
        parts = [x.sin()]
        for _ in range(50):
            parts.append((parts[-1].flip(0) + parts[-1].mean()).cos())
        return [torch.stack(parts).sum(0)]

    inputs = [torch.randn(8, 400)]
    text = native_function(many, *inputs).source.text
    sizes = [int(size) for size in re.findall(r"^ *ARRAY\(a[0-9]+, ([0-9]+)\);", text, re.MULTILINE)]
    assert sizes
    assert 64 * sum(sizes) < 1.1 * 2**20
