"""The exception that stops the code of a machine that has crashed."""


class MachineCrashed(BaseException):
    """The machine on which this code runs has crashed. Only the code that simulates the machine may catch this."""
