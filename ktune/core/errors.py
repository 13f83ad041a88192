"""What can go wrong, and the exit code that each kind ends the process with."""


class KtuneError(Exception):
    """A fault with one clear sentence: the value, the rule that it breaks, the way out."""

    exit_code = 1


class UsageError(KtuneError):
    """The user asked for something that cannot be: a name, a value, an option, a file."""

    exit_code = 2


class FamilyError(UsageError):
    """A family folder that does not keep the contract of `ktune.api`."""


class EnvironmentFault(KtuneError):
    """The machine lacks what the command needs: a GPU, a driver, a compiler, disk."""

    exit_code = 3


class NothingPassed(KtuneError):
    """The search is complete and no variant is both right and timed."""

    exit_code = 4
