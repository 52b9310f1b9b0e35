"""Files of arrays: what is written is read, and nothing else is believed."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch

from pyro_manifold.store import Archive, DamagedError, flattened, numbered, packed, unflattened

ARRAYS = {
    "posterior/U": np.arange(24.0).reshape(2, 3, 4),
    "a/b.c ü": np.array(3, dtype=np.int64),
    "none": np.zeros((2, 0), dtype=np.float32),
    "truth": np.array([True, False]),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(packed({"draws": 3}, ARRAYS))
    return path


def test_what_is_packed_is_read(path):
    archive = Archive(path)
    assert archive.about == {"draws": 3}
    for name, array in ARRAYS.items():
        found = archive[name]
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
        assert found.flags.aligned
    archive.verify()


def test_numpy_reads_it_and_equal_content_makes_equal_files(path):
    with np.load(path, allow_pickle=False) as found:
        assert np.array_equal(found["posterior/U"], ARRAYS["posterior/U"])
    assert packed({"draws": 3}, ARRAYS) == path.read_bytes()


def test_what_is_changed_in_memory_stays_there(path):
    before = path.read_bytes()
    Archive(path)["posterior/U"][:] = 0
    assert path.read_bytes() == before


def test_any_changed_byte_of_an_array_is_noticed(path):
    content = bytearray(path.read_bytes())
    content[content.index(np.array(17.0).tobytes()) + 6] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"checksum of|Bad CRC-32"):
        Archive(path).verify()


def test_files_that_are_gone_or_rewritten_are_sentences(path):
    archive = Archive(path)
    name = next(iter(archive.entries))
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, 0))
    with pytest.raises(DamagedError, match="was rewritten"):
        archive[name]
    path.unlink()
    with pytest.raises(DamagedError, match="was removed after it was opened"):
        archive[name]


@pytest.mark.parametrize("length", [0, 10, 500, -1, -30])
def test_a_file_that_is_cut_off_is_a_sentence(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError, match=r"file\.npz is damaged or not a file"):
        Archive(path)


def header(dtype, shape, order=False):
    description = {"descr": dtype, "fortran_order": order, "shape": shape}
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, description)
    return member.getvalue()


def pickled():
    member = io.BytesIO()
    np.save(member, np.array([print], dtype=object), allow_pickle=True)
    return member.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header("<f8", (2**40, 2**20)), "declares the shape"),
        (header("<f8", (-4,)), "declares the shape"),
        (pickled(), "has the type object, expected a row-major array of numbers; it was not read"),
        (header([("x", "<f8")], ()) + bytes(8), "expected a row-major array of numbers"),
        (header("<f8", (2, 2), True) + bytes(32), "expected a row-major array of numbers"),
        (header("<U4", (1,)) + bytes(16), "expected a row-major array of numbers"),
        (b"\x93NUMPY\x01\x00\x10\x00__import__('os')", "damaged or not a file"),
        (b"nothing", "damaged or not a file"),
    ],
)
def test_members_that_mislead_are_sentences(tmp_path, content, words):
    path = tmp_path / "file.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", "{}")
        archive.writestr("x.npy", content)
    with pytest.raises(DamagedError, match=words):
        Archive(path)


@pytest.mark.parametrize(
    ("members", "compression", "words"),
    [
        ([("about.json", "{}"), ("x.npy", bytes(10**6))], zipfile.ZIP_DEFLATED, "compressed|valid size"),
        ([("x.npy", b"")], zipfile.ZIP_STORED, "no 'about.json'"),
        ([("about.json", "[1]")], zipfile.ZIP_STORED, "not a dictionary"),
        ([("about.json", "{" * 10**5)], zipfile.ZIP_STORED, "damaged"),
    ],
)
def test_archives_that_mislead_are_sentences(tmp_path, members, compression, words):
    path = tmp_path / "file.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    with pytest.raises(DamagedError, match=words):
        Archive(path)


def test_other_names_are_passed_over(tmp_path):
    for name in ("draws-000002.npz", "draws-000001.npz", "draws-1.npz", "draws-00000x.npz", "draws-000003.npz.partial"):
        (tmp_path / name).touch()
    assert [number for number, _ in numbered(tmp_path, "draws")] == [1, 2]


def test_nested_state_comes_back(tmp_path):
    state = {
        "tensor": torch.randn(3, 2),
        "half": torch.randn(4).bfloat16(),
        "scalar": torch.tensor(True),
        "parts": {"value": 3, "tensor": "word", "('U',)": 0.1, "large": 2**70},
    }
    arrays = {}
    about = {"state": flattened(state, arrays)}
    path = tmp_path / "file.npz"
    path.write_bytes(packed(about, arrays))
    archive = Archive(path)
    found = unflattened(archive.about["state"], archive)
    assert found["parts"] == state["parts"]
    for name in ("tensor", "half", "scalar"):
        assert torch.equal(found[name], state[name])
        assert found[name].dtype == state[name].dtype


@pytest.mark.parametrize(
    "tree", [None, [], {"value": []}, {"tensor": "9", "dtype": "float64"}, {"tensor": "0", "dtype": "object"}]
)
def test_other_trees_are_sentences(tmp_path, tree):
    path = tmp_path / "file.npz"
    path.write_bytes(packed({"state": json.loads(json.dumps(tree))}, {"0": np.zeros(2)}))
    archive = Archive(path)
    with pytest.raises(DamagedError, match="damaged"):
        unflattened(archive.about["state"], archive)
