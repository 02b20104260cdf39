"""Rules that look at every update by itself: what a minority that sends anything can do to them, and what they refuse."""

import pytest
import statistical
import torch
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.algorithms import Sum, combined, rules
from tacit.algorithms.rules import share_count
from tacit.algorithms.rules.krum import closeness
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.types import Message

ROBUST = {
    "median": {},
    "trimmed-mean": {"share": 0.4},
    "krum": {"share": 0.4},
    "norm-bound": {},
}


def messages(rows):
    return [Message(f"client-{i:02}", {"update": row}, {"examples": 1}) for i, row in enumerate(rows)]


def honest(count=9, size=40, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("size", [1e3, 1e30])
def test_a_minority_that_sends_enormous_updates_moves_no_robust_rule_far_and_the_mean_anywhere(name, size):
    good = honest(15)
    sent = messages(torch.cat([good, torch.full((4, 40), size)]))
    rule = rules.load(name, **ROBUST[name])
    assert float(combined(rule, {}, sent).update.norm()) <= 3 * float(good.norm(dim=1).max())
    assert float(combined(rules.load("mean"), {}, sent).update.norm()) > 100 * float(good.norm(dim=1).max())


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
@given(lies=st.lists(st.floats(-1e30, 1e30), min_size=4, max_size=4))
def test_every_coordinate_stays_between_two_honest_values(name, lies):
    good = honest(6, size=3)
    bad = torch.tensor(lies, dtype=torch.float32)[:, None].expand(-1, 3)
    update = combined(rules.load(name, **ROBUST[name]), {}, messages(torch.cat([good, bad]))).update
    assert bool((update >= good.min(0).values).all() and (update <= good.max(0).values).all())


def test_a_trimmed_mean_of_nobody_trimmed_is_the_mean_and_of_nearly_half_the_median():
    sent = messages(honest(9))
    for share, same in ((0.0, "mean"), (0.45, "median")):
        one = combined(rules.load("trimmed-mean", share=share), {}, sent).update
        assert torch.allclose(one, combined(rules.load(same), {}, sent).update, atol=1e-6)


@pytest.mark.parametrize("name", ["trimmed-mean", "krum"])
@pytest.mark.parametrize("share", [0.5, 0.7, -0.1, float("nan")])
def test_a_rule_that_would_trim_everybody_away_is_refused(name, share):
    with pytest.raises(BadInput, match=r"Expected 0 <= aggregate\.share < 0\.5"):
        rules.load(name, share=share)


@given(st.floats(0, 0.499), st.integers(1, 500))
def test_however_small_a_round_somebody_is_left(share, count):
    assert count - 2 * share_count(share, count) >= 1
    assert share_count(share, count) >= share * count - 1e-6 or share_count(share, count) == (count - 1) // 2


def test_krum_gives_one_clients_own_update_and_multi_krum_the_mean_of_the_closest():
    good = honest(9) * 0.1 + 1
    sent = messages(torch.cat([good, -20 * torch.ones(2, 40)]))
    applied = combined(rules.load("krum", share=0.2), {}, sent)
    (chosen,) = applied.info["kept"]
    assert torch.equal(applied.update, next(m for m in sent if m.sender == chosen).tensors["update"])
    several = combined(rules.load("krum", share=0.2, keep=4), {}, sent)
    own = [m.tensors["update"] for m in sent if m.sender in several.info["kept"]]
    assert len(own) == 4
    assert torch.allclose(several.update, torch.stack(own).mean(0))
    with pytest.raises(BadInput, match=r"aggregate\.keep"):
        rules.load("krum", keep=0)


def test_the_scores_of_krum_are_the_sums_that_the_paper_writes():
    rows = honest(7, size=5)

    def slow(i, near):
        return sum(sorted(float((rows[i] - rows[j]).square().sum()) for j in range(len(rows)) if j != i)[:near])

    assert closeness(rows, 3).tolist() == pytest.approx([slow(i, 3) for i in range(7)], rel=1e-4)


def test_an_enormous_update_spoils_no_distance_but_its_own():
    rows = honest(7, size=5)
    with_lie = closeness(torch.cat([rows, torch.full((1, 5), 1e30)]), 3)
    assert with_lie[:7].tolist() == pytest.approx(closeness(rows, 3).tolist(), rel=1e-4)


@given(st.lists(st.floats(-1e20, 1e20), min_size=3, max_size=3))
def test_under_a_bound_one_client_moves_the_mean_by_at_most_twice_the_bound_over_all(lie):
    rule, good = rules.load("norm-bound", bound=0.5), honest(9, size=3)
    other = torch.cat([good[:8], torch.tensor([lie])])
    moved = combined(rule, {}, messages(good)).update - combined(rule, {}, messages(other)).update
    assert float(moved.norm()) <= 2 * 0.5 / 9 * (1 + 1e-5)


def test_a_bound_that_is_known_beforehand_holds_one_sum_and_one_that_is_not_holds_all():
    assert isinstance(rules.load("norm-bound", bound=1.0).start(), Sum)
    assert rules.load("norm-bound").start() == []
    applied = combined(rules.load("norm-bound"), {}, messages(torch.tensor([[1.0], [2.0], [9.0]])))
    assert applied.info["bound"] == 2.0
    assert float(applied.update) == pytest.approx(5 / 3)


def test_weak_noise_is_as_large_as_it_says_and_the_same_for_the_same_updates():
    sent = messages(honest(5, size=4000))
    plain = combined(rules.load("norm-bound", bound=1.0), {}, sent).update
    noised = [combined(rules.load("norm-bound", bound=1.0, noise=0.3), {}, sent).update for _ in range(2)]
    assert torch.equal(*noised)
    noise = (noised[0] - plain).double().numpy()
    assert statistical.has_std(noise, 0.3)
    assert not statistical.has_std(noise, 0.2)
    assert not statistical.has_std(noise, 0.45)


@pytest.mark.parametrize("options", [{"bound": 0.0}, {"bound": -1.0}, {"noise": -0.1}])
def test_a_bound_or_noise_that_is_none_is_refused(options):
    with pytest.raises(BadInput, match=r"aggregate\.(bound|noise)"):
        rules.load("norm-bound", **options)


@pytest.mark.parametrize("name", ROBUST)
def test_under_central_dp_a_robust_rule_is_refused_and_under_local_dp_it_is_wired(name):
    with pytest.raises(BadInput, match=r"aggregate\.rule must be mean"):
        tacit.Experiment(privacy={"kind": "central", "epsilon": 5.0}, aggregate={"rule": name})
    parts = build(
        tacit.Experiment(
            data={"clients": 5}, privacy={"kind": "local", "epsilon": 5.0}, aggregate={"rule": name, **ROBUST[name]}
        )
    )
    assert type(parts.releases.rule).__name__ == name.replace("-", "_")
