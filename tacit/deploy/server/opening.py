"""Opening an encrypted sum from the server's side: it has no key, so it asks the sites.

It sends them the signed reports themselves, not their product: a site checks and adds them, so a server that lies about the
sum gains nothing. Where the key is split it asks every site and joins the first `threshold` answers whose proofs hold;
where each site has the whole key, it asks the one whose turn it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.crypto.masks import Roster
from tacit.crypto.reports import (
    Inbox,
    Opened,
    Opens,
    RoundContext,
    inbox_of,
    numbers_from_bytes,
    opener_of,
    refuse_few,
)
from tacit.crypto.threshold import Partial, Verification, join, refuse_wrong
from tacit.deploy.server.gather import Accept, Heard, gather
from tacit.deploy.server.masks import Group, Groups
from tacit.deploy.server.trainer import OverGrid, find, keep, listed
from tacit.deploy.site.keys import share_number
from tacit.errors import BadCiphertext, BadOpening, TacitError, WrongShare
from tacit.types import Message
from tacit.wire import pack, unpack

AGAIN = "then go on with --resume"


@dataclass
class Sites:
    """The sites that open sums for a server. `trainer` is set once the run has begun, which is before any sum."""

    trainer: OverGrid | None = None
    groups: Groups = field(default_factory=Groups)

    @property
    def there(self) -> OverGrid:
        if self.trainer is None:
            raise TypeError("a sum is opened in a run that has begun")
        return self.trainer

    def legs(self, name: str, roster: Roster) -> Group:
        self.groups[name] = Group(name, roster, lambda: self.there)
        return self.groups[name]

    def opening(self, group: str, at_least: int, verification: Verification | None) -> Opens:
        return AtHolders(self, group, at_least, verification) if verification else AtSite(self, group, at_least)


@dataclass(frozen=True)
class _Asking:
    sites: Sites
    group: str
    at_least: int

    def question(self, context: RoundContext, messages: Sequence[bytes]) -> tuple[bytes, Inbox, int]:
        """The request about these reports, or the one on disk where this round was asked before: sites answer no other."""
        folder, name = self.sites.there.folder, f"asked-to-open-{self.group}.bin"
        body = find(folder, name, context.round)
        if body is None:
            refuse_few(inbox_of(context, messages).complete(), at_least=self.at_least)
            sent = {f"{i:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for i, raw in enumerate(messages)}
            body = keep(folder, name, context.round, pack(Message("server", sent)))
        reports = [tensor.numpy().tobytes() for _, tensor in sorted(unpack(body).tensors.items())]
        return body, inbox_of(context, reports), sum(map(len, reports))

    def ask(self, nodes: Sequence[int], round: int, body: bytes, accept: Accept, *, enough: int) -> Heard:
        trainer = self.sites.there
        ask = {"kind": "open", "run": trainer.folder.run, "round": round, "group": self.group}
        limits: dict[str, Any] = {"seconds": trainer.seconds, "most": trainer.most, "enough": enough}
        return gather(trainer.grid, dict.fromkeys(nodes, ask), body, accept=accept, **limits)


@dataclass(frozen=True)
class AtSite(_Asking):
    """The one site whose turn it is opens, with the whole key. Assumes: it is honest about the sum: nothing proves it."""

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        trainer, (body, inbox, sent) = self.sites.there, self.question(context, messages)
        who = opener_of(trainer.names, run=context.run, round=context.round)
        node = trainer.nodes.get(list(trainer.names).index(who))
        if node is None:
            raise TacitError(
                f"Round {context.round + 1} is opened by {who}, who is not connected: bring it back, {AGAIN}."
            )
        heard = self.ask([node], context.round, body, lambda node, head, raw: raw, enough=1)
        if node not in heard.answers:
            text = f"Round {context.round + 1} could not be opened by {who} ({heard.why(node)})"
            raise TacitError(f"{text}: bring it back, {AGAIN}.")
        raw = heard.answers[node]
        try:
            numbers = numbers_from_bytes(context.public, raw, count=sum(context.chunk_sizes))
        except BadCiphertext as error:
            raise BadOpening(f"{who} opened it with something that is no sum") from error
        return Opened(numbers, inbox.complete(), sent, len(raw))


@dataclass(frozen=True)
class AtHolders(_Asking):
    """Every site answers with its share of the key; `threshold` answers with a proof open.

    Guarantee: a wrong part is found by its proof, left out by name, and does not change the sum. Neither the server nor fewer than
    `threshold` sites in collusion can open one.
    """

    verification: Verification

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        trainer, (body, inbox, sent) = self.sites.there, self.question(context, messages)
        names, t = {node: trainer.names[index] for index, node in trainer.nodes.items()}, self.verification.threshold
        total, answered = inbox.total(at_least=self.at_least), list[int]()

        def accept(node: int, head: object, raw: bytes) -> Partial:
            answered.append(len(raw))
            partial, number = self.verification.from_bytes(raw), share_number(trainer.names, names[node])
            if partial.index != number:
                raise WrongShare(f"It answered with share {partial.index}, and its own is {number}: leave it out.")
            refuse_wrong(self.verification, total, partial)
            return partial

        heard = self.ask(list(names), context.round, body, accept, enough=t)
        good = {names[node]: part for node, part in heard.answers.items()}
        if len(good) < t:
            here = {name: node for node, name in names.items()}
            missing = {name: heard.why(here.get(name)) for name in trainer.names if name not in good}
            text = f"Round {context.round + 1} is opened by {t} of {len(trainer.names)} sites, and {len(good)} gave their part"
            raise TacitError(f"{text} ({listed(missing)}): bring them back, {AGAIN}.")
        wrong = {names[node]: why for node, why in heard.refusals.items()}
        return Opened(join(self.verification, good.values()), inbox.complete(), sent * len(names), sum(answered), wrong)
