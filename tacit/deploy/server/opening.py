"""Opening an encrypted sum from the server's side: it has no key, so it asks the sites.

It sends them the signed reports themselves, not their product: a site checks and adds them, so a server that lies about the
sum gains nothing. Where the key is split it asks every site and joins the first `threshold` answers whose proofs hold;
where each site has the whole key, it asks the one whose turn it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from gmpy2 import mpz

from tacit.crypto.envelope import RoundContext
from tacit.crypto.holder import Inbox, Opened, Opens, inbox_of, numbers_from_bytes, refuse_few, total_bytes, whose_turn
from tacit.crypto.threshold import Partial, Verification, join, refuse_wrong
from tacit.deploy.server import trainer as open_question
from tacit.deploy.server.gather import gather
from tacit.deploy.server.trainer import OverGrid
from tacit.deploy.site.keys import share_number
from tacit.errors import BadCiphertext, BadOpening, TacitError, WrongShare
from tacit.types import Message
from tacit.wire import pack, unpack


@dataclass(frozen=True)
class Question:
    """What sites are asked about a round, as it is on disk, and the reports it holds; `report_bytes` is their length in all."""

    ask: dict[str, Any]
    body: bytes = field(repr=False)
    inbox: Inbox = field(repr=False)
    report_bytes: int


@dataclass
class Sites:
    """The sites that open sums for a server. They are there once its run has begun, which is before any sum.

    Seals are made before the trainer that reaches the sites, and need to know how sums are opened: this stands between the two.
    """

    trainer: OverGrid | None = None

    @property
    def there(self) -> OverGrid:
        """The trainer that reaches the sites. Raises: TypeError before the run has begun, which is a fault of the caller's."""
        if self.trainer is None:
            raise TypeError("a sum is opened in a run that has begun")
        return self.trainer

    def opening(self, group: str, at_least: int, verification: Verification | None) -> Opens:
        """How the sums of a group are opened: by shares where the key is split, else by the site whose turn it is."""
        return AtHolders(self, group, at_least, verification) if verification else AtSite(self, group, at_least)


@dataclass(frozen=True)
class AtSite:
    """The one site whose turn it is opens, with the whole key.

    Assumes: that site is honest about the sum: nothing proves what it says, and it could read single reports if the server gave
    them.
    """

    sites: Sites
    group: str
    at_least: int

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks for the sum of the reports.

        Raises: TooFewReports, before anybody is asked; BadOpening for an answer that is no list of numbers of the right length;
        TacitError with the reason where the site is not connected, refuses, or does not answer.
        """
        trainer, asked = self.sites.there, question(self, context, messages)
        who = whose_turn(trainer.names, run=context.run, round=context.round)
        node = trainer.nodes.get(list(trainer.names).index(who))
        again = "bring it back, then go on with --resume"
        if node is None:
            raise TacitError(f"Round {context.round + 1} is opened by {who}, which is not connected: {again}.")
        heard = gather(trainer.grid, {node: asked.ask}, asked.body, seconds=trainer.seconds, most=trainer.most)
        if node not in heard.answers:
            why = heard.refusals.get(node) or heard.lost.get(node) or f"no answer in {trainer.seconds:g} s"
            raise TacitError(f"Round {context.round + 1} could not be opened by {who} ({why}): {again}.")
        raw = heard.answers[node][1]
        try:
            numbers = numbers_from_bytes(context.public, raw, count=sum(context.chunk_sizes))
        except BadCiphertext as error:
            raise BadOpening(f"{who} opened it with something that is no sum") from error
        return Opened(numbers, asked.inbox.complete(), asked.report_bytes, len(raw))


@dataclass(frozen=True)
class AtHolders:
    """Every site answers with its share of the key; `threshold` answers with a proof open.

    Guarantee: a wrong part is found by its proof, left out by name, and does not change the sum. Neither the server nor fewer
    than `threshold` sites together can open one.
    """

    sites: Sites
    group: str
    at_least: int
    verification: Verification

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks for the sum of the reports, all sites at once, and takes the first `threshold` parts whose proofs hold.

        Raises: TooFewReports, before anybody is asked; TacitError naming who did not help, and why.
        """
        trainer, asked, t = self.sites.there, question(self, context, messages), self.verification.threshold
        total = asked.inbox.total(at_least=self.at_least)
        good: dict[str, Partial] = {}
        wrong: dict[str, str] = {}
        lost: dict[str, str] = {}
        answered, names = 0, {node: trainer.names[index] for index, node in trainer.nodes.items()}
        open_, answering = dict.fromkeys(names, asked.ask), True
        while open_ and answering and len(good) < t:  # again only where a proof failed: who is silent was waited for
            needed = t - len(good)
            limits = {"seconds": trainer.seconds, "most": trainer.most}
            heard = gather(trainer.grid, open_, asked.body, **limits, enough=needed)
            for node, (_, raw) in heard.answers.items():
                answered += len(raw)
                try:
                    good[names[node]] = self._checked(names[node], total, raw)
                except TacitError as error:
                    wrong[names[node]] = str(error)
            wrong |= {names[node]: why for node, why in heard.refusals.items()}
            lost |= {names[node]: why for node, why in heard.lost.items()}
            open_, answering = dict.fromkeys(heard.open(open_), asked.ask), len(heard.answers) >= needed
        if len(good) < t:
            raise TacitError(self._too_few(context.round, good, lost | wrong))
        numbers = join(self.verification, good.values())
        return Opened(numbers, asked.inbox.complete(), asked.report_bytes * len(names), answered, wrong)

    def _checked(self, name: str, total: list[mpz], raw: bytes) -> Partial:
        """A site's answer, if it is its own share's for this sum. Raises WrongShare, or BadCiphertext."""
        partial, number = self.verification.from_bytes(raw), share_number(self.sites.there.names, name)
        if partial.index != number:
            raise WrongShare(f"It answered with share {partial.index}, and its own is {number}: leave it out.")
        refuse_wrong(self.verification, total, partial)
        return partial

    def _too_few(self, round: int, good: dict[str, Partial], reasons: dict[str, str]) -> str:
        trainer, t = self.sites.there, self.verification.threshold
        here = {trainer.names[index] for index in trainer.nodes}
        silent = f"no answer in {trainer.seconds:g} s"
        missing = [name for name in trainer.names if name not in good]
        why = "; ".join(
            f"{name}: {reasons.get(name) or (silent if name in here else 'is not connected')}" for name in missing
        )
        text = f"Round {round + 1} is opened by {t} of {len(trainer.names)} sites, and {len(good)} gave their part"
        return f"{text} ({why}): bring them back, then go on with --resume."


def question(opener: AtSite | AtHolders, context: RoundContext, messages: Sequence[bytes]) -> Question:
    """The question about these reports, or the one on disk where this round was asked before: sites answer no other.

    Guarantee: it is on disk before it is returned. A report that came only after a restart is left out of the sum, as it would
    have been without the restart.

    Raises: TooFewReports; then the round goes on without a step, and nobody is asked.
    """
    folder, name = opener.sites.there.folder, f"asked-to-open-{opener.group}.bin"
    body = open_question.find(folder, name, context.round)
    if body is None:
        refuse_few(inbox_of(context, messages).complete(), at_least=opener.at_least)
        sent = {f"{i:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for i, raw in enumerate(messages)}
        body = open_question.keep(folder, name, context.round, pack(Message("server", sent)))
    reports = [tensor.numpy().tobytes() for _, tensor in sorted(unpack(body).tensors.items())]
    ask = {"kind": "open", "run": folder.run, "round": context.round, "group": opener.group}
    return Question(ask, body, inbox_of(context, reports), total_bytes(reports))
