"""Process-wide settings that user code may change, by CPython's documentation, and their effect.

Each is set at import, in the constructor and in a batch of one process. It answers, logs what a row
raises, and goes on when a web process is replaced.
"""

import textwrap
from pathlib import Path
from typing import Final

import pytest

from model_process import ModelProcess, until, web
from thorough import FACTOR

CODE: Final = """
    import asyncio
    import numpy as np
    from batchedapi_serving import ItemError, Response, Tensor, batched, endpoint

    {setting}

    def told():
        raise ValueError("the reason is " + str(6 * 7))

    {import_}

    class Composed:
        def __init__(self, context):
            self.context = context
            {constructor}

        @batched(example=1)
        def predict(self, items):
            if "apply" in items:
                apply()
            if "raise" in items:
                told()
            return items

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", []))
        def tensor(self, x):
            return x.astype("<f8").sum(axis=1) * 1e-42  # underflows in the declared type

        @endpoint
        def own(self, payload):
            return Response(payload, 201, {{"x-own": "b"}})

        @endpoint
        async def beside(self, payload):
            return await self.context.submit("predict", [payload, 2])

        @endpoint
        async def alone(self, payload):
            if payload == "apply":
                apply()
            return [payload, 2]
"""
SETTINGS: Final = {
    # signal, socket, os, resource, locale: of the process
    "socket time-out": "import socket; socket.setdefaulttimeout(0.05)",
    "SIGPIPE ends": "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
    "SIGCHLD is ignored": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SIGTERM is ignored": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "SIGTERM raises": "import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)",
    "all is blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "a timer that raises": """
        import signal
        def late(*_): raise TimeoutError("late")
        signal.signal(signal.SIGALRM, late)
        if "once" in globals(): signal.setitimer(signal.ITIMER_REAL, 0.2)
        once = True""",
    "wakeup descriptor": "import signal; signal.set_wakeup_fd(-1)",
    "directory": "import os; os.chdir('/')",
    "umask": "import os; os.umask(0o077)",
    "environment": "import os; os.environ.clear()",
    "niceness": "import os; os.nice(1)",
    "affinity": "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "standard streams are closed": """
        import os, sys
        for stream in (sys.stdout, sys.stderr): stream.close()
        for number in (1, 2):
            try: os.close(number)
            except OSError: pass""",
    "standard streams go elsewhere": """
        import io, os, sys
        sys.stdout = sys.stderr = sys.__stderr__ = io.StringIO()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)""",
    "streams are nothing": "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "limit of files": "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (128, 128))",
    "limit of file sizes": "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 20,) * 2)",
    "no core": "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0))",
    "locale": "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "time zone": "import os, time; os.environ['TZ'] = 'Asia/Kathmandu'; time.tzset()",
    # logging, warnings
    "dictConfig": """
        import logging.config
        logging.config.dictConfig({"version": 1, "root": {"handlers": [], "level": "CRITICAL"}})""",
    "basicConfig": "import logging; logging.basicConfig(force=True, level=60)",
    "logging is disabled": "import logging; logging.disable(logging.CRITICAL)",
    "root has no handlers": "import logging; logging.getLogger().handlers.clear()",
    "handlers are closed": "import logging; logging.shutdown()",
    "a factory of records": """
        import logging
        logging.setLogRecordFactory(lambda *_, **__: 1 / 0)""",
    "a class of loggers": """
        import logging
        class Raising(logging.Logger):
            def isEnabledFor(self, level): raise KeyError(level)
        logging.setLoggerClass(Raising)""",
    "a handler that raises": """
        import logging
        class Raising(logging.Handler):
            def handle(self, record): raise KeyError(record)
        logging.getLogger().addHandler(Raising())""",
    "levels of our loggers": """
        import logging
        for name in ("batchedapi_serving", "batchedapi_serving.model.batch"):
            logging.getLogger(name).disabled = True""",
    "warnings are errors": "import warnings; warnings.simplefilter('error')",
    "warnings are shown elsewhere": "import warnings; warnings.showwarning = None",
    # sys, gc, threading, builtins: of the interpreter
    "hooks of exceptions": """
        import sys, threading
        sys.excepthook = threading.excepthook = sys.unraisablehook = lambda *_: 1 / 0""",
    "no tracebacks": "import sys; sys.tracebacklimit = 1",
    "depth of calls": "import sys; sys.setrecursionlimit(150)",
    "deep calls": "import sys; sys.setrecursionlimit(100_000)",
    "switches of threads": "import sys; sys.setswitchinterval(1e-6)",
    "digits": "import sys; sys.set_int_max_str_digits(640)",
    "no arguments": "import sys; sys.argv.clear(); sys.dont_write_bytecode = True",
    "a tracer": """
        import sys, threading
        def tracer(frame, event, argument): return tracer
        sys.settrace(tracer); threading.settrace(tracer)""",
    "a profiler": "import sys; sys.setprofile(lambda *_: None)",
    "an audit": """
        import sys
        def audit(event, _):
            if event in ("subprocess.Popen", "os.system"): raise PermissionError(event)
        if "audited" not in globals(): sys.addaudithook(audit)
        audited = True""",
    "no exit": "import sys; sys.exit = None",
    "no collector": "import gc; gc.disable(); gc.freeze(); gc.set_threshold(1)",
    "a collector that raises": "import gc; gc.callbacks.append(lambda *_: 1 / 0)",
    "small stacks": "import threading; threading.stack_size(256 * 1024)",
    "print": "import builtins; builtins.print = None",
    "other builtins": "import builtins; builtins.open = builtins.input = builtins.exit = None",
    "faults": "import faulthandler; faulthandler.enable(); faulthandler.register(10)",
    "memory is traced": "import tracemalloc; tracemalloc.start()",
    "an end": "import atexit; atexit.register(lambda: 1 / 0)",
    # asyncio, multiprocessing, and what computes
    "a policy of loops": """
        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self): raise KeyError
            get_event_loop = new_event_loop
        asyncio.set_event_loop_policy(Policy())""",
    "how processes start": """
        import multiprocessing
        multiprocessing.set_start_method("spawn", force=True)""",
    "decimal": """
        import decimal
        decimal.getcontext().prec = 1
        decimal.getcontext().traps[decimal.Inexact] = True""",
    "seeds": "import random; random.seed(0); np.random.seed(0)",
    "errors of numbers": "np.seterr(all='raise')",
    "other JSON": """
        import json
        json.dumps = json.loads = json.JSONEncoder.default = None""",
    "another orjson": """
        import functools, orjson
        orjson.dumps = functools.partial(orjson.dumps, default=str, option=orjson.OPT_INDENT_2)""",
    "other modules": """
        import traceback, socket, queue
        traceback.print_exc = socket.create_connection = queue.Queue = None""",
    # last: what others import would not be found
    "no finders": "import sys; sys.meta_path.clear(); sys.path.clear(); sys.path_hooks.clear()",
}
LOOP: Final = """
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.set_exception_handler(lambda *_: 1 / 0)
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
    loop.slow_callback_duration = 0.0
"""


NAMES: Final = tuple(SETTINGS)
PROCESSES: Final = 12 if FACTOR == 1 else len(NAMES)
TOGETHER: Final = [NAMES[first::PROCESSES] for first in range(PROCESSES)]
"""Settings that one process has: of different kinds, as neighbours in the table would undo each
other. `make laws` gives each a process of its own."""


def code_of(*settings: str, in_batch_only: bool = False) -> str:
    """A class with all kinds of methods, and these settings."""
    lines = "\n".join(textwrap.dedent(setting).strip() for setting in settings)
    body = textwrap.indent(lines, "        ").strip()
    where = "" if in_batch_only else "apply()"
    apply = f"def apply():\n        global once, audited\n        {body}"
    return CODE.format(setting=apply, import_=where, constructor=where or "pass")


@pytest.mark.parametrize("names", TOGETHER, ids=", ".join)
async def test_settings_of_the_process_do_not_reach_us(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    """They are user code's own, and the process does for everybody what it did before."""
    log = tmp_path / "log"
    process = ModelProcess(code_of(*(SETTINGS[name] for name in names)), log, threads=1)
    try:
        async with web(process) as front:
            before = await front.ask("predict", "apply").answer()
        async with web(process) as front:  # a web process was replaced
            asked = {"predict": 1, "tensor": [1, 2], "own": 1, "beside": 1}
            answers = {one: await front.ask(one, value).answer() for one, value in asked.items()}
            failed = await front.ask("predict", "raise").answer()
            await until(lambda: "the reason is 42" in log.read_text())
        ended = process.process.poll()
    finally:
        process.close()

    statuses = {one: answer.status for one, answer in answers.items()}
    assert (200, dict.fromkeys(asked, 200) | {"own": 201}) == (before.status, statuses), answers
    assert (500, None) == (failed.status, ended)


@pytest.mark.parametrize(
    "ending",
    [
        "import os; os.closerange(3, 4096)",
        "import os, signal; os.kill(os.getpid(), signal.SIGALRM)",
        "import os; os._exit(0)",
    ],
    ids=["descriptors are closed", "a signal", "an exit"],
)
@pytest.mark.parametrize("method", ["predict", "alone"])
async def test_what_ends_a_process_ends_it_at_once(
    ending: str, method: str, tmp_path: Path
) -> None:
    """And another takes its place; one that hung would be waited for, up to the timeout."""
    process = ModelProcess(code_of(ending, in_batch_only=True), tmp_path / "log", threads=1)
    try:
        async with web(process) as front:
            front.ask(method, "apply")
            await until(lambda: process.process.poll() is not None)
    finally:
        process.close()


async def test_settings_of_the_event_loop_do_not_reach_us(tmp_path: Path) -> None:
    """The loop of an async method is ours too: what user code makes of it is for its own tasks."""
    process = ModelProcess(code_of(LOOP, in_batch_only=True), tmp_path / "log", threads=1)
    try:
        for value in ("apply", 1):
            async with web(process) as front:
                assert [value, 2] == await front.ask("alone", value).value()
                assert [3, 2] == await front.ask("beside", 3).value()
        assert process.process.poll() is None
    finally:
        process.close()
