import os

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from tacit.deploy.server.messages import BODY, BYTES, HEAD, SHORT_BYTES, WHOLE_BYTES, answer, new_nonce, question, read
from tacit.errors import BadInput

ASK = {"kind": "train", "round": 3}


@pytest.fixture(autouse=True)
def _somebody():
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # a Message asks who makes it


def ask(body, nonce=b"1", **changes):
    return question(ASK | changes, body, node=1, seconds=1, nonce=nonce)


def parts(message):
    """Flower sends each of these by a request of its own."""
    return [type(part).__name__ for part in get_all_nested_objects(message).values()]


@pytest.mark.parametrize("body", [b"", bytes(SHORT_BYTES), bytes(SHORT_BYTES + 1), bytes(WHOLE_BYTES + 1)])
def test_what_was_written_is_read(body):
    asked = ask(body)
    assert read(asked) == (ASK, body)
    assert read(answer({"again": True}, body, to=asked)) == ({"again": True}, body)


def test_a_short_question_and_an_answer_are_sent_in_three_parts():
    asked = ask(bytes(SHORT_BYTES))
    for message in (asked, answer({}, bytes(WHOLE_BYTES), to=asked)):
        assert sorted(parts(message)) == ["ConfigRecord", "Message", "RecordDict"]


def test_a_long_body_is_cut_into_pieces():
    body = os.urandom(3 * WHOLE_BYTES)
    for message in (ask(body), answer({}, body, to=ask(b""))):
        assert parts(message).count("ConfigRecord") == 4


def test_a_rounds_long_body_is_stored_once_for_all_sites():
    first, second = (ask(bytes(SHORT_BYTES + 1), terms=terms) for terms in (1, 2))
    assert first.content[HEAD].object_id != second.content[HEAD].object_id
    assert first.content[BODY].object_id == second.content[BODY].object_id


def test_no_record_of_a_question_or_an_answer_has_the_name_that_it_had_before():
    """Flower names a record by the hash of what it holds, and a site that knows a name can spoil it."""
    body, names = os.urandom(2 * WHOLE_BYTES), set()
    for _ in range(2):
        for message in (ask(body, new_nonce()), answer({}, body, to=ask(b"")), answer({}, b"", to=ask(b""))):
            mine = {record.object_id for record in message.content.values()}
            assert not mine & names
            names |= mine


@pytest.mark.parametrize(
    "records",
    [{}, {HEAD: {"json": "{"}}, {HEAD: {"json": "{}", BYTES: "text"}}, {HEAD: {"json": "{}"}, BODY: {BYTES: 3}}],
)
def test_a_message_of_somebody_else_is_refused(records):
    content = RecordDict({name: ConfigRecord(values) for name, values in records.items()})
    with pytest.raises(BadInput, match="is not one of Tacit's"):
        read(Message(content, 1, "train"))
