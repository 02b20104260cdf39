import io

from rich.console import Console

from tacit.report.progress import Display


def test_who_was_refused_and_why_is_shown_as_it_is_written():
    """A client's name is text: brackets in it are no markup."""
    screen = io.StringIO()
    display = Display(Console(file=screen, width=200))
    display._rounds = 1
    display.observe({"round": 0, "accuracy": 0.5, "refused": {"[/bold]": "it sent no update: x", "b": "y"}})
    assert "2 messages, one from [/bold]: it sent no update: x" in screen.getvalue()
