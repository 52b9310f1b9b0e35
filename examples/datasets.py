"""Real data of the examples and benchmarks: from a folder of one's own, else from their homes on the web.

A folder, named by the environment variable PYRO_MANIFOLD_DATA, is asked first. What is not there is downloaded once
and kept in the user's cache. What is read is compared with a checksum, so that all compute with the same numbers.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

IONOSPHERE = "https://archive.ics.uci.edu/ml/machine-learning-databases/ionosphere/ionosphere.data"
IONOSPHERE_SHA256 = "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd"
# MacKay's two files, as a library of Kalman filters keeps them; a commit, so that the address stays.
ROBOT_ARM = (
    "https://raw.githubusercontent.com/jeremyfix/easykf/7c01a11359bdd2e2b89ae8a8de88db215d8e061a/examples/Data/"
    "Mackay-{}.data"
)
ROBOT_ARM_SHA256 = {
    "inputs": "e7f02c69c45c21c7fdef40c4e2a88e67b0ea5c5a730ce9fe8ab3cb2b22cc4f12",
    "outputs": "a59ed45cd3570f4ead9257e24343fac9292014da9ccbd1375d36bd50d734c455",
}
# The folder behind portals.broadinstitute.org/cgi-bin/cancer/publications/view/43, the page of Golub et al. (1999).
LEUKEMIA = "http://pubs.broadinstitute.org/mpr/projects/Leukemia/data_set_ALL_AML_{}.txt"
# Of the four parsed arrays, as little-endian float64.
LEUKEMIA_SHA256 = "c71c81e79764aa34a4c59d456c596ab310cd0db0fd3ce6c8093481da6eaf7d01"
# Patients with AML; the files of expression do not say who has which disease.
AML = {*range(28, 39), 50, 51, 52, 53, 54, 57, 58, 60, 61, 62, 63, 64, 65, 66}


def data_folder():
    """The folder named by PYRO_MANIFOLD_DATA, else ``shared/data`` beside the checkout; it need not exist."""
    here = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("PYRO_MANIFOLD_DATA", here))


def download(url, sha256=None):
    """Path of the cached file behind ``url``."""
    try:
        import pooch
    except ImportError as error:
        raise RuntimeError(
            f"The data at {url} need pooch to be downloaded: pip install 'pyro-manifold[examples]', or name a folder "
            "that holds them by PYRO_MANIFOLD_DATA."
        ) from error
    try:
        return Path(pooch.retrieve(url, known_hash=sha256, path=pooch.os_cache("pyro_manifold"), progressbar=False))
    except Exception as error:
        raise RuntimeError(
            f"The download of {url} failed ({error}): try again later, or put the data into a folder and name it by "
            "PYRO_MANIFOLD_DATA (see examples/datasets.py)."
        ) from error


def checksum(*arrays):
    """SHA-256 of the numbers, whatever file they came in."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()


def whole_file(name, url, sha256):
    """Path of a file that is read as it is: ``name`` in the data folder, else the download, which must be the same."""
    local = data_folder() / name
    path = local if local.exists() else download(url, sha256)
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise RuntimeError(f"{path} is not the file behind {url}: delete it, and it is downloaded at the next call.")
    return path


def ionosphere():
    """Radar returns of Sigillito et al. (1989), UCI: attributes ``(351, 34)`` in [−1, 1] and labels, 1 = good.

    Read from ``ionosphere/ionosphere.data`` in the data folder, else downloaded from UCI.
    """
    path = whole_file("ionosphere/ionosphere.data", IONOSPHERE, IONOSPHERE_SHA256)
    rows = [line.split(",") for line in path.read_text().split()]
    return np.array([row[:-1] for row in rows], dtype=np.float64), np.array([row[-1] == "g" for row in rows], dtype=int)


def robot_arm():
    """MacKay's robot arm (1992), as used by Neal (1996) and Zlochin & Baram (1999).

    Read from ``robot_arm/inputs.data`` and ``outputs.data`` in the data folder, else downloaded from a repository on
    GitHub that keeps both files. That download has not been exercised over the network; a copy of that commit has the
    checksums asked for here.

    Returns:
        ``x_train (200, 2), y_train, x_test (400, 2), y_test``: the angles of two joints and where the arm ends.
    """
    x, y = (
        np.loadtxt(whole_file(f"robot_arm/{part}.data", ROBOT_ARM.format(part), sha256))
        for part, sha256 in ROBOT_ARM_SHA256.items()
    )
    return x[:200], y[:200], x[200:], y[200:]


def expression(path):
    """Samples' numbers and raw expression ``(samples, genes)`` of one of Golub's tab-separated files.

    Values alternate with the calls of the scanner, and rows end in a tab that the header lacks: the header says where.
    """
    header, *rows = (line.rstrip("\r\n").split("\t") for line in path.read_text("latin-1").splitlines() if line.strip())
    columns = [k for k, name in enumerate(header) if name.strip().isdigit()]
    values = [[float(row[k]) for k in columns] for row in rows]
    return np.array([int(header[k]) for k in columns]), np.array(values, dtype=np.float64).T


def golub():
    """The training samples and the independent ones, each in the order of their numbers."""
    arrays = []
    for part in ("train", "independent"):
        path = download(LEUKEMIA.format(part))
        try:
            patients, values = expression(path)
        except (ValueError, IndexError) as error:
            raise RuntimeError(f"{path} is not Golub's table of expression: delete it and try again later.") from error
        order = np.argsort(patients)
        arrays += [values[order], np.array([patient in AML for patient in patients[order]], dtype=int)]
    return arrays


def leukemia():
    """Acute leukemias of Golub et al. (1999), raw expression.

    Read from ``leukemia/leukemia.npz`` in the data folder, with arrays of the names below, else downloaded from the
    Broad Institute. That download has not been exercised: it was written where no network was at hand, from
    descriptions of the files. What is read, from either, is compared with the checksum of one copy.

    Returns:
        ``x_train (38, 7129), y_train, x_test (34, 7129), y_test``; y = 1 is AML, 11 and 14 of the patients.
    """
    path = data_folder() / "leukemia" / "leukemia.npz"
    if path.exists():
        with np.load(path) as stored:
            arrays = [stored[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    else:
        arrays = golub()
    if checksum(*arrays) != LEUKEMIA_SHA256:
        raise RuntimeError(
            "The leukemia data are not those of Golub et al. with 38 + 34 patients in the order of their numbers and "
            "7129 genes: name a folder with leukemia/leukemia.npz by PYRO_MANIFOLD_DATA, or empty the folder "
            "pooch.os_cache('pyro_manifold') and try again."
        )
    return tuple(arrays)
