"""The one exception that users are meant to see: its text names the value and the fix."""

_MOST_CHARACTERS = 8000


class CapsNMTError(Exception):
    """Something the user can mend. The command prints the text alone and exits with 1.

    The text may quote names and values from files that others wrote, so it is made fit for a terminal: control
    characters are shown as their escapes, and it ends somewhere.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS]} … ({len(text)} characters)"
        super().__init__("".join(map(_visible, text)))


def _visible(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
