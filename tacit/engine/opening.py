"""The opening of a round: the ledger is told which release is to be paid for, and the server gets its randomness.

What may be released once only (`plan.once`: noise that is correlated over rounds) is refused here where it was released before.
"""

from tacit.build.parts import Parts
from tacit.digest import mark, state_mark
from tacit.errors import LedgerError
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import Derive
from tacit.types import State


def released(round: int) -> str:
    """Under which name the ledger knows that a round was released."""
    return f"round {round}"


def _refuse_older(parts: Parts, ledger: Ledger, round: int) -> None:
    """Refuses to release a round again that was released, or after which others were paid for, unless it is the very same bits.

    Two releases of a round have the noise of the rounds before it in common, whose clients pay once.

    Raises: LedgerError where the round was released before, and not in a way that can be repeated.
    """
    if (ledger.ahead or ledger.released(released(round))) and (parts.elsewhere or parts.nonce or not ledger.again):
        known = (
            f"The ledger {ledger.path} was charged for rounds after round {round + 1}"
            if ledger.ahead
            else f"Round {round + 1} was released"
        )
        raise LedgerError(
            f"{known}, from which the checkpoint would go on: its noise has been used since, and used twice it would show what it"
            " hides. Put the newest checkpoint back, or start anew with --force; nothing was released."
        )


def open_round(parts: Parts, ledger: Ledger | None, state: State, round: int) -> Derive:
    """Tells the ledger which release is to be paid for; the server's randomness in the state that the round starts from.

    Raises: LedgerError as `_refuse_older`.
    """
    numbered = parts.algorithm.numbered or parts.experiment.train.schedule is not None
    if parts.nonce and not parts.elsewhere:  # no other start has these keys, and in this one a round happens once
        begins = mark("round", str(round))
    else:
        begins = state_mark(state, turn=round if numbered else None)
    if ledger is not None:
        ledger.open_round(round, parts.releases.attempt(begins))
        if parts.plan.once:
            _refuse_older(parts, ledger, round)
    return parts.releases.server(begins)
