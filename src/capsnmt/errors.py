"""The one exception that users are meant to see: its text names the value and the fix."""


class CapsNMTError(Exception):
    """Something the user can mend. The command prints the text alone and exits with 1."""
