"""Sources of data without network: a folder, or a download that is replaced here."""

import gzip
import hashlib
import sys
from functools import partial

import numpy as np
import pooch
import pytest

from examples import datasets


@pytest.fixture
def no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PYRO_MANIFOLD_DATA", str(tmp_path / "absent"))


def golub_file(path, patients, values):
    """A file as the Broad Institute has them: calls between values, a tab at the end of rows but not of the header."""
    header = ["Gene Description", "Gene Accession Number", *(f"{k}\tcall" for k in patients)]
    rows = [[f"gene {k}", f"G{k}_at", *(f"{v}\tA" for v in row), ""] for k, row in enumerate(values)]
    path.write_text("\r\n".join("\t".join(row) for row in [header, *rows]) + "\r\n", encoding="latin-1")
    return path


@pytest.mark.usefixtures("no_folder")
@pytest.mark.parametrize(
    "load",
    [
        datasets.ionosphere,
        datasets.leukemia,
        datasets.robot_arm,
        datasets.vectorcardiograms,
        datasets.wheat_protein,
    ],
)
def test_a_failed_download_has_advice(monkeypatch, load):
    def fail(*arguments, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(RuntimeError, match=r"download of http.* failed \(no route to host\).*PYRO_MANIFOLD_DATA"):
        load()


def test_expression_of_a_file(tmp_path):
    path = golub_file(tmp_path / "train.txt", [2, 1], [[5, -3], [7, 8], [0, 1]])
    patients, values = datasets.expression(path)
    np.testing.assert_array_equal(patients, [2, 1])
    np.testing.assert_array_equal(values, [[5, 7, 0], [-3, 8, 1]])


@pytest.mark.usefixtures("no_folder")
def test_download_of_leukemia_is_sorted_and_checked(monkeypatch, tmp_path):
    files = {
        "train": golub_file(tmp_path / "train.txt", [38, 1], [[5, -3], [7, 8]]),
        "independent": golub_file(tmp_path / "independent.txt", [50, 39], [[1, 2], [3, 4]]),
    }
    monkeypatch.setattr(pooch, "retrieve", lambda url, **options: files[url.rsplit("_", 1)[-1].removesuffix(".txt")])
    with pytest.raises(RuntimeError, match="not those of Golub"):
        datasets.leukemia()
    expected = np.array([[-3, 8], [5, 7]]), np.array([0, 1]), np.array([[2, 4], [1, 3]]), np.array([0, 1])
    monkeypatch.setattr(datasets, "LEUKEMIA_SHA256", datasets.checksum(*expected))
    for found, array in zip(datasets.leukemia(), expected, strict=True):
        np.testing.assert_array_equal(found, array)


@pytest.mark.usefixtures("no_folder")
def test_other_content_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "ionosphere.data"
    path.write_text("1,0,g\n")
    monkeypatch.setattr(pooch, "retrieve", lambda url, **options: path)
    with pytest.raises(RuntimeError, match="is not the file at https://archive"):
        datasets.ionosphere()
    page = tmp_path / "page.html"
    page.write_text("<html>12</html>\n<p>moved</p>\n")
    monkeypatch.setattr(pooch, "retrieve", lambda url, **options: page)
    with pytest.raises(RuntimeError, match="not those of Golub"):
        datasets.leukemia()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PYRO_MANIFOLD_DATA", str(tmp_path))
    (tmp_path / "robot_arm").mkdir()
    return tmp_path / "robot_arm"


def test_the_robot_arm_is_split_in_the_order_of_its_files(monkeypatch, folder):
    """Files in the format of MacKay's, whose first 200 examples are for training."""
    expected = [np.arange(1200.0).reshape(600, 2), -np.arange(1200.0).reshape(600, 2)]
    digests = {}
    for part, values in zip(("inputs", "outputs"), expected, strict=True):
        np.savetxt(folder / f"{part}.data", values)
        digests[part] = hashlib.sha256((folder / f"{part}.data").read_bytes()).hexdigest()
    monkeypatch.setattr(datasets, "ROBOT_ARM_SHA256", digests)
    found = datasets.robot_arm()
    for k, part in enumerate((slice(200), slice(200, 600))):
        np.testing.assert_array_equal(found[2 * k], expected[0][part])
        np.testing.assert_array_equal(found[2 * k + 1], expected[1][part])


def test_another_robot_arm_is_refused(folder):
    for part in ("inputs", "outputs"):
        np.savetxt(folder / f"{part}.data", np.zeros((600, 2)))
    with pytest.raises(RuntimeError, match=r"inputs\.data is not the file at https://raw"):
        datasets.robot_arm()


@pytest.mark.skipif(
    not (datasets.data_folder() / "robot_arm").exists(),
    reason="needs MacKay's robot_arm/inputs.data and outputs.data in the folder PYRO_MANIFOLD_DATA",
)
def test_the_original_robot_arm():
    """Two segments of lengths 2.0 and 1.3, and noise of 0.05: errors of the true function in units of its variance."""
    x_train, y_train, x_test, y_test = datasets.robot_arm()
    assert [len(x_train), len(y_train), len(x_test), len(y_test)] == [200, 200, 400, 400]
    errors = []
    for x, y in ((x_train, y_train), (x_test, y_test)):
        angles = np.cumsum(x, 1)
        ends = np.column_stack([np.cos(angles) @ [2.0, 1.3], np.sin(angles) @ [2.0, 1.3]])
        errors.append(np.mean((ends - y) ** 2) / 0.05**2)
    assert errors == pytest.approx([1.016, 0.942], abs=0.001)


def test_vectorcardiograms_of_a_file(monkeypatch, tmp_path):
    """An R file with the columns of the original, in which axis k of each vector of system s is recognisable."""
    rdata, pandas = pytest.importorskip("rdata"), pytest.importorskip("pandas")
    table = {"ID": np.array([1, 2]), "AgeSex": np.array([4, 1])}
    for system, sign in (("F", 1.0), ("M", -1.0)):
        for vector, axis in (("QRS", 0), ("PRP", 1)):
            table |= {f"{system}{vector}{k + 1}": np.full(2, sign * (k == axis)) for k in range(3)}
    (tmp_path / "vectorcardiogram").mkdir()
    path = tmp_path / "vectorcardiogram" / "downs_vectorcardiogram.RData"
    rdata.write_rda(path, {"downs_vectorcardiogram": pandas.DataFrame(table)})
    monkeypatch.setenv("PYRO_MANIFOLD_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "VECTORCARDIOGRAM_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    frank, mcfee, group = datasets.vectorcardiograms()
    np.testing.assert_array_equal(frank[0], np.eye(3))
    np.testing.assert_array_equal(mcfee[1], np.diag([-1.0, -1.0, 1.0]))
    assert group.tolist() == [3, 0]


PACKAGED = [
    datasets.mental_tests,
    datasets.sea_surface,
    datasets.industries,
    datasets.accounts,
    datasets.diabetes,
    datasets.exercises,
    datasets.diffusion,
    partial(datasets.network, "karate club"),
    partial(datasets.network, "Les Misérables"),
]


@pytest.mark.parametrize("load", PACKAGED)
def test_data_of_packages_are_verified(monkeypatch, load):
    values, *_ = load()
    assert np.isfinite(values).all()
    monkeypatch.setattr(datasets, "checksum", lambda *arrays: "another")
    with pytest.raises(RuntimeError, match=r"The data of [\w-]+ have changed"):
        load()


def test_the_trajectory_is_verified(monkeypatch):
    pytest.importorskip("MDAnalysisTests", reason="needs MDAnalysis and MDAnalysisTests, of the group trajectories")
    assert datasets.adenylate_kinase().shape == (98, 214, 3)
    monkeypatch.setattr(datasets, "checksum", lambda *arrays: "another")
    with pytest.raises(RuntimeError, match="The data of MDAnalysisTests have changed"):
        datasets.adenylate_kinase()


def test_the_trajectory_without_its_package_has_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "MDAnalysis", None)
    with pytest.raises(RuntimeError, match="pip install MDAnalysis MDAnalysisTests"):
        datasets.adenylate_kinase()


def saved_by_r(*columns):
    """Columns as R's ``save`` writes them: a code, a length and big-endian entries, with other bytes between them."""
    content = b"RDX2\nX\n"
    for column in columns:
        code, kind = (13, ">i4") if column.dtype.kind == "i" else (14, ">f8")
        content += (
            b"\0\0\4\2" + code.to_bytes(4, "big") + len(column).to_bytes(4, "big") + column.astype(kind).tobytes()
        )
    return gzip.compress(content)


def test_columns_of_a_table_of_r():
    first, second, third = np.arange(5) - 2, np.linspace(-1.5, 1e9, 5), np.arange(5) * 100_000
    found = datasets.columns_of_r(saved_by_r(first, np.arange(4), second, third), 5)
    np.testing.assert_array_equal(found, np.stack([first, second, third], 1))


def test_wheat_of_a_folder(monkeypatch, tmp_path):
    """A file in the format of Renvlp's, with integers and the protein as the only column of doubles."""
    monkeypatch.setenv("PYRO_MANIFOLD_DATA", str(tmp_path))
    (tmp_path / "wheat_protein").mkdir()
    expected = np.arange(300).reshape(50, 6), np.linspace(7, 15, 50)
    content = saved_by_r(*expected[0].T, expected[1], np.arange(50) % 2)
    (tmp_path / "wheat_protein" / "wheatprotein.rda").write_bytes(content)
    with pytest.raises(RuntimeError, match="is not the file at https://raw"):
        datasets.wheat_protein()
    monkeypatch.setattr(datasets, "WHEAT_SHA256", hashlib.sha256(content).hexdigest())
    for found, array in zip(datasets.wheat_protein(), expected, strict=True):
        np.testing.assert_array_equal(found, array)


@pytest.mark.skipif(
    not (datasets.data_folder() / "wheat_protein").exists(),
    reason="needs Renvlp's wheat_protein/wheatprotein.rda in the folder PYRO_MANIFOLD_DATA",
)
def test_the_original_wheat():
    reflectances, protein = datasets.wheat_protein()
    assert reflectances.shape == (50, 6)
    np.testing.assert_array_equal(reflectances[0], [468, 123, 246, 374, 386, -11])
    assert (protein.min(), protein.max(), (protein < 9.75).sum()) == (7.75, 14.44, 24)
