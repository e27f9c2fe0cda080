"""Descriptors 0, 1 and 2. Imports next to nothing: it is the first that the command line does."""

import os


def open_standard_descriptors() -> None:
    """Have something behind 0, 1 and 2, whoever has closed them before.

    The next socket would get their numbers: what is printed would be written to it, and user code
    that closes them once more would close it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
            os.set_inheritable(descriptor, True)
