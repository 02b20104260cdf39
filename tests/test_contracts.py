"""Every rule and algorithm that ships is held to the same contract; a new file in tacit/algorithms/rules/ is found by itself."""

import json
import re
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.algorithms import PopulationStatistics, combined, finished, group_message, rules, weighted_sum
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.record_sums import RecordSums
from tacit.algorithms.rules.pfa import pfa
from tacit.algorithms.rules.random_projection import random_projection
from tacit.engine.assemble import build
from tacit.errors import BadInput, NeedsRows
from tacit.privacy.accounting import price
from tacit.privacy.distributed.kind import summing_rule
from tacit.random import seeded
from tacit.training.sgd import Trained, workspace
from tacit.types import Message, Raw
from tacit.wire import pack, unpack

LAYOUT = ((0, 30), (30, 45), (45, 50))
EPSILONS = np.array([0.1, 0.2, 0.5, 9.0, 10.0])


def noise_std(epsilon):
    return 0.05 / epsilon


def statistics(epsilons):
    return PopulationStatistics(np.asarray(epsilons), noise_std(np.asarray(epsilons)))


def sent(rule, updates, epsilons: Any = EPSILONS, memory=None, examples=None):
    """Messages as clients send them, and the rule's memory: told first, then sent."""
    memory = rule.init(LAYOUT, statistics(epsilons)) if memory is None else memory
    told = rule.tell(memory, np.asarray(epsilons))
    messages = []
    for i, (update, epsilon) in enumerate(zip(updates, epsilons, strict=True)):
        facts = {
            "examples": 60 if examples is None else examples[i],
            "noise_std": noise_std(epsilon),
            "epsilon": float(epsilon),
        }
        tensors, more = rule.send(torch.as_tensor(update), facts, told)
        messages.append(Message(str(i), tensors, facts | more))
    return memory, messages


def draws(count=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(50, generator=generator) for _ in range(count)]


def printed():
    """The rules of docs/how-to-add-a-rule.md, run as they are written: one for sums, one for rows, one in between."""
    text, said = (Path(__file__).parents[1] / "docs" / "how-to-add-a-rule.md").read_text("utf-8"), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, said)
    return {name: said[name] for name in ("by_examples", "trimmed", "largest_only")}


@pytest.fixture(params=[*rules.names(), "the docs' by_examples", "the docs' trimmed"])
def rule(request):
    shipped, _, name = request.param.partition("the docs' ")
    return printed()[name]() if name else rules.load(shipped)


def test_equal_updates_come_back_unchanged(rule):
    update = draws(1)[0]
    applied = combined(rule, *sent(rule, [update.clone() for _ in EPSILONS]))
    if isinstance(rule, random_projection):
        pytest.skip("a random projection changes even equal updates: that is what the control shows")
    assert torch.allclose(applied.update, update, atol=1e-5)


def test_the_order_of_clients_does_not_matter(rule):
    memory, messages = sent(rule, draws())
    forward = combined(rule, memory, messages).update
    assert torch.allclose(forward, combined(rule, memory, messages[::-1]).update, atol=1e-5)


def test_the_messages_are_left_as_they_were(rule):
    memory, messages = sent(rule, draws())
    before = [{name: tensor.clone() for name, tensor in m.tensors.items()} for m in messages]
    combined(rule, memory, messages)
    assert all(
        torch.equal(m.tensors[name], tensor)
        for m, old in zip(messages, before, strict=True)
        for name, tensor in old.items()
    )


def test_the_result_is_finite_for_one_client_identical_budgets_and_zero_updates(rule):
    for updates, epsilons in (
        (draws(1), [1.0]),
        (draws(), [2.0] * 5),
        ([torch.zeros(50)] * 5, EPSILONS),
        (draws(2), [0.1, 10.0]),
    ):
        assert torch.isfinite(combined(rule, *sent(rule, updates, epsilons)).update).all()


def test_what_is_remembered_is_tensors_that_a_checkpoint_can_hold(rule):
    memory, messages = sent(rule, draws())
    after = combined(rule, memory, messages).memory
    assert all(isinstance(value, torch.Tensor) for value in after.values())
    again, messages = sent(rule, draws(seed=1), memory=after)
    assert torch.isfinite(combined(rule, again, messages).update).all()


def test_what_is_stated_beside_an_update_survives_the_wire(rule):
    _, messages = sent(rule, draws())
    for message in messages:
        assert unpack(pack(message)).facts == message.facts


def summed(rule, messages):
    """What is left of the messages where only sums by group are opened."""
    groups = {}
    for message in messages:
        groups.setdefault(message.facts.get("group", "all"), []).append(message)
    merged = []
    for name, members in groups.items():
        pairs = [(rule.weight(m.facts), m.tensors["update"]) for m in members]
        total, weight = weighted_sum(pairs)
        merged.append(group_message(name, total / weight, [m.facts for m in members]))
    return merged


@pytest.mark.parametrize("name", rules.names())
def test_a_rule_that_sees_sums_gives_the_same_from_sums_by_group(name):
    readings: list[Any] = (
        [rules.load(name)] if name != "pfa" else [rules.load("pfa", reading=r) for r in ("paper", "code")]
    )
    for rule in readings:
        memory, messages = sent(rule, draws(), examples=[10, 20, 30, 40, 50])
        if rule.sees == "sums":
            whole, parts = combined(rule, memory, messages), combined(rule, memory, summed(rule, messages))
            assert torch.allclose(whole.update, parts.update, atol=1e-5)
            assert {k: v for k, v in whole.info.items() if k != "public"} == pytest.approx(
                {k: v for k, v in parts.info.items() if k != "public"}
            )
        elif rule.private_sum:  # the rows of public clients, and of the others the sum alone
            rows = [one for one in messages if one.facts["group"] == "public"]
            private = [one for one in messages if one.facts["group"] != "public"]
            assert rows
            assert private
            whole, parts = combined(rule, memory, messages), combined(rule, memory, [*rows, *summed(rule, private)])
            assert torch.allclose(whole.update, parts.update, atol=1e-5)
        else:
            reading = {} if name != "pfa" else {"reading": rule.reading}
            with pytest.raises(NeedsRows, match=f"The rule {name} must see single updates"):
                summing_rule(
                    tacit.Experiment(
                        privacy={"kind": "distributed", "epsilon": 5.0}, aggregate={"rule": name} | reading
                    )
                )


def test_the_rules_that_see_sums_are_named_for_those_who_need_one():
    known = rules.seeing_sums()
    assert {"mean", "weighted", "inverse-variance", "public-only"} <= set(known)
    assert {"pfa", "pfa-plus", "random-projection"} <= set(known)
    assert not {"robust", "random-effects"} & set(known)


COUNT, PUBLIC = 30, 3


def kept(rule):
    """The fewest and the most updates that a rule keeps, by what it says: all rows, none, or what its own `start` holds."""
    if isinstance(rule, pfa):
        return PUBLIC, PUBLIC
    if rule.sees == "rows" and isinstance(rule.start(), list):
        return COUNT, COUNT
    return 0, 0 if rule.sees == "sums" else COUNT - 1


def test_a_rule_keeps_no_more_updates_than_it_says(rule):
    """Those that see sums hold one at a time, pfa and its kin also those of the public clients."""
    epsilons, alive, most = np.array([0.1] * (COUNT - PUBLIC) + [10.0] * PUBLIC), set(), []
    memory = rule.init(LAYOUT, statistics(epsilons))
    told = rule.tell(memory, epsilons)

    def arriving():
        for i, epsilon in enumerate(epsilons.tolist()):
            facts = {"examples": 60, "noise_std": noise_std(epsilon), "epsilon": epsilon}
            tensors, more = rule.send(torch.randn(50), facts, told)
            alive.add(i)
            weakref.finalize(tensors["update"], alive.discard, i)
            most.append(len(alive))
            yield Message(str(i), tensors, facts | more)
            del tensors

    assert torch.isfinite(combined(rule, memory, arriving()).update).all()
    fewest, largest = kept(rule)
    assert fewest <= max(most) <= largest + 2


def test_a_rule_that_keeps_some_rows_by_its_own_start_is_known_by_that():
    found = printed()
    assert [kept(found[name]()) for name in found] == [(0, 0), (COUNT, COUNT), (0, COUNT - 1)]


def test_a_rule_says_what_it_sees(rule):
    assert rule.sees in ("sums", "rows")


def test_the_rules_of_the_how_to_run_as_they_are_written():
    """docs/how-to-add-a-rule.md: one for sums, one for rows, one that says itself what it gathers."""
    said, updates, examples = printed(), draws(), [10, 20, 30, 50, 40]
    rows, n = torch.stack(updates), torch.tensor(examples)[:, None]
    expected = {
        "by_examples": (rows * n).sum(0) / n.sum(),
        "trimmed": rows.sort(0).values[1:-1].mean(0),
        "largest_only": updates[3],
    }
    for name, update in expected.items():
        rule = said[name](beta=0.2) if name == "trimmed" else said[name]()
        assert torch.allclose(combined(rule, *sent(rule, updates, examples=examples)).update, update, atol=1e-5)
        with pytest.raises(BadInput):
            combined(rule, {}, [])


def test_a_round_without_messages_is_refused(rule):
    with pytest.raises(BadInput):
        combined(rule, rule.init(LAYOUT, statistics(EPSILONS)), [])


def test_mean_weighs_by_examples():
    mean = rules.load("mean")
    applied = combined(mean, *sent(mean, [[0.0], [4.0]], [1.0, 1.0], examples=[1, 3]))
    assert applied.update.item() == 3.0


def test_a_rule_can_come_from_any_module():
    assert rules.load("tacit.algorithms.rules.mean:mean").sees == "sums"
    with pytest.raises(BadInput, match=r"nowhere:rule"):
        rules.load("nowhere:rule")


KINDS = {
    "fedavg": {"kind": "none"},
    "local, record level": {"kind": "local", "epsilon": 5.0},
    "local, client level": {"kind": "local", "unit": "client", "epsilon": 5.0},
    "central, poisson": {"kind": "central", "epsilon": 5.0},
    "central, adaptive": {"kind": "central", "epsilon": 5.0, "adaptive_clip": {"quantile": 0.5, "count_noise": 5.0}},
    "distributed, skellam": {"kind": "distributed", "epsilon": 5.0},
    "distributed, discrete-gaussian": {"kind": "distributed", "epsilon": 5.0, "noise": "discrete-gaussian"},
    "central, records": {"kind": "central", "unit": "record", "epsilon": 5.0},
    "distributed, records": {"kind": "distributed", "unit": "record", "epsilon": 5.0},
    "scaffold": {"kind": "none"},
    "scaffold, record level": {"kind": "local", "epsilon": 5.0},
    "scaffold, client level": {"kind": "local", "unit": "client", "epsilon": 5.0},
    "mean-regularised": {"kind": "none"},
    "mean-regularised, record level": {"kind": "local", "epsilon": 5.0},
    "mean-regularised, client level": {"kind": "local", "unit": "client", "epsilon": 5.0},
}
OWN = {"kind": "mean-regularised", "strength": 0.1, "when": "during"}


@pytest.fixture(params=KINDS)
def parts(request):
    """One experiment per way in which an algorithm can be set."""
    more = {"control": "scaffold"} if request.param.startswith("scaffold") else {}
    own = OWN if request.param.startswith("mean-regularised") else {}
    steps = {"local_steps": 1} if request.param.endswith("records") else {"local_steps": 2, "batch_size": 5}
    return build(
        tacit.Experiment(
            data={"clients": 6, "examples_per_client": 20, **({"own_share": 0.2} if own else {})},
            train={"rounds": 3, "server_optimizer": "adam", **steps, **more},
            privacy=KINDS[request.param],
            personal=own,
        )
    )


def answers(parts, state, seed=0):
    """The messages of all clients, through the wire."""
    work = workspace(parts.model, clip=1.0, physical_batch=64)
    cohort = [parts.population[i] for i in range(len(parts.population))]
    received = unpack(pack(parts.algorithm.broadcast(state, cohort, round=0)))
    for client in cohort:
        trained = parts.algorithm.train(work, received, client, partial(seeded(seed), 0, client.id))
        yield unpack(pack(parts.algorithm.release(trained, client, received)))


def copied(state):
    memories = {"memory": state.memory, "optimizer": state.optimizer, "control": state.control}
    named = {f"{key}.{name}": tensor.clone() for key, memory in memories.items() for name, tensor in memory.items()}
    return {"params": state.params.clone()} | named


def test_every_algorithm_that_ships_is_held_to_the_contract():
    files = {path.stem for path in Path(tacit.algorithms.__file__).parent.glob("[a-z]*.py")}
    assert files == {
        "fedavg",
        "local_dp",
        "central_dp",
        "encrypted",
        "record_sums",
        "scaffold",
        "mean_regularised",
    }  # a new one belongs into KINDS


def test_a_round_is_a_function_of_state_messages_and_randomness(parts):
    state = parts.algorithm.init(parts.params)
    before, messages = copied(state), list(answers(parts, state))
    derive = partial(seeded(3), "server", 0)
    one, other = (finished(parts.algorithm.collect(state, round=0), iter(messages), derive)[0] for _ in range(2))
    assert all(torch.equal(copied(one)[name], tensor) for name, tensor in copied(other).items())
    assert all(torch.equal(before[name], tensor) for name, tensor in copied(state).items())
    assert torch.isfinite(one.params).all()
    assert not torch.equal(one.params, state.params)


def test_what_an_algorithm_remembers_is_tensors_that_a_checkpoint_can_hold(parts):
    state = parts.algorithm.init(parts.params)
    derive = partial(seeded(3), "server", 0)
    after, info = finished(parts.algorithm.collect(state, round=0), answers(parts, state), derive)
    assert all(isinstance(value, torch.Tensor) for value in copied(after).values())
    assert set(copied(after)) == set(copied(state))
    assert set(after.optimizer) == {"m", "v"}
    assert json.loads(json.dumps(info)) == info


def test_who_promises_has_a_price_and_who_does_not_has_none(parts):
    cost = parts.algorithm.cost(parts.population[0])
    assert (cost is not None) == parts.plan.priced
    if cost is not None:
        assert price.from_text(price.to_text(cost)) is not None


def test_what_leaves_a_client_is_no_raw_update_where_something_is_promised(parts):
    raw = Trained(Raw(torch.full_like(parts.params, 7.0)))
    client = parts.population[0]
    received = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [client], round=0)
    if isinstance(parts.algorithm, LocalDP):
        with pytest.raises(TypeError, match="carry their noise"):
            parts.algorithm.release(raw, client, received)
    elif isinstance(parts.algorithm, Encrypted):
        with pytest.raises(TypeError, match="share of the noise"):
            parts.algorithm.release(raw, client, received)
    elif isinstance(parts.algorithm, CentralDP):
        sent = parts.algorithm.release(raw, client, received).tensors["update"]
        assert float(sent.norm()) == pytest.approx(parts.plan.mechanism.clip, rel=1e-5)
    elif isinstance(parts.algorithm, RecordSums):
        with pytest.raises(TypeError, match="sums of clipped gradients"):
            parts.algorithm.release(raw, client, received)
    else:
        assert torch.equal(parts.algorithm.release(raw, client, received).tensors["update"], raw.update.vector)
