"""What is wrong with a site's own file, in one sentence that names the key."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ValidationError

from tacit import check

KINDS = {  # how pydantic's names for a problem begin
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "finite_number": "a finite number",
    "string": "a text",
    "tuple": "a list of texts",
    "dict": "a table",
    "model": "a table",
}


def wording(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of a file that was held against `model`, in one sentence: a misspelt key before one that is missing.

    For files of the site's own people: the sentence repeats the value that is wrong.
    """
    problem = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    key, kind = ".".join(str(part) for part in problem["loc"]), str(problem["type"])
    if kind == "extra_forbidden":
        *tables, last = [str(part) for part in problem["loc"]]
        return unknown(last, _keys(model, tables), where=tables)
    if kind == "missing":
        return f"{key} is missing: add a line {key} = ..."
    if kind == "literal_error":
        return f"expected {key} to be one of {problem.get('ctx', {}).get('expected')}, got {problem['input']!r}."
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    wanted = next((words for start, words in KINDS.items() if kind.startswith(start)), None)
    if wanted:
        return f"expected {key} to be {wanted}, got {problem['input']!r}."
    return f"{key}: {problem['msg'][:1].lower()}{problem['msg'][1:]}, got {problem['input']!r}."


def unknown(key: str, known: Iterable[str], *, where: Sequence[str] = ()) -> str:
    """That a file has a key that nothing reads, with the nearest one that something does.

    >>> unknown("epsilom", ["epsilon", "delta"])
    "unknown key 'epsilom'. Did you mean 'epsilon'?"
    """
    keys, above = list(known), "".join(f"{table}." for table in where)
    hint = check.nearest(key, keys).replace("mean '", f"mean '{above}") or f" Valid keys: {', '.join(keys)}."
    return f"unknown key {above + key!r}.{hint}"


def _keys(model: type[BaseModel], tables: Sequence[str]) -> list[str]:
    """The keys of a model, or of the table within it that the names lead to."""
    for table in tables:
        inner = model.model_fields[table].annotation if table in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
