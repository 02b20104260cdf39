"""Every refusal Tacit makes, by name. The command line turns any of them into one sentence and exit code 2."""


class TacitError(Exception):
    """The root of all refusals. Its message is one sentence that says what to do."""


class BadInput(TacitError, ValueError):
    """A setting, a file or an argument that cannot be used as it stands."""


class BadData(BadInput):
    """A data file that is missing, truncated, or holds what it must not hold."""


class ModelRefused(TacitError):
    """A model that DP-SGD cannot train under its guarantee, such as one with BatchNorm."""


class BudgetExhausted(TacitError):
    """A charge that would take a client past its budget."""


class LedgerError(TacitError):
    """The ledger could not be written or does not belong to this data; nothing was released."""


class TrainingDiverged(TacitError):
    """A loss or an update that is not finite; names the client and the round."""


class RunExists(TacitError):
    """The output folder already holds a run."""


class Refused(TacitError):
    """A site's answer to a server that asks for more than its limits or its agreement allow; nothing was released."""
