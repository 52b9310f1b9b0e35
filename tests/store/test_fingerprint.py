"""Hashes distinguish tensors and data sets by their entries, equally in all processes."""

import array
import collections
import dataclasses
import decimal
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, StackDataset, Subset, TensorDataset

from pyro_manifold.store import fingerprint


def loader(y, **options):
    return DataLoader(TensorDataset(y), batch_size=2, **options)


@dataclasses.dataclass
class Data:
    y: torch.Tensor
    cache: dict = dataclasses.field(default_factory=dict, compare=False)


def holding(y):
    module = torch.nn.BatchNorm1d(2)
    module.register_buffer("y", y)
    return module


def nested(y):
    return torch.nested.nested_tensor([y, y[:1]], layout=torch.jagged)


DIFFERENT = [
    (torch.zeros(3), torch.zeros(4)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float16)),
    (torch.zeros(3), torch.tensor([0.0, 0.0, 1e-30])),
    (np.zeros(3), np.zeros((3, 1))),
    (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
    ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}),
    ({"a": 1}, {"a": 2}),
    ([1, 2], (1, 2)),
    ([[1], 2], [1, [2]]),
    (["a", "b"], ["ab", ""]),
    (1, 1.0),
    (True, 1),
    (None, "None"),
    (TensorDataset(torch.zeros(2)), TensorDataset(torch.ones(2))),
    (loader(torch.zeros(4)), loader(torch.tensor([0.0, 0.0, 0.0, 1.0]))),
    (Subset(TensorDataset(torch.zeros(3)), [0, 1]), Subset(TensorDataset(torch.zeros(3)), [0, 2])),
    ([torch.zeros(2), torch.zeros(2)], [torch.zeros(2), torch.ones(2)]),
    (ConcatDataset([TensorDataset(torch.zeros(2))]), ConcatDataset([TensorDataset(torch.ones(2))])),
    (StackDataset(TensorDataset(torch.zeros(2))), StackDataset(TensorDataset(torch.ones(2)))),
    (StackDataset(a=TensorDataset(torch.zeros(2))), StackDataset(a=TensorDataset(torch.ones(2)))),
    (loader(torch.zeros(4)), loader(torch.zeros(4), shuffle=True)),
    (types.SimpleNamespace(y=torch.zeros(2)), types.SimpleNamespace(y=torch.ones(2))),
    (Data(torch.zeros(2)), Data(torch.ones(2))),
    (collections.deque([1.0]), collections.deque([2.0])),
    (b"ab", b"ac"),
    (array.array("d", [1.0]), array.array("d", [2.0])),
    ([1 + 2j], [1 + 3j]),
    ([decimal.Decimal("1.5")], [decimal.Decimal("1.6")]),
    ({1, 2}, {1, 3}),
    (holding(torch.zeros(2)), holding(torch.ones(2))),
    (np.float32, np.float64),
    (torch.float32, torch.float64),
    (nested(torch.zeros(2)), nested(torch.ones(2))),
    (torch.ones(2, dtype=torch.cfloat).conj(), torch.zeros(2, dtype=torch.cfloat).conj()),
    (torch.ones(2).to(torch.float8_e5m2), torch.zeros(2).to(torch.float8_e5m2)),
]


@pytest.mark.parametrize("pair", DIFFERENT, ids=[type(one).__name__ for one, _ in DIFFERENT])
def test_different_values_differ(pair):
    one, other = pair
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_layout_and_order_do_not_count():
    x = torch.randn(3, 4)
    assert fingerprint(x) == fingerprint(x.mT.contiguous().mT)
    assert fingerprint(x) == fingerprint(x.to_sparse())
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({("a",): x}) == fingerprint({("a",): x.clone()})


class Filling(Dataset):
    """Keeps what was asked for."""

    def __init__(self):
        self.kept = {}

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.kept.setdefault(index, torch.zeros(1))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(1)])


def test_a_data_set_that_keeps_what_was_asked_for_stays_the_same():
    data = Filling()
    before = fingerprint(DataLoader(data))
    assert len(list(DataLoader(data))) == len(data.kept) == 3
    assert fingerprint(DataLoader(data)) == before == fingerprint(DataLoader(Filling()))
    assert fingerprint(DataLoader(Stream())) == fingerprint(DataLoader(Stream()))


def test_what_fills_of_itself_does_not_count():
    data, module = Data(torch.zeros(2)), holding(torch.zeros(2))
    before = fingerprint([data, module])
    data.cache["a"] = 1
    module(torch.randn(3, 2))
    assert fingerprint([data, module]) == before


class Endless:
    """Data set whose data set is another of its kind, or itself."""

    def __init__(self, itself):
        self.itself = itself

    @property
    def dataset(self):
        return self if self.itself else Endless(False)

    def __len__(self):
        raise RuntimeError("no")


def test_what_contains_itself_is_no_error():
    itself = [1]
    itself.append(itself)
    assert fingerprint(itself) == fingerprint(itself)
    for endless in (Endless(True), Endless(False), torch.Tensor, np.ndarray, types.SimpleNamespace):
        assert fingerprint(endless) == fingerprint(endless)
    assert fingerprint({1, 2, "a", "b"}) == fingerprint({"b", "a", 2, 1})


@pytest.mark.long
def test_another_process_has_the_same_hash():
    program = (
        "import torch; torch.set_default_dtype(torch.float64)\n"
        "from tests.store.test_fingerprint import *\n"
        "print(fingerprint([{'b': 1, 'a': torch.ones(3)}, loader(torch.zeros(3))]))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == fingerprint([{"b": 1, "a": torch.ones(3)}, loader(torch.zeros(3))])
