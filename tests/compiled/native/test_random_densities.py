"""Random densities of the table's operators: native code, traced graphs and torch agree from small to huge values.

The rule of false alarms. Each number that torch computes on the way is moved by up to 1e-12 of it, four times at
random, once all of them away from zero and once all towards it; the largest change of an entry is its spread. The last
two see every number that stands on a step of ``floor`` or of a conversion to whole numbers, as ``3000 * tanh(x)`` does
where tanh is 1; four numbers drawn at random fall on one side of it in one of eight cases. An entry counts as wrong

- if it is NaN, ∞ or −∞ in one way of computing and not in the other, while it is so, or is not, in all the disturbed
  ones as it is in torch's; of a gradient, only if it is finite in one way and not in the other, since products that
  overflow, in another order, are ∞ in place of ∞ · 0, and a trajectory ends at either;
- if it differs by more than ten spreads plus 1e-10 of itself.

Rounding, including that of functions of the C library, is below 1e-13 at each operator, a tenth of what moves the
spread: no wrong entry is expected of right code in any number of densities. Three operators that torch has fewer
digits of, which native code need not share, are moved by as much as torch's are off: trigamma by 1e-8, since its
series has six terms; the slope of hardsigmoid by 1e-6, since its sixth is a float32; and digamma's argument, which
loses digits near a pole. Those that subtract nearly equal numbers inside (gelu far out, the slope of a softmax) are
moved by 1e-15 of these numbers, for the same reason. At a pole of trigamma itself, where torch has a finite number, and
of polygamma at arguments whose power underflows in torch (ψ‴(6e79) is off by 3e-5 there, and right in native code),
nothing is decided. An entry that is NaN only in some of the disturbed ones, or a chain whose matrix has no factor in
torch, decides nothing. Where that, or NaN, were the rule, the test would see nothing: at least half of all entries must
be finite and decided.
"""

import itertools

import pytest
import torch

from pyro_manifold.compiled.native import UnsupportedOperatorError, source_of
from tests.compiled.native.loops import loop_of, native_function
from tests.compiled.native.random_densities import SHAPE, OfManyChains, energy_and_gradient, random_density

SCALES = (0.3, 1.0, 10.0, 100.0, 1000.0, 10000.0)
OF_A_FILE, FEW = 50, 10
DENSITIES = 300
_TINY = 1e-290  # below are numbers of fewer digits


def inputs_at_all_scales():
    """A chain for each scale."""
    scales = torch.tensor(SCALES)[:, None, None]
    return [scales * torch.randn(len(SCALES), *SHAPE) for _ in range(2)]


def natively(densities, inputs):
    """Energy and gradient of each density, ``(chains, ...)``."""
    functions = [energy_and_gradient(density) for density in densities]
    loop = native_function(lambda *values: [x for function in functions for x in function(*values)], *inputs)
    found = loop(1, *inputs)
    return [found[k : k + 3] for k in range(0, len(found), 3)]


def kind(value):
    """0 for what is finite, else which of ∞, −∞ and NaN."""
    return value.isnan() * 3 + (value == torch.inf) * 1 + (value == -torch.inf) * 2


class Yardstick:
    """Result of torch for a density, and its change by rounding alone."""

    def __init__(self, ways):
        rows = list(ways.eager())
        nothing = [torch.full((), torch.nan), *[torch.full(SHAPE, torch.nan)] * 2]
        self.expected = [torch.stack(x) for x in zip(*[nothing if row is None else row for row in rows], strict=True)]
        self.traced = ways.traced()
        noise = torch.Generator().manual_seed(0)
        disturbed = [ways.disturbed(noise) for _ in range(4)] + [ways.disturbed(away) for away in (1.0, -1.0)]
        exists = torch.tensor([row is not None for row in rows]) & all(run is not None for run in disturbed)
        self.decided = [exists.reshape(-1, *[1] * (x.dim() - 1)).expand(x.shape).clone() for x in self.expected]
        self.spread = [torch.zeros_like(x) for x in self.expected]
        for run in disturbed if exists.any() else []:
            for k, (x, moved) in enumerate(zip(self.expected, run, strict=True)):
                self.decided[k] &= kind(x) == kind(moved)
                self.spread[k] = torch.maximum(self.spread[k], (x - moved).abs().nan_to_num(0.0, 0.0, 0.0))

    def wrong(self, found):
        """Return masks of the wrong entries of each output."""
        kinds = (kind, torch.isfinite, torch.isfinite)
        every = zip(kinds, found, self.expected, self.spread, self.decided, strict=True)
        return [self._wrong(*of_output) for of_output in every]

    def _wrong(self, kind, found, expected, spread, decided):
        allowed = 10 * spread + 1e-10 * expected.abs() + _TINY
        far = (expected.isfinite() & found.isfinite()) & ((found - expected).abs() > allowed)
        return decided & ((kind(found) != kind(expected)) | far)

    @property
    def share(self):
        """Finite and decided entries, of all."""
        both = [decided & x.isfinite() for decided, x in zip(self.decided, self.expected, strict=True)]
        return torch.cat([x.flatten().to(torch.get_default_dtype()) for x in both]).mean().item()


def described(number, way, found, yardstick):
    lines = [f"density {number}, {way}:"]
    of_outputs = zip(("energy", "dx", "dy"), yardstick.wrong(found), found, yardstick.expected, strict=True)
    for name, wrong, here, there in of_outputs:
        for scale, of_chain, x, y in zip(SCALES, wrong, here, there, strict=True):
            if of_chain.any():
                lines.append(f"  {name} at scale {scale}: {x[of_chain][:3].tolist()}, not {y[of_chain][:3].tolist()}")
    return "\n".join(lines)


def drawn(first, inputs):
    """Numbers of densities that exist at the first point and are covered by the table, and ways of computing them."""
    for number in itertools.count(first):
        density = random_density(number)
        try:
            ways = OfManyChains(density, *inputs)
            loop = loop_of(energy_and_gradient(density), *inputs)
            source_of(loop, [(1, *SHAPE)] * 2, inputs[0].dtype)
        except (RuntimeError, UnsupportedOperatorError):
            continue
        yield number, ways


def disagreements(first, count):
    """Count wrong densities among so many, and the share of informative entries."""
    inputs = inputs_at_all_scales()
    densities = dict(itertools.islice(drawn(first, inputs), count))
    found, said, shares = natively([random_density(number) for number in densities], inputs), [], []
    for (number, ways), native in zip(densities.items(), found, strict=True):
        yardstick = Yardstick(ways)
        shares.append(yardstick.share)
        for way, values in (("native", native), ("traced", yardstick.traced)):
            if values is not None and any(wrong.any() for wrong in yardstick.wrong(values)):
                said.append(described(number, way, values, yardstick))
    return said, sum(shares) / len(shares)


def test_a_few_random_densities():
    said, share = disagreements(0, FEW)
    assert not said, "\n".join(said)
    assert share > 0.5


@pytest.mark.long
@pytest.mark.parametrize("part", range(DENSITIES // OF_A_FILE))
def test_random_densities(part):
    said, share = disagreements(1000 * part, OF_A_FILE)
    assert not said, "\n".join(said)
    assert share > 0.5
