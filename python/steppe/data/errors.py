"""The one error that the command line prints without a traceback."""


class PrepareError(Exception):
    """The user's mistake: the message names the value, what it must be, and where it came from."""
