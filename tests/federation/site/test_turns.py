"""Where sites take turns in public, a site answers in its own turn and in no other, and pays when it comes."""

import pytest
from redteam.lying_server import Server, experiment

from tacit.errors import Refused

CYCLIC = {"privacy": {"kind": "central", "epsilon": 1.0, "sampler": "cyclic"}, "train": {"clients_per_round": 1}}


@pytest.fixture
def asking(tmp_path):
    """A server of two sites in a cycle of two rounds, of three in all."""
    return Server(tmp_path / "site", experiment(**CYCLIC))


def own_rounds(asking):
    return [round for round in range(3) if 0 in asking.parts.plan.sampler.scheduled(round)]


def test_a_site_answers_in_its_turn_pays_then_and_refuses_a_question_that_comes_too_early(asking):
    asking.agree()
    assert asking.charges() == []  # nothing is paid before a turn comes
    mine = own_rounds(asking)
    for round in range(3):
        if round in mine:
            first = asking.train(round)
            assert asking.train(round) == first  # the kept answer, for nothing
            continue
        before = asking.charges()
        with pytest.raises(
            Refused, match=f"Round {round + 1} is not this site's turn: it takes part in rounds .* within 2 rounds"
        ):
            asking.train(round)
        assert asking.charges() == before
    assert asking.charges() == mine


def test_a_server_cannot_have_a_site_answer_twice_within_a_band_by_asking_out_of_order(asking):
    asking.agree()
    mine = own_rounds(asking)
    asking.train(mine[-1])
    for round in {0, 1, 2} - set(mine):
        with pytest.raises(Refused):  # because it is not its turn, or because a later round was answered
            asking.train(round)
    asking.restart()
    for round in {0, 1, 2} - set(mine):
        with pytest.raises(Refused):
            asking.train(round)
    assert asking.charges() == mine[-1:]


def test_a_schedule_that_the_sites_budget_does_not_pay_for_is_no_agreement(tmp_path):
    loud = {"privacy": CYCLIC["privacy"] | {"noise_multiplier": 4.5}, "train": CYCLIC["train"] | {"rounds": 3}}
    chosen = experiment(**loud, run={"randomness": "os", "seed": seed_with_two_turns()})
    asking = Server(tmp_path / "site", chosen)
    with pytest.raises(Refused, match="pays for 1 of the 2 turns that the schedule gives it"):
        asking.agree()
    assert asking.charges() == []


def seed_with_two_turns():
    from tacit.privacy.samplers import cyclic

    return next(seed for seed in range(20) if cyclic(2, 1, seed=seed).groups[0] == 0)


def test_the_sites_promise_says_that_everybody_may_know_who_took_part(asking):
    asking.agree()
    text = next(asking.folder.glob("runs/*/promise.txt")).read_text()
    assert "who took part in which round (the server is trusted)" in text
    assert "public cohorts in a cycle of 2 rounds" in text
    assert "secret" not in text
