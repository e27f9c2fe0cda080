"""`python -m batchedapi_operator`, which hears signals before it imports anything.

As process 1 of a container it would not get them at all without handlers. There is nothing to put
away until `process` has its own.
"""

import os
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    # what came while the interpreter started: the image keeps it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    from batchedapi_operator.command import main

    main(prog_name="python -m batchedapi_operator")
