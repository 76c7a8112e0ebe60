"""Errors quote what files and servers say: no message drives a terminal, floods it, or cannot be shown."""

import pickle

import pytest

from vitrail.errors import LONGEST, CheckpointError, DataError, VitrailError, harmless, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [/red] café 猫", "plain [/red] café 猫"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\tc\0", "a\\rb\\tc\\x00"),
        ("\ud800", "\\ud800"),
        ("\u202eevil", "\\u202eevil"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_what_would_drive_a_terminal_is_shown_as_its_number(text: str, shown: str) -> None:
    assert harmless(text) == shown
    assert str(CheckpointError(text)) == shown
    harmless(text).encode()


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(DataError("cannot read a\nerror: b.png")) == "cannot read a\\nerror: b.png"


def test_a_long_message_keeps_both_of_its_ends() -> None:
    message = str(DataError("what was expected: " + "x" * 1_500_000 + ". What to do."))
    assert len(message) < LONGEST + 100
    assert message.startswith("what was expected: xxx")
    assert message.endswith("xxx. What to do.")
    assert "1,498,132 more signs" in message
    assert shortened("short") == "short"
    assert shortened("0123456789", 4) == "012 ... (6 more signs) ... 9"


def test_errors_travel_between_processes() -> None:
    for error in (VitrailError("why"), CheckpointError("why\x1b")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
