"""Every refusal Tacit makes, by name. The command line turns any of them into one sentence and exit code 2."""

import signal
from enum import IntEnum


class Refusal(IntEnum):
    """What a site's refusal means for the server: the same question is refused for ever, may be asked later, or cannot be paid."""

    NEVER, LATER, UNPAID = 1, 2, 3


class TacitError(Exception):
    """The root of all refusals. Its message is one sentence that says what to do."""


class BadInput(TacitError, ValueError):
    """A setting, a file or an argument that cannot be used as it stands."""


class BadData(BadInput):
    """A data file that is missing, truncated, or holds what it must not hold. `cell` is what the message quotes of the data,
    and `hint` a last sentence that does; `discreet` is the message without them, for logs.

    >>> BadData("line 2 holds 'flu', which is no number", cell="flu").discreet
    'line 2 holds a value that is not repeated here, which is no number'
    """

    def __init__(self, text: str, *, cell: str | None = None, hint: str = ""):
        super().__init__(f"{text}{hint}")
        self.discreet = text if cell is None else text.replace(repr(cell), "a value that is not repeated here")


class ModelRefused(TacitError):
    """A model that DP-SGD cannot train under its guarantee, such as one with BatchNorm."""


class BudgetExhausted(TacitError):
    """A charge that would take a client past its budget."""

    kind = Refusal.UNPAID


class LedgerError(TacitError):
    """The ledger could not be written or does not belong to this data; nothing was released."""


class AnsweredOnce(LedgerError):
    """A query was charged, and its answer is not kept or not the one that would be given now: there is no second one."""


class Unanswered(TacitError):
    """Nobody answered a query of a deployment; names everybody, with the reasons."""


class Unmeasured(BadInput):
    """A metric that some rows, or a model's answers to them, cannot tell."""


class TrainingDiverged(TacitError):
    """A loss or an update that is not finite; names the client and the round."""


class PartFailed(TacitError):
    """A rule or a model, Tacit's or somebody else's, raised in the middle of a run; `__cause__` is what it raised."""


class RunExists(TacitError):
    """The output folder already holds a run."""


class GridOverflow(TacitError):
    """An integer beyond the lane it was made for; a sum that holds one is not used."""


class NeedsRows(BadInput):
    """A rule that must see single updates, where only sums are opened."""


class KeyRefused(TacitError):
    """A key that is too weak, damaged, of the wrong kind, or readable by others."""


class MessageRefused(TacitError):
    """A sealed message that is not taken; its type says why. The sender is named, the round goes on without it."""


class BadCiphertext(MessageRefused):
    """A ciphertext outside 0 < c < n^2, with a factor in common with n, cut short, or of another key's shape."""


class BadSignature(MessageRefused):
    """A message that was altered, or was signed by somebody else than it says."""


class UnknownSender(MessageRefused):
    """A message from somebody who is not on the list of members."""


class Replayed(MessageRefused):
    """A message of another run or another round."""


class Duplicate(MessageRefused):
    """A second message for a place that is taken."""


class ForeignKey(MessageRefused):
    """A message sealed for another public key."""


class OtherRoster(MessageRefused):
    """A message made for another experiment or another list of sites than this one; one server may have told two stories."""


class BadProof(MessageRefused):
    """A report whose sender has not shown that it knows what it sealed; its ciphertexts may be somebody else's."""


class Truncated(MessageRefused):
    """A message that is cut short, too long, or lacks chunks."""


class SumOverflow(TacitError):
    """An opened sum beyond the room that was left for it."""


class BadOpening(TacitError):
    """An answer to an opening that is no sum; names the site that gave it."""


class TooFewReports(TacitError):
    """A sum of fewer reports than the noise was shared for; it is not opened."""


class OpeningRefused(TacitError):
    """A sum the opener will not open: one of the round has been opened, it is another's turn, or the sum is not shown."""


class WrongShare(TacitError):
    """A partial opening that its share did not make; names the share."""


class Refused(TacitError):
    """A site's answer to a server that asks for more than its limits or its agreement allow; nothing was released."""

    def __init__(self, text: str, kind: Refusal = Refusal.NEVER):
        super().__init__(text)
        self.kind = kind


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C would have closed is closed."""


def stop_on_term() -> None:
    """Lets SIGTERM end this process as Ctrl-C does, so that what it started ends with it; a second one changes nothing."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def exit_code(error: KeyboardInterrupt) -> int:
    """What a command that was stopped returns, as a shell counts.

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated())
    (130, 143)
    """
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
