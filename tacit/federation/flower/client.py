"""The ClientApp: a Flower message in, the site's answer out. The site's folder comes from its own node config.

Started by Flower's own SuperNode, this is code that the server sent; a site that wants its limits to hold against a
tampered app runs `tacit site`, which calls the same functions from the site's own installation.
"""

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from tacit.errors import BadInput, BudgetExhausted, Refused
from tacit.federation.flower.messages import UNPAID, answer, read, refusal
from tacit.federation.flower.plain import is_plain, respond_plain
from tacit.federation.site.log import discreet, note
from tacit.federation.site.site import UNSAID, Site

FOLDER = "tacit-site"  # the node config's key: the path of the site's folder


def client_app() -> ClientApp:
    """A ClientApp that answers for the site whose folder the node config names (`tacit-site`).

    Guarantee: whatever message comes, the reply is the site's answer or a refusal; a node without a folder has no limits and no
    ledger, and refuses everything. Messages of Flower's own strategies are answered too (`plain`).

    Assumes: started by Flower's own SuperNode, the site trusts whoever sent the app; see above.
    """
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        folder = context.node_config.get(FOLDER)
        if folder is None:
            return refusal(
                f"This node has no {FOLDER} in its node config, so it has no limits and no ledger.", to=message
            )
        site = _site(str(folder))
        return respond_plain(site, message, context) if is_plain(message) else respond(site, message)

    app.train()(handle)
    app.query("hello")(handle)
    app.query("agree")(handle)
    app.query("open")(handle)
    app.query("count")(handle)
    app.query("keep")(handle)
    return app


def respond(site: Site, message: Message) -> Message:
    """The site's answer as a Flower message.

    Guarantee: nothing is raised, whatever the message was: the reply is an answer, or a refusal in the site's words, and the
    site's log has a line of it. A refusal for want of budget begins with `UNPAID`, by which a server knows a run that ends as
    planned.
    """
    try:
        ask, raw = read(message)
    except BadInput as error:  # somebody else's message: the site's people want to know of it too
        note(site.folder, verdict="refused", text=str(error))
        return refusal(str(error), to=message)
    try:
        reply, body = site.answer(ask, raw)
        return answer(reply, body, to=message)
    except BudgetExhausted as error:
        return refusal(f"{UNPAID}{error}", to=message)
    except Refused as error:
        return refusal(str(error), to=message)
    except Exception as error:  # noqa: BLE001 - no message ends a site
        note(site.folder, verdict="failed", text=discreet(error))
        return refusal(UNSAID, to=message)


@lru_cache(maxsize=64)
def _site(folder: str) -> Site:
    return Site(Path(folder))
