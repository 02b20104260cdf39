"""The server's part of sums under masks: it carries setups to the sites, adds what it cannot read, and asks for the two legs after.

Whatever it must say the same way twice is on disk before anybody is asked: the question with its setups, and the list of survivors
with their sum. Sites answer no other."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tacit.crypto.masks import Attempt, Collecting, Roster, Setup
from tacit.crypto.reports import Opened, verified
from tacit.crypto.seal import report_bytes
from tacit.deploy.server.gather import Heard, gather
from tacit.deploy.server.trainer import OverGrid, find, keep
from tacit.deploy.server.trainer import listed as in_words
from tacit.deploy.site.masks import framed, listed, names_of, parted, shares_from_bytes, shares_to_bytes
from tacit.deploy.site.replies import question_hash
from tacit.errors import BadOpening, BadSignature, TacitError, TooFewReports
from tacit.types import Message
from tacit.wire import pack, unpack

PREPARE_SECONDS = 60.0  # for setups, which take a site no time: who gives none is not in the round
AGAIN = "bring them back, then go on with --resume"


@dataclass(eq=False)
class Group:
    """One group's legs at the server. `setups` are those that came, by round; `model` stands for the question of the round."""

    name: str
    roster: Roster
    trainer: Callable[[], OverGrid]
    setups: dict[int, dict[str, Setup]] = field(default_factory=dict)
    model: str = ""

    def take(self, sender: str, round: int, raw: bytes) -> None:
        """Notes a setup for a round. Raises: MessageRefused for what every site would refuse."""
        one = Setup.of(sender, raw, self.roster)
        one.checked(Attempt(self.roster, round))
        self.setups.setdefault(round, {})[sender] = one

    def adding(self, round: int, *, count: int, bits: int) -> Collecting:
        return Collecting.of(Attempt(self.roster, round), self.model, self.setups.get(round, {}), count, bits)

    def heard(self, sender: str, round: int, setup: torch.Tensor | None) -> None:
        with contextlib.suppress(
            TacitError
        ):  # its report counts all the same; it is asked for another before the next round
            if setup is not None:
                self.take(sender, round + 1, report_bytes(setup))

    def mask(self, vector: np.ndarray, *, client: str, round: int, bits: int) -> np.ndarray:
        raise TypeError("a server takes part in no sum")

    def ahead(self, round: int) -> Mapping[str, torch.Tensor]:
        raise TypeError("a server takes part in no sum")

    def _ask(self, kind: str, names: Mapping[str, int], round: int, body: bytes, **how: Any) -> Heard:
        trainer = self.trainer()
        ask = {"kind": kind, "run": trainer.folder.run, "round": round, "group": self.name}
        return gather(trainer.grid, dict.fromkeys(names.values(), ask), body, most=trainer.most, **how)

    def prepare(self, round: int, nodes: Mapping[str, int]) -> dict[str, Setup]:
        """The setups of the members among `nodes`: those that rode on reports, and of the others whoever gives one now."""
        known = self.setups.setdefault(round, {})
        missing = {name: node for name, node in nodes.items() if name in self.roster.signing and name not in known}
        names = {node: name for name, node in missing.items()}
        if missing:
            seconds = min(self.trainer().seconds, PREPARE_SECONDS)
            self._ask(
                "prepare",
                missing,
                round,
                b"",
                seconds=seconds,
                accept=lambda node, head, raw: self.take(names[node], round, raw),
            )
        return {name: one for name, one in known.items() if name in nodes}

    def open(self, adding: Collecting) -> tuple[np.ndarray, Opened]:
        """The sum of the survivors on the list, which is the one on disk where this round's was asked about before."""
        trainer, round, roster = self.trainer(), adding.attempt.round, self.roster
        survivors = self._settled(adding)
        here = {trainer.names[index]: node for index, node in trainer.nodes.items()}
        nodes = {name: here[name] for name in survivors if name in here}
        names = {node: name for name, node in nodes.items()}
        content = adding.attempt.survivors(adding.model, adding.setups, survivors)

        def signed(node: int, head: object, raw: bytes) -> bytes:
            if not verified(roster.signing, names[node], content, raw):
                raise BadSignature("its signature is on another list")
            return raw

        def given(node: int, head: object, raw: bytes) -> dict[str, int]:
            return shares_from_bytes(raw, list(adding.setups))

        how: dict[str, Any] = {"seconds": trainer.seconds, "enough": roster.threshold}
        first = self._ask("sign", nodes, round, listed(survivors), accept=signed, **how)
        signatures = {names[node]: raw for node, raw in first.answers.items()}
        self._refuse_few(first, nodes, survivors, round, "signed the list of its survivors")
        body = listed(survivors, signatures)
        second = self._ask("unmask", nodes, round, body, accept=given, **how)
        self._refuse_few(second, nodes, survivors, round, "gave their shares of its masks")
        answers = {names[node]: shares for node, shares in second.answers.items()}
        try:
            total = adding.opened(answers)
        except BadOpening:  # somebody gave false shares: with everybody's they are looked past
            every = self._ask("unmask", nodes, round, body, accept=given, seconds=trainer.seconds)
            answers = {names[node]: shares for node, shares in every.answers.items()}
            total = adding.opened(answers)
        asked = (len(listed(survivors)) + len(body)) * len(nodes)
        answered = sum(map(len, signatures.values())) + sum(len(shares_to_bytes(shares)) for shares in answers.values())
        refused = {names[node]: why for node, why in (first.refusals | second.refusals).items()}
        return total, Opened([], survivors, asked, answered, refused)

    def _settled(self, adding: Collecting) -> list[str]:
        # the list and its sum, fixed before anybody signs it
        trainer = self.trainer()
        folder, name, round = trainer.folder, f"masked-{self.name}.bin", adding.attempt.round
        found = kept = find(folder, name, round)
        if kept is None:
            survivors = adding.survivors
            total = torch.from_numpy(np.asarray(adding.total).view(f"<i{adding.bits // 8}"))
            kept = keep(folder, name, round, pack(Message("server", {"total": total}, {"survivors": survivors})))
        message = unpack(kept)
        adding.total = message.tensors["total"].numpy().view(f"<u{adding.bits // 8}")
        adding.reported = names_of(message.facts["survivors"])
        if found is not None:
            trainer.fixed(self.roster.names, adding.survivors)
        return adding.survivors

    def _refuse_few(self, heard: Heard, nodes: Mapping[str, int], survivors: list[str], round: int, did: str) -> None:
        need = self.roster.threshold
        if len(heard.answers) >= need:
            return
        missing = {name: heard.why(nodes.get(name)) for name in survivors if nodes.get(name) not in heard.answers}
        text = f"Round {round + 1} is opened once {need} of {len(self.roster.names)} sites have, and {len(heard.answers)} {did}"
        folder, name = self.trainer().folder, f"unopened-{self.name}.bin"
        if find(folder, name, round) is not None:  # one site that never comes back does not end the run
            raise TooFewReports(f"{text} ({in_words(missing)}), after --resume too: its sum stays closed.")
        keep(folder, name, round, b"")
        raise TacitError(f"{text} ({in_words(missing)}): {AGAIN}; if they stay away, the run then leaves this sum out.")


class Groups(dict[str, Group]):
    """The groups of a run under masks, by name; without any a question is as it was."""

    def question(self, received: bytes, round: int, nodes: Mapping[str, int]) -> bytes:
        """A round's question with the setups of who takes part. Raises: TacitError where a group has too few of them."""
        setups = {name: group.prepare(round, nodes) for name, group in self.items()}
        for name, group in self.items():
            ready, need = sorted(setups[name]), group.roster.at_least
            if len(ready) < need:
                who = f"{len(ready)} sites are ready for its sum ({', '.join(ready) or 'none'}), which needs {need}"
                raise TacitError(
                    f"Round {round + 1} cannot begin: {who}; bring the others back, then go on with --resume."
                )
        return framed(received, setups, {name: group.roster for name, group in self.items()}) if self else received

    def begin(self, round: int, body: bytes) -> set[str] | None:
        """Takes a round's question as the one that is asked; who takes part in it, by name, where not everybody does."""
        for name, group in self.items():
            _, setups = parted(body, name, group.roster)
            group.setups, group.model = {round: setups}, question_hash(body).hex()
        return {name for group in self.values() for name in group.setups[round]} if self else None

    def hopeless(self, round: int, refused: set[str]) -> bool:
        """Whether no sum can come of a round's question, as these refuse it for ever: one site's setup can see to that."""
        return all(len(set(group.setups[round]) - refused) < group.roster.at_least for group in self.values())
