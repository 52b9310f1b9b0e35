"""Data of the examples and benchmarks, from a local folder or by download.

Files are looked up in the folder named by the environment variable PYRO_MANIFOLD_DATA. Files that are not there are
downloaded once to the user's cache. All data are compared with a checksum, so that results are comparable.
"""

import gzip
import hashlib
import os
import warnings
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

IONOSPHERE = "https://archive.ics.uci.edu/ml/machine-learning-databases/ionosphere/ionosphere.data"
IONOSPHERE_SHA256 = "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd"
# MacKay's two files, from a commit of a library of Kalman filters, so that the address is stable.
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
# Checksum of the four parsed arrays, as little-endian float64.
LEUKEMIA_SHA256 = "c71c81e79764aa34a4c59d456c596ab310cd0db0fd3ce6c8093481da6eaf7d01"
# From a commit of a copy of R's package Renvlp 3.4.5 (GPL-2), so that the address is stable.
WHEAT = (
    "https://raw.githubusercontent.com/colemanferrell2/renvlp/6fe7c0178fdecde9188cd2f2ae8cf95d245851c7/data/"
    "wheatprotein.rda"
)
WHEAT_SHA256 = "694f8a49ae2b4e7a7ae760bce0b50d74bd066b6fbeacfde446c484b27f9a560d"
# Checksums of data in installed packages, as little-endian float64.
MENTAL_TESTS_SHA256 = "449ee24f4042810dfb3d00437b062fc2ff0bf31a1a995954aff6fbabf9d88317"
SEA_SURFACE_SHA256 = "04cd82503f2284f490eb92e9bf30bfd475d3c12210aca925dc0978f62ce50780"
ACCOUNTS_SHA256 = "088652c118dca2d2b47b65168d8c618353d1d36dbc96dfe4e19a3acd25beead0"
INDUSTRIES_SHA256 = "1b0ffd28601ad8f239fb963892bfa3ffacaaa5ae2a6f78bdbd7b7a1e8da70d57"
# Downs' data as an R data frame, from a commit of a repository on GitHub.
VECTORCARDIOGRAM = (
    "https://raw.githubusercontent.com/djhunter/quatview/ff4b915426937e78330c0b683a203a6a8b0ccbfd/"
    "downs_vectorcardiogram.RData"
)
VECTORCARDIOGRAM_SHA256 = "82b05be8d055c4f0da694a487e15c403f602cdc794725a281cfd23deacd6e98d"
DIFFUSION_SHA256 = "b7ac6f959de1c076a1bf2e81983ebe25a9f2d010cc5c0005cc259906029ba3df"
NETWORKS_SHA256 = {
    "karate club": "4250ab82d25993234270c31813b29c372101c3fbe3a9f16220ff005fb05cd4f5",
    "Les Misérables": "76f401b591c20644d1229ba247ae05dc145a1225facba2cedc2e9afd339021e8",
}
DIABETES_SHA256 = "839c546b0b4ac02c2e6cbe5e5c92313cefa993446c9733e9b49477cc3f96e104"
ADENYLATE_KINASE_SHA256 = "935e03c8db0a95dad0f57bd334b2ac1191c5c2c963d76265f06bdbb6ee66fd66"
EXERCISES_SHA256 = "62e41ff0d859f1a36bd2a187f7ed0489c06036fbe85c5c97a4f62d1db6baf6fe"
DIGITS_SHA256 = "30aa855cd90427ff3c4996b3f40109597c57049f8a038cc52db1efeac8ad2e26"
# Patients with AML; the files of expression do not contain the disease.
AML = {*range(28, 39), 50, 51, 52, 53, 54, 57, 58, 60, 61, 62, 63, 64, 65, 66}


def data_folder():
    """Return the folder named by PYRO_MANIFOLD_DATA, else ``shared/data`` next to the checkout; it may not exist."""
    here = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("PYRO_MANIFOLD_DATA", here))


def download(url, sha256=None):
    """Return the path of the cached file of a URL, which is downloaded if needed."""
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
    """Return the SHA-256 of the entries of arrays, independent of the file format."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()


def whole_file(name, url, sha256):
    """Return the path of a verified file: ``name`` in the data folder, else the download."""
    local = data_folder() / name
    path = local if local.exists() else download(url, sha256)
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise RuntimeError(f"{path} is not the file at {url}: delete it, and it is downloaded at the next call.")
    return path


def ionosphere():
    """Return radar returns of Sigillito et al. (1989), UCI: attributes ``(351, 34)`` in [−1, 1] and labels, 1 = good.

    Read from ``ionosphere/ionosphere.data`` in the data folder, else downloaded from UCI.
    """
    path = whole_file("ionosphere/ionosphere.data", IONOSPHERE, IONOSPHERE_SHA256)
    rows = [line.split(",") for line in path.read_text().split()]
    return np.array([row[:-1] for row in rows], dtype=np.float64), np.array([row[-1] == "g" for row in rows], dtype=int)


def robot_arm():
    """Return the data of MacKay's robot arm (1992), as used by Neal (1996) and Zlochin & Baram (1999).

    They are read from ``robot_arm/inputs.data`` and ``outputs.data`` in the data folder, else downloaded from a
    repository on GitHub that has both files. The download has not been tested over the network; a copy of that commit
    has the checksums required here.

    Returns:
        ``x_train (200, 2), y_train, x_test (400, 2), y_test``: the angles of two joints and the position of the end.
    """
    x, y = (
        np.loadtxt(whole_file(f"robot_arm/{part}.data", ROBOT_ARM.format(part), sha256))
        for part, sha256 in ROBOT_ARM_SHA256.items()
    )
    return x[:200], y[:200], x[200:], y[200:]


def expression(path):
    """Return sample numbers and raw expression ``(samples, genes)`` of one of Golub's tab-separated files.

    Values alternate with the calls of the scanner, by the columns of the header; rows end in an additional tab.
    """
    header, *rows = (line.rstrip("\r\n").split("\t") for line in path.read_text("latin-1").splitlines() if line.strip())
    columns = [k for k, name in enumerate(header) if name.strip().isdigit()]
    values = [[float(row[k]) for k in columns] for row in rows]
    return np.array([int(header[k]) for k in columns]), np.array(values, dtype=np.float64).T


def golub():
    """Return the training samples and the independent ones, each in the order of their numbers."""
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
    """Return raw expression of the acute leukemias of Golub et al. (1999).

    The data are read from ``leukemia/leukemia.npz`` in the data folder, with arrays of the names below, else downloaded
    from the Broad Institute. The download was written from descriptions of the files and has not been tested over the
    network. Data from either source are compared with the checksum of one copy.

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


def verified(values, sha256, package):
    """Return values of an installed package whose checksum is the expected one, so that results are comparable."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    if checksum(values) != sha256:
        raise RuntimeError(f"The data of {package} have changed: install the version in constraints.txt.")
    return values


def mental_tests():
    """Return scores ``(301, 9)`` of pupils of two schools in nine tests, and the names of the tests.

    Holzinger & Swineford (1939), A study in factor analysis; the nine tests of Jöreskog (1969), Psychometrika 34, as
    lavaan and semopy have them. The file is read from semopy without importing it, which takes seconds.
    """
    import pandas

    path = distribution("semopy").locate_file("semopy/examples/holzinger_swineford39_data.csv")
    scores = pandas.read_csv(path)[[f"x{k}" for k in range(1, 10)]]
    names = ["visual perception", "cubes", "lozenges", "paragraphs", "sentences", "word meaning"]
    names += ["addition", "counting dots", "capitals"]
    return verified(scores, MENTAL_TESTS_SHA256, "semopy"), names


def sea_surface():
    """Return temperatures of the sea surface ``(61, 12)`` in °C, and their years: the region Niño 1+2, off Peru."""
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data
    return verified(table.iloc[:, 1:], SEA_SURFACE_SHA256, "statsmodels"), table["YEAR"].to_numpy(int)


def industries():
    """Return monthly returns ``(819, 12)`` of industries in excess of the riskless rate, January 1949 to March 2017.

    Kenneth French's data library, as linearmodels has them; the file is read without importing the package.

    Returns:
        Returns, factors ``(819, 4)`` of the same months (market in excess, size, value, momentum), and names of both.
    """
    import pandas

    path = distribution("linearmodels").locate_file("linearmodels/datasets/french/french.csv.bz2")
    table = pandas.read_csv(path)
    factors, codes = ["MktRF", "SMB", "HML", "Mom"], list(table.columns[6:18])
    values = verified(table[["RF", *factors, *codes]], INDUSTRIES_SHA256, "linearmodels")
    names = ["non-durables", "durables", "manufacturing", "energy", "chemicals", "computers", "telephone", "utilities"]
    names += ["shops", "health", "finance", "other"]
    return values[:, 5:] - values[:, :1], values[:, 1:5], names, ["market", "size", "value", "momentum"]


def accounts():
    """Return logs ×100 of real GDP, consumption and investment of the United States ``(203, 3)``, and the quarters."""
    from statsmodels.datasets import macrodata

    table = macrodata.load_pandas().data
    level = verified(table[["realgdp", "realcons", "realinv"]], ACCOUNTS_SHA256, "statsmodels")
    return 100 * np.log(level), (table["year"] + (table["quarter"] - 1) / 4).to_numpy()


def vectorcardiograms():
    """Return orientations of the hearts of 98 children by two systems of electrodes, of Downs et al. (1974).

    Each child has the direction q in which the QRS loop extends farthest, and the normal p of the plane of the loop.
    Peter Jupp's page http://www.mcs.st-and.ac.uk/~pej/vcg.html describes the columns. Read from
    ``vectorcardiogram/downs_vectorcardiogram.RData`` in the data folder, else downloaded from a repository on GitHub.
    The download has not been tested over the network; a copy of that commit has the checksum required here.

    Returns:
        ``frank (98, 3, 3), mcfee (98, 3, 3), group (98,)``: columns q, p and q×p by the Frank and the McFee system,
        orthonormal to 1e-4; and 0 to 3 for boys of 2–10 years, boys of 11–19, girls of 2–10, girls of 11–19.
    """
    path = whole_file("vectorcardiogram/downs_vectorcardiogram.RData", VECTORCARDIOGRAM, VECTORCARDIOGRAM_SHA256)
    try:
        import rdata
    except ImportError as error:
        raise RuntimeError(f"{path} is an R file, and needs rdata: pip install 'pyro-manifold[examples]'.") from error
    table = rdata.read_rda(path)["downs_vectorcardiogram"]
    systems = []
    for system in "FM":
        q, p = (table[[f"{system}{vector}{k}" for k in (1, 2, 3)]].to_numpy(float) for vector in ("QRS", "PRP"))
        systems.append(np.stack([q, p, np.cross(q, p)], -1))
    return *systems, table["AgeSex"].to_numpy(int) - 1


def diffusion():
    """Return a slice of a brain by diffusion-weighted magnetic resonance, from the data of DIPY's tests.

    Read from dipy without importing it: a NIfTI file of 10×10×10 voxels, of which the last slice is returned.

    Returns:
        ``signal (10, 10, 65), b (65,), directions (65, 3)``: intensities, diffusion weighting in ms/µm², 0 in the first
        image, and unit vectors of the gradients.
    """
    folder = Path(distribution("dipy").locate_file("dipy/data/files"))
    image = np.fromfile(folder / "small_64D.nii", dtype="<i2", offset=352).reshape((10, 10, 10, 65), order="F")
    b, directions = (np.loadtxt(folder / f"small_64D.{part}") for part in ("bval", "bvec"))
    table = np.column_stack([image[:, :, 9].reshape(100, 65).T, b / 1000, np.nan_to_num(directions)])
    table = verified(table, DIFFUSION_SHA256, "dipy")
    return table[:, :100].T.reshape(10, 10, 65), table[:, 100], table[:, 101:]


def network(name):
    """Return a network of NetworkX as links ``(nodes, nodes)`` of zeros and ones, and the names of its nodes.

    Args:
        name: ``"karate club"``, Zachary (1977), 34 members and 78 links; or ``"Les Misérables"``, the 77 characters of
            Hugo's novel and 254 pairs that appear together, Knuth (1993).
    """
    import networkx

    graph = networkx.karate_club_graph() if name == "karate club" else networkx.les_miserables_graph()
    links = networkx.to_numpy_array(graph, nodelist=sorted(graph)) > 0
    return verified(links, NETWORKS_SHA256[name], "NetworkX"), sorted(graph)


def columns_of_r(content, length):
    """Return the numeric columns of one length of a data frame that R's ``save`` wrote, ``(length, columns)``."""
    content, columns = gzip.decompress(content), []
    for code, kind in ((13, ">i4"), (14, ">f8")):  # R's integers and doubles: code, length, entries, all big-endian
        header = code.to_bytes(4, "big") + length.to_bytes(4, "big")
        place = content.find(header)
        while place >= 0:
            columns.append((place, np.frombuffer(content, kind, length, place + 8).astype(np.float64)))
            place = content.find(header, place + 8 + columns[-1][1].size * np.dtype(kind).itemsize)
    return np.stack([column for _, column in sorted(columns, key=lambda pair: pair[0])], 1)


def wheat_protein():
    """Return reflectances of 50 samples of ground wheat at six wavelengths ``(50, 6)``, and their protein in percent.

    Fearn (1983), A misuse of ridge regression in the calibration of a near infrared reflectance instrument, Applied
    Statistics 32; log(1 / reflectance) at 1680, 1806, 1932, 2058, 2184 and 2310 nm, as R's package Renvlp has them.
    Read from ``wheat_protein/wheatprotein.rda`` in the data folder, else downloaded from a copy of the package. The
    download has not been tested over the network; a copy of that commit has the checksum required here.
    """
    content = whole_file("wheat_protein/wheatprotein.rda", WHEAT, WHEAT_SHA256).read_bytes()
    values = columns_of_r(content, 50)
    return values[:, :6], values[:, 6]


def diabetes():
    """Return ``x (442, 4)``, ``y (442, 7)`` and the names of the columns of both, of 442 patients with diabetes.

    Efron, Hastie, Johnstone & Tibshirani (2004), Least angle regression; x has age, sex, body mass index and blood
    pressure, y six measurements of the serum and the progression of the disease a year later.
    """
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    values = verified(np.column_stack([data.data, data.target]), DIABETES_SHA256, "scikit-learn")
    names = ["age", "sex", "body mass index", "blood pressure"]
    names += ["cholesterol", "LDL", "HDL", "cholesterol / HDL", "log triglycerides", "glucose", "progression"]
    return values[:, :4], values[:, 4:], names[:4], names[4:]


def exercises():
    """Return bodies and exercises of twenty men of a fitness club, ``(20, 3)`` each, and names of both; by Linnerud."""
    from sklearn.datasets import load_linnerud

    data = load_linnerud()
    values = verified(np.column_stack([data.target, data.data]), EXERCISES_SHA256, "scikit-learn")
    return values[:, :3], values[:, 3:], ["weight", "waist", "pulse"], ["chin-ups", "sit-ups", "jumps"]


def trajectory():
    """Return MDAnalysis's universe of adenylate kinase on its way from closed to open, from the data of its tests."""
    try:
        from MDAnalysis import Universe
        from MDAnalysisTests.datafiles import DCD, PSF
    except ImportError as error:
        raise RuntimeError("The trajectory needs MDAnalysis: pip install MDAnalysis MDAnalysisTests.") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its reader of DCD, about its own future
        return Universe(PSF, DCD)


def adenylate_kinase():
    """Return positions of the Cα atoms of adenylate kinase in Å, ``(98, 214, 3)``, one snapshot after another.

    Beckstein, Denning, Perilla & Woolf (2009), Zipping and unzipping of adenylate kinase, Journal of Molecular Biology
    394: a transition by dynamic importance sampling, from closed to open, as MDAnalysisTests has it.
    """
    universe = trajectory()
    atoms = universe.select_atoms("name CA")
    values = np.concatenate([atoms.positions for _ in universe.trajectory])
    return verified(values, ADENYLATE_KINASE_SHA256, "MDAnalysisTests").reshape(-1, len(atoms), 3)


def digits():
    """Return images of digits ``(1797, 8, 8)``, from 0 to 16, and their labels: the test part of UCI's optdigits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    values = verified(np.column_stack([data.data, data.target]), DIGITS_SHA256, "scikit-learn")
    return values[:, :64].reshape(-1, 8, 8), values[:, 64].astype(int)
