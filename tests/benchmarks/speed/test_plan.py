"""The plan of the speed page: like with like, and a reason for whoever is absent."""

import pytest

from benchmarks.peers import PEERS
from benchmarks.problems.network import NETWORK
from benchmarks.problems.page import PROBLEMS
from benchmarks.speed.plan import CONFIGURATIONS, IN_TURN, MICI, NUMPYRO, OURS, SIZES, groups

over_names = pytest.mark.parametrize("name", SIZES)


def test_plans_are_of_problems():
    assert set(SIZES) - {NETWORK} <= set(PROBLEMS)


@over_names
def test_rows_of_a_group_differ_in_the_peer_alone(name):
    for group in groups(name):
        assert len({setting[2:5] for setting in group.settings}) == 1
        assert str(group.settings[0].chains) in group.title


@over_names
def test_whoever_has_no_row_has_a_reason(name):
    for group in groups(name):
        here = {setting.name for setting in group.settings}
        assert here | set(group.absent) == set(CONFIGURATIONS)
        assert not here & set(group.absent)
        assert all(group.absent.values())
        assert {OURS, NUMPYRO} <= here
        assert {setting.peer for setting in group.settings} <= set(PEERS)


def test_peers_are_where_they_can_be():
    for name in SIZES:
        few = {setting.name for setting in groups(name)[0].settings}
        assert IN_TURN in few
        assert (MICI in few) == ("V(3,2)" in name)
