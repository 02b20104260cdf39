"""Values that a key may not have, and the words of the type checker that nobody who wrote a file should read."""

import re

WRONG = [
    "a word",
    -1,
    3,
    2.5,
    float("nan"),
    float("inf"),
    10**400,
    True,
    [],
    [1, "x"],
    ["x", [2]],
    {"a": 1},
    {"a": [1]},
    {"a": {"b": "c"}},
]
FOREIGN = re.compile(
    r"input should|valid dictionary|instance of|union|_type\b|value_error|literal_error|_parsing|model_|pydantic"
    r"|\.(?:str|int|float|bool|dict|tuple|list|literal|function|constrained|nullable|none)\b"
    r"|NoneType|\bdict\[|\btuple\[|\blist\[|value error|Section\b|Traceback|(?-i:\bTrue\b|\bFalse\b)",
    re.IGNORECASE,
)


def foreign_words(sentence):
    """The words in a sentence that no user of Tacit wrote and no page of Tacit explains."""
    return FOREIGN.findall(sentence)
