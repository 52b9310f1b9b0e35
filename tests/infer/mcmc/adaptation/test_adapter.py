"""Adaptations made of adapters: the order in which they contribute, learn and end windows."""

import torch

from pyro_manifold.infer.mcmc.adaptation import Adaptation, Adapter


class Recorded(Adapter):
    """Writes down when it is called, and adds its name to the settings."""

    changing = ("learned",)

    def __init__(self, name, calls):
        self.name, self.calls, self.learned = name, calls, 0

    def contribute(self, settings, iteration):
        return (*settings, self.name)

    def learn(self, seen):
        self.learned += 1
        self.calls.append((self.name, "learns", seen.number, seen.window))

    def end_window(self, seen):
        self.calls.append((self.name, "ends", seen.number, seen.window))


class Pair(Adaptation):
    """Two adapters and windows of one and two iterations."""

    def __init__(self, calls):
        super().__init__([range(1), range(1, 3)], {name: Recorded(name, calls) for name in ("first", "second")})

    def initial_settings(self, iteration):
        return (iteration,)


def test_adapters_contribute_and_learn_in_turn():
    calls = []
    pair = Pair(calls)
    assert pair.settings(7) == (7, "first", "second")
    for iteration in (1, 2, 3, 4):
        pair.learn(iteration, None, None, {}, torch.Generator())
    assert calls == [
        ("first", "learns", 1, 0),
        ("second", "learns", 1, 0),
        ("first", "ends", 1, 0),
        ("second", "ends", 1, 0),
        ("first", "learns", 2, 1),
        ("second", "learns", 2, 1),
        ("first", "learns", 3, 1),
        ("second", "learns", 3, 1),
        ("first", "ends", 3, 1),
        ("second", "ends", 3, 1),
    ]


def test_what_adapters_learned_is_saved():
    one, other = Pair([]), Pair([])
    one.learn(1, None, None, {}, torch.Generator())
    other.load_state_dict(one.state_dict())
    assert [adapter.learned for adapter in other.adapters.values()] == [1, 1]
