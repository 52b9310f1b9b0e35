"""Networks of digits learn, on few generated images."""

import pytest

from benchmarks.papers.ohmc import mnist


@pytest.mark.long
@pytest.mark.parametrize("network", mnist.NETWORKS)
def test_digits(network, capsys):
    mnist.main(["--short", "--seeds", "1", "--network", network])
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert float(row[-3]) > 12  # of 10 classes; the low-rank network has descended little
