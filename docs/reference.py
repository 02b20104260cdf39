"""The page of every public name: docs/site.py puts it into the site, `python docs/reference.py` prints it.

What is public is `tacit.__all__`, and what docs/how-to-extend.md has people build on; a test holds the page against the code.
"""

import importlib
import inspect
import re
from typing import Any, get_origin

from pydantic import BaseModel

import tacit
from tacit import privacy

HEAD = """# Python reference

[The Python API](api.md) explains the names of `tacit` with
examples, [how to extend](how-to-extend.md) the others. What is not here may change from one version to the next.
"""
EXTENDED = {  # a part that somebody else writes is built on these
    "tacit.privacy": tuple(privacy._HOMES),
    "tacit.algorithms": (
        "Rule",
        "Sum",
        "Applied",
        "PopulationStatistics",
        "Memory",
        "Layout",
        "combined",
        "weighted_sum",
    ),
    "tacit.types": ("Message", "Client", "Bounded", "Private", "State"),
    "tacit.data.dataset": ("Dataset",),
    "tacit.data.encoder": ("Encoder",),
    "tacit.parts.tasks": ("Task",),
    "tacit.parts.metrics": ("Answers", "Metric"),
    "tacit.lab.attacks": ("Attack",),
    "tacit.engine.malicious": ("Malice",),
    "tacit.report.writers": ("Writer", "Facts"),
    "tacit.privacy.plan": ("Plan", "Kind"),
    "tacit.lab.tuning.search": ("tune", "price_of"),
    "tacit.lab.compare.differences": ("Scored", "differences"),
    "tacit.privacy.ledger.reader": ("find", "entries", "accounts", "totals", "spent", "faults"),
    "tacit.privacy.guarantee": ("shown",),
    "tacit.engine.assemble": ("build",),
    "tacit.deploy.flower_mod": ("update_mod", "clientapp"),
    "tacit.deploy.site.limits": ("make_site",),
    "tacit.deploy.server.client": ("tacit_mod", "greet", "client_app", "LocalGrid"),
    "tacit.deploy.server.server": ("Call", "serve"),
}
WIDE = 88
WORDS = re.compile(r"^(Guarantee|Assumes|Raises)\b(?=[:,])", re.M)
LONG = re.compile(r" at 0x[0-9a-f]+|\b(?:collections\.abc|typing|pathlib|tacit(?:\.\w+)+)\.(?=[A-Za-z])")


def sections() -> dict[str, list[tuple[str, Any]]]:
    """The names by module, each with what it names; `tacit.errors` has all of its own."""
    found = {"tacit": [(name, getattr(tacit, name)) for name in tacit.__all__]}
    for module, names in EXTENDED.items():
        found[module] = [(name, getattr(importlib.import_module(module), name)) for name in names]
    errors = importlib.import_module("tacit.errors")
    found["tacit.errors"] = [
        (n, o) for n, o in vars(errors).items() if inspect.isclass(o) and issubclass(o, errors.TacitError)
    ]
    return found


def signature(thing: Any, name: str) -> str:
    """How it is called; of an error only its name, of a type what it stands for."""
    if get_origin(thing):
        return f"{name} = {LONG.sub('', str(thing).replace('torch.', ''))}"
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return name
    if inspect.isclass(thing) and issubclass(thing, BaseModel):  # every key has a line in docs/keys.md
        return f"{name}(*, {', '.join(thing.model_fields)})"
    try:
        return wrapped(LONG.sub("", name + str(inspect.signature(thing))))
    except ValueError:
        return name


def wrapped(call: str) -> str:
    """A long signature with a line for each parameter.

    >>> print(wrapped("run(" + "a: tuple[int, ...], " * 5 + "b=(1, 2)) -> None"))  # doctest: +ELLIPSIS
    run(
        a: tuple[int, ...],
    ...
        b=(1, 2),
    ) -> None
    """
    if len(call) <= WIDE:
        return call
    depth, start, parts, end = 0, call.index("(") + 1, [], len(call)
    for place in range(start, len(call)):
        depth += (call[place] in "([{") - (call[place] in ")]}")
        if depth < 0 or (depth == 0 and call[place] == ","):
            parts.append(call[start:place].strip())
            start = place + 1
        if depth < 0:
            end = place
            break
    return "\n".join((call[: call.index("(") + 1], *(f"    {part}," for part in parts), call[end:]))


def said_of(thing: Any, name: str, module: str) -> str:
    """The docstring; of a type that is a name for another, the comment behind it."""
    if not get_origin(thing):
        return inspect.getdoc(thing) or ""
    found = re.search(rf"^{name} = .*?  # (.+)$", inspect.getsource(importlib.import_module(module)), re.M)
    return f"{found[1][0].upper()}{found[1][1:]}." if found else ""


def prose(text: str) -> str:
    """A docstring as Markdown: its examples in a fence, its promises in bold; names in it stay as they are."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{block}\n```")
        elif block.startswith("    "):
            parts.append(block)
        else:
            parts.append(WORDS.sub(r"**\1**", block).replace("<", "&lt;").replace("*)", "\\*)"))
    return "\n\n".join(parts)


def members(thing: Any) -> list[tuple[str, Any]]:
    """What a class itself defines for others: methods, properties and class methods; not what pydantic or torch put there."""
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return []
    found = []
    for name, value in vars(thing).items():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(value, property)):
            found.append((name, plain))
    return found


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for module, names in sections().items():
        lines.append(f"## `{module}`\n")
        for name, thing in names:
            lines += [
                f"### {module}.{name}\n",
                f"```python\n{signature(thing, name)}\n```\n",
                prose(said_of(thing, name, module)),
                "",
            ]
            for member, plain in members(thing):
                said = inspect.getdoc(getattr(thing, member)) or ""
                call = member if isinstance(plain, property) else signature(plain, member)
                lines += [f"#### `{name}.{member}`\n", f"```python\n{call}\n```\n", prose(said), ""]
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n")).rstrip() + "\n"


if __name__ == "__main__":
    print(page())
