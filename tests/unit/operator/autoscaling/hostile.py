"""Pages of replicas that lie, stammer or break off; each kind in one function."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import whole_page
from batchedapi_serving.metrics.recorder import MethodRecorder

START: Final = 1_000_000.0
"""Unix time at which the replicas started."""
Mutation = Callable[[str, random.Random], bytes]
_COUNTER: Final = re.compile(r"_(total|sum|count|bucket)(\{|$)")


class Replica:
    """A real page whose counters rise by the same at every look."""

    def __init__(self, folder: Path, batches: int) -> None:
        """`batches` a look, of 8, 12 and 16 rows in 20 ms + 1 ms a row, on one lane."""
        slots.create_memory(folder / "metrics")
        memory = slots.map_memory(folder / "metrics")
        memory[slots.START_TIME] = START
        recorder = MethodRecorder(memory, slots.method_block(memory, 0))
        recorder.sized(32)
        for number in range(batches):
            rows = 8 + 4 * (number % 3)
            for _ in range(rows):
                recorder.received(1)
            recorder.dispatched("full" if rows == 16 else "interval", [0.004] * rows)
            recorder.executed(rows, rows, rows, 0.020 + 0.001 * rows)
        recorder.gauges(
            lanes=1, queue_rows=4, in_flight=12, max_batch_size=32, batch_interval=0.005
        )
        text = whole_page(memory, [("predict", 32)]).decode()
        self._lines = [line.rpartition(" ") for line in text.splitlines()]

    def at(self, look: int) -> str:
        """The page at that look, from 1."""
        return "".join(
            f"{before} {float(value) * look if _COUNTER.search(before) else value}\n"
            if before and not before.startswith("#")
            else f"{before}{space}{value}\n"
            for before, space, value in self._lines
        )


def _samples(text: str) -> list[int]:
    """Numbers of the lines that carry a value of ours."""
    return [
        number
        for number, line in enumerate(text.split("\n"))
        if line.startswith(("batchedapi_", "process_"))
    ]


def _with_value(text: str, random_: random.Random, value: str) -> bytes:
    lines = text.split("\n")
    number = random_.choice(_samples(text))
    lines[number] = f"{lines[number].rpartition(' ')[0]} {value}"
    return "\n".join(lines).encode()


def impossible(text: str, random_: random.Random) -> bytes:
    """Not a number that a counter or gauge can have."""
    values = ("NaN", "nan", "+Inf", "-Inf", "Infinity", "-1", "-0.5", "-1e300", "1e400")
    return _with_value(text, random_, random_.choice(values))


def giant(text: str, random_: random.Random) -> bytes:
    """A number, but nobody counts that far."""
    return _with_value(text, random_, random_.choice(("1e300", "9" * 60, "9" * 5000, "1e25")))


def wrong_type(text: str, random_: random.Random) -> bytes:
    """No number at all."""
    values = ("abc", "0x10", "1,000", "", "true", "[1]", "1 2", "1_0", "--1", "1e", "None", '"1"')
    return _with_value(text, random_, random_.choice(values))


def cut_off(text: str, random_: random.Random) -> bytes:
    """The connection broke, or the replica was killed while it wrote."""
    return text[: random_.randrange(len(text))].encode()


def without_lines(text: str, random_: random.Random) -> bytes:
    """Some series are missing."""
    lines = text.split("\n")
    gone = set(random_.sample(_samples(text), random_.randint(1, 40)))
    return "\n".join(line for number, line in enumerate(lines) if number not in gone).encode()


def twice(text: str, random_: random.Random) -> bytes:
    """A series comes twice, the second time with another value or another order of labels."""
    lines = text.split("\n")
    line = lines[random_.choice(_samples(text))]
    if random_.random() < 0.5:
        line = re.sub(r"\{([^,}]*),([^}]*)\}", r"{\2,\1}", line)
    at = random_.randrange(len(lines) - 1)
    return "\n".join((*lines[:at], line, *lines[at:])).encode()


def not_utf8(text: str, random_: random.Random) -> bytes:
    """Bytes that are no text."""
    raw = bytearray(text.encode())
    for _ in range(random_.randint(1, 200)):
        at = random_.randrange(len(raw))
        raw[at:at] = bytes(random_.choice((0x80, 0xC0, 0xFF, 0xED, 0x00)) for _ in range(2))
    return bytes(raw)


def fallen(text: str, random_: random.Random) -> bytes:
    """Counters of a process that says it is still the same are less than they were."""
    share = random_.choice((0.0, 0.001, 0.3))
    lines = []
    for line in text.split("\n"):
        before, _, value = line.rpartition(" ")
        falls = not line.startswith("#") and _COUNTER.search(before)
        lines.append(f"{before} {float(value) * share}" if falls else line)
    return "\n".join(lines).encode()


def crowded(text: str, random_: random.Random) -> bytes:
    """Labels, series or lines without end."""
    match random_.randrange(4):
        case 0:
            labels = ",".join(f'l{n}="x"' for n in range(2000))
            extra = f"batchedapi_queue_rows{{{labels}}} 1\n"
        case 1:
            extra = "".join(f'batchedapi_queue_rows{{method="{n}"}} 1\n' for n in range(6000))
        case 2:
            extra = 'batchedapi_queue_rows{method="' + "x" * 100_000 + '"} 1\n'
        case _:
            extra = 'mine{a="b"} 1\n' * 80_000
    return (text + extra).encode()


def another(_text: str, random_: random.Random) -> bytes:
    """Something else listens there."""
    pages = (b"", b"\n", b"<html><body>404</body></html>\n", b'{"status": "ok"}\n', b"\x00" * 5000)
    return random_.choice((*pages, random_.randbytes(3000), b"# TYPE a counter\n" * 100))


def lie(text: str, random_: random.Random) -> bytes:
    """Numbers that could be true: nobody can tell, so only the user's bounds hold."""
    lines = text.split("\n")
    for number in random_.sample(_samples(text), random_.randint(1, 60)):
        before, _, _ = lines[number].rpartition(" ")
        value = random_.choice((0, 1, 7, 10 ** random_.randint(0, 23), random_.random()))
        lines[number] = f"{before} {value}"
    return "\n".join(lines).encode()


def shuffled(text: str, random_: random.Random) -> bytes:
    """Every byte of a few may be another."""
    raw = bytearray(text.encode())
    for _ in range(random_.randint(1, 30)):
        raw[random_.randrange(len(raw))] = random_.randrange(256)
    return bytes(raw)


UNBELIEVABLE: Final = (
    impossible, giant, wrong_type, cut_off, twice, not_utf8, fallen, crowded, another,
)  # fmt: skip
"""What anybody can see: the pod counts as not seen, and nothing moves for it."""
BELIEVABLE: Final = (lie, shuffled, without_lines)
