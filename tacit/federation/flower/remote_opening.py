"""Opening an encrypted sum from the server's side: it has no key, so it asks the sites.

It sends them the signed reports themselves, not their product: a site checks and adds them, so a server that lies about the
sum gains nothing. Where the key is split it asks every site and joins the first `threshold` answers whose proofs hold;
where each site has the whole key, it asks the one whose turn it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from gmpy2 import mpz

from tacit.engine.wire import pack, unpack
from tacit.errors import BadCiphertext, BadOpening, TacitError, WrongShare
from tacit.federation.flower import open_question as kept
from tacit.federation.flower.gather import gather
from tacit.federation.flower.trainer import OverGrid
from tacit.federation.site.key_files import share_number
from tacit.protect.envelope import RoundContext
from tacit.protect.holder import whose_turn
from tacit.protect.inbox import Inbox, inbox_of, refuse_few
from tacit.protect.opening import Opened, Opens, numbers_from_bytes, total_bytes
from tacit.protect.threshold import Partial, Verification, join, refuse_wrong
from tacit.types import Message


@dataclass(frozen=True)
class Question:
    """What sites are asked about a round, and the reports it holds."""

    ask: dict[str, Any]
    body: bytes = field(repr=False)
    inbox: Inbox = field(repr=False)
    report_bytes: int


@dataclass
class Sites:
    """The sites that open sums for a server. They are there once its run has begun, which is before any sum."""

    trainer: OverGrid | None = None

    @property
    def there(self) -> OverGrid:
        """Who can be asked."""
        if self.trainer is None:
            raise TypeError("a sum is opened in a run that has begun")
        return self.trainer

    def opening(self, group: str, at_least: int, verification: Verification | None) -> Opens:
        """How the sums of a group are opened: by shares where the key is split."""
        return AtHolders(self, group, at_least, verification) if verification else AtSite(self, group, at_least)


@dataclass(frozen=True)
class AtSite:
    """The one site whose turn it is opens, with the whole key."""

    sites: Sites
    group: str
    at_least: int

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks for the sum of the reports. Raises TooFewReports, BadOpening, or TacitError with the site's reason."""
        trainer, asked = self.sites.there, question(self, context, messages)
        who = whose_turn(trainer.names, run=context.run, round=context.round)
        node = trainer.nodes.get(list(trainer.names).index(who))
        again = "bring it back, then go on with --resume"
        if node is None:
            raise TacitError(f"Round {context.round} is opened by {who}, which is not connected: {again}.")
        heard = gather(trainer.grid, {node: asked.ask}, asked.body, seconds=trainer.seconds)
        if node not in heard.answers:
            why = heard.refusals.get(node) or heard.lost.get(node) or f"no answer in {trainer.seconds:g} s"
            raise TacitError(f"Round {context.round} could not be opened by {who} ({why}): {again}.")
        raw = heard.answers[node][1]
        try:
            numbers = numbers_from_bytes(context.public, raw, count=sum(context.chunk_sizes))
        except BadCiphertext as error:
            raise BadOpening(f"{who} opened it with something that is no sum") from error
        return Opened(numbers, asked.inbox.complete(), asked.report_bytes, len(raw))


@dataclass(frozen=True)
class AtHolders:
    """Every site answers with its share of the key; `threshold` answers with a proof open."""

    sites: Sites
    group: str
    at_least: int
    verification: Verification

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks for the sum of the reports. Raises TooFewReports, or TacitError naming who did not help and why."""
        trainer, asked, t = self.sites.there, question(self, context, messages), self.verification.threshold
        total = asked.inbox.total(at_least=self.at_least)
        good: dict[str, Partial] = {}
        wrong: dict[str, str] = {}
        lost: dict[str, str] = {}
        answered, names = 0, {node: trainer.names[index] for index, node in trainer.nodes.items()}
        open_, told = dict.fromkeys(names, asked.ask), True
        while open_ and told and len(good) < t:  # again only where a proof failed: who is silent was waited for
            needed = t - len(good)
            heard = gather(trainer.grid, open_, asked.body, seconds=trainer.seconds, enough=needed)
            for node, (_, raw) in heard.answers.items():
                answered += len(raw)
                try:
                    good[names[node]] = self._checked(names[node], total, raw)
                except TacitError as error:
                    wrong[names[node]] = str(error)
            wrong |= {names[node]: why for node, why in heard.refusals.items()}
            lost |= {names[node]: why for node, why in heard.lost.items()}
            open_, told = dict.fromkeys(heard.open(open_), asked.ask), len(heard.answers) >= needed
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
        text = f"Round {round} is opened by {t} of {len(trainer.names)} sites, and {len(good)} gave their part"
        return f"{text} ({why}): bring them back, then go on with --resume."


def question(opener: AtSite | AtHolders, context: RoundContext, messages: Sequence[bytes]) -> Question:
    """The question about these reports, or the kept one where this round was asked before: sites answer no other.

    Raises TooFewReports; then the round goes on without a step, and nobody is asked.
    """
    folder, name = opener.sites.there.folder, f"asked-to-open-{opener.group}.bin"
    body = kept.find(folder, name, context.round)
    if body is None:
        refuse_few(inbox_of(context, messages).complete(), at_least=opener.at_least)
        sent = {f"{i:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for i, raw in enumerate(messages)}
        body = kept.keep(folder, name, context.round, pack(Message("server", sent)))
    reports = [tensor.numpy().tobytes() for _, tensor in sorted(unpack(body).tensors.items())]
    ask = {"kind": "open", "run": folder.run, "round": context.round, "group": opener.group}
    return Question(ask, body, inbox_of(context, reports), total_bytes(reports))
