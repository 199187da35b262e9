"""The end of a simulated machine, as the code that runs on it meets it."""


class MachineDied(BaseException):
    """The machine on which this code runs is no more: nothing may catch this but what simulates the machine."""
