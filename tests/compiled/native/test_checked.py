"""Builds that look whether each access is inside its array: they see mistakes of every kind that emitters can make."""

import pytest
import torch

from pyro_manifold.compiled import Verified
from pyro_manifold.compiled.native import (
    Operator,
    OutsideArrayError,
    Place,
    entry,
    flat,
    is_checked,
    operators,
    shifted,
)
from tests.compiled.native.loops import in_native, native_function


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_CHECKED", "1")


def _without_brackets(_, shape, x, dims):
    """``n - 1 - i0 + 1`` where ``n - 1 - (i0 + 1)`` is meant."""
    return x.viewed(
        shape, lambda index: [Place(f"{n - 1} - {i.strip('()')}") for n, i in zip(shape, index, strict=True)]
    )


def _before_the_first(_, shape, x, dims):
    return x.viewed(shape, lambda index: [shifted(i, -1) for i in index])


def _written_beyond(writer, shape, x, dims):
    array = writer.array(x.size)
    writer.lines.append(
        writer.for_each(shape, lambda index: f"{entry(array, flat([shifted(index[0], 1)], shape))} = {x.at(index)};")
    )
    return writer.value(shape, array)


def _factored_beyond(writer, shape, x, dims):
    copy = writer.copied(x)
    writer.lines.append(f"for (int b = 0; b < 1; b++) cholesky(PART({copy.array}, 0, {x.size}), {x.size});")
    return copy


def _part_beyond(writer, shape, x, dims):
    copy = writer.copied(x)
    writer.lines.append(f"for (int b = 0; b < 1; b++) cholesky(PART({copy.array}, 1, {x.size}), 1);")
    return copy


def _constant_beyond(writer, shape, x, dims):
    data = writer.constant(torch.arange(float(x.size)))
    return data.viewed(shape, lambda index: [shifted(index[0], 1)])


def _index_beyond(writer, shape, x, dims):
    places = writer.integers(torch.arange(x.size))
    return x.viewed(shape, lambda index: [places([shifted(index[0], 1)])])


WRONG = {
    "a sum without brackets": (_without_brackets, r"at place 5 of 5"),
    "a read before the first": (_before_the_first, r"at place -1 of 5"),
    "a write": (_written_beyond, r"at place 5 of 5"),
    "a function of the header": (_factored_beyond, r"a\[.*at place \d+ of 5"),
    "a part of an array": (_part_beyond, r"at place 5 of 5"),
    "a constant": (_constant_beyond, r"k0\[.*at place 5 of 5"),
    "a constant of indices": (_index_beyond, r"j0\[.*at place 5 of 5"),
}


def flipped(x):
    return [x.flip(0)[1:].exp(), x.flip(0).sin()]


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_seen(mistake, chains, monkeypatch):
    emit, message = WRONG[mistake]
    monkeypatch.setitem(operators.OPERATORS, "flip", Operator(emit))
    with pytest.raises(OutsideArrayError, match=message):
        in_native(flipped, torch.randn(chains, 5))


def test_what_was_never_written_is_nan(monkeypatch):
    unwritten = Operator(lambda writer, shape, x, dims: writer.value(shape, writer.array(x.size)))
    monkeypatch.setitem(operators.OPERATORS, "flip", unwritten)
    assert in_native(lambda x: [x.flip(0)], torch.randn(3, 5))[0].isnan().all()


def test_right_code_passes_and_a_fault_is_reported_once(monkeypatch):
    x = torch.randn(3, 5)
    assert torch.equal(in_native(lambda x: [x.flip(0)], x)[0], x.flip(1))
    monkeypatch.setitem(operators.OPERATORS, "flip", Operator(_before_the_first))
    wrong, right = native_function(lambda x: [x.flip(0)], x), native_function(lambda x: [x * 2], x)
    for _ in range(2):
        with pytest.raises(OutsideArrayError):
            wrong(1, x)
        right(1, x)


def test_inputs_of_another_size():
    loop = native_function(lambda x: [x * 2], torch.randn(3, 5))
    with pytest.raises(OutsideArrayError, match=r"input 0 of a compiled loop has shape \(3, 4\)"):
        loop(1, torch.randn(3, 4))


def test_a_fault_does_not_become_a_fallback(monkeypatch):
    """A model continues without native code after any compiler error, but a checked build must report it."""
    monkeypatch.setitem(operators.OPERATORS, "flip", Operator(_before_the_first))
    function = Verified(lambda x: (x.flip(1),), "torch")
    x = torch.randn(3, 5)
    loop = native_function(lambda x: [x.flip(0)], x)
    with pytest.raises(OutsideArrayError):
        function.attempt("native", lambda _: lambda x: tuple(loop(1, x)), [[x]])


def test_only_on_demand(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_CHECKED", "0")
    assert not is_checked()
    assert not hasattr(native_function(lambda x: [x * 2], torch.randn(3, 5))._library, "fault")
