"""Draws the pictures of docs/concepts: `python docs/site/pictures.py` writes docs/pictures/*.svg.

Plain shapes and text, on a light ground of their own, so that they read on any page and on GitHub.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "pictures"
SVG: Final = "http://www.w3.org/2000/svg"
WIDTH: Final = 720
BLUE, ORANGE, GREEN, GREY, INK = "#2f6fb3", "#d9822b", "#2e8b57", "#9aa5b1", "#1f2933"
FIXED_MS, ROW_MS = 10.0, 1.0
"""The model of the pictures: t(n) = 10 ms + 1 ms * n."""


def seconds_of(rows: int) -> float:
    """How long a batch takes in these pictures, in ms."""
    return FIXED_MS + ROW_MS * rows


def text(
    x: float, y: float, words: str, *, size: int = 13, colour: str = INK, at: str = "start"
) -> str:
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{at}">'
        f"{escape(words)}</text>"
    )


def box(
    x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1.0
) -> str:
    """A filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{colour}"'
        f' fill-opacity="{opacity:g}"/>'
    )


def line(points: Sequence[tuple[float, float]], colour: str = INK, *, end: str = "") -> str:
    """Connected points; `end` is the marker of an arrow's head, or nothing."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    head = f' marker-end="url(#{end})"' if end else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{head}/>'


def picture(height: float, title: str, parts: Iterable[str]) -> str:
    """A whole SVG."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}"'
    arrow = f'<path d="M0 0 8 4 0 8z" fill="{INK}"/>'
    at = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return "\n".join(
        [
            f'<svg xmlns="{SVG}" {size} role="img" font-family="system-ui, sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<defs><marker id="head" {at}>{arrow}</marker></defs>',
            box(0, 0, WIDTH, height, "#fbfcfd"),
            *parts,
            "</svg>",
            "",
        ]
    )


def alone_and_together() -> str:
    """Six requests that come at once: one call each, and one call for all."""
    scale, left, count = 9.0, 30.0, 6
    parts = [text(left, 28, f"one by one: {count} calls of {seconds_of(1):.0f} ms", size=15)]
    x = left
    for number in range(count):
        width = seconds_of(1) * scale
        parts += [
            box(x, 40, FIXED_MS * scale - 1, 34, GREY),
            box(x + FIXED_MS * scale, 40, 8, 34, BLUE),
        ]
        parts.append(text(x + 42, 62, "ABCDEF"[number], colour="#fff", at="middle"))
        x += width
    parts.append(
        text(WIDTH - 24, 96, f"the last is answered after {count * seconds_of(1):.0f} ms", at="end")
    )
    together = seconds_of(count)
    parts.append(text(left, 140, f"as one batch: 1 call of {together:.0f} ms", size=15))
    parts += [
        box(left, 152, FIXED_MS * scale - 1, 34, GREY),
        box(left + FIXED_MS * scale, 152, count * 8, 34, BLUE),
        text(left + 10, 174, "A B C D E F", colour="#fff"),
        text(left, 208, f"all six are answered after {together:.0f} ms"),
        box(left, 226, 14, 14, GREY),
        text(left + 22, 238, "the fixed cost of a call: 10 ms"),
        box(left + 260, 226, 14, 14, BLUE),
        text(left + 282, 238, "one row: 1 ms"),
    ]
    return picture(254, "Six requests one by one take 66 ms, as one batch 16 ms", parts)


def curve() -> str:
    """How t(n) grows with n, and rows a second with it."""
    left, bottom, largest = 70.0, 230.0, 32
    step = (WIDTH - 2 * left) / largest
    tallest = seconds_of(largest)
    time = [
        (left + n * step, bottom - seconds_of(n) / tallest * 170) for n in range(1, largest + 1)
    ]
    best = largest / seconds_of(largest)
    rate = [
        (left + n * step, bottom - n / seconds_of(n) / best * 170) for n in range(1, largest + 1)
    ]
    parts = [
        line([(left, 40), (left, bottom), (WIDTH - left, bottom)], GREY),
        line(time, ORANGE),
        line(rate, BLUE),
        text(WIDTH / 2, bottom + 34, "rows in the batch, n", at="middle"),
        text(left + 6, 34, "rows/s, blue", colour=BLUE),
        text(left + 130, 34, "ms a batch, orange", colour=ORANGE),
    ]
    for n in (2, 8, 16, 32):
        x = left + n * step
        parts += [
            text(x, bottom + 16, str(n), size=11, at="middle"),
            text(
                x + 4,
                time[n - 1][1] + 20,
                f"{seconds_of(n):.0f} ms",
                size=11,
                colour=ORANGE,
                at="middle",
            ),
            text(
                x - 4,
                rate[n - 1][1] - 10,
                f"{n / seconds_of(n) * 1000:.0f}/s",
                size=11,
                colour=BLUE,
                at="middle",
            ),
        ]
    return picture(
        280, "Time of a batch grows slowly with its rows, and rows a second with it", parts
    )


def replica() -> str:
    """From clients through a replica and back."""
    parts = [
        box(150, 30, 430, 190, GREEN, opacity=0.10),
        text(160, 50, "one replica (one pod)", colour=GREEN),
        box(170, 70, 130, 120, BLUE, opacity=0.16),
        text(180, 92, "web process", colour=BLUE),
        text(180, 114, "reads, checks,"),
        text(180, 132, "answers"),
        box(330, 70, 70, 120, ORANGE, opacity=0.2),
        text(365, 92, "queue", colour=ORANGE, at="middle"),
        box(430, 70, 130, 120, BLUE, opacity=0.16),
        text(440, 92, "model process", colour=BLUE),
        text(440, 114, "your class,"),
        text(440, 132, "one batch"),
        text(440, 150, "at a time"),
        line([(300, 120), (328, 120)], end="head"),
        line([(400, 120), (428, 120)], end="head"),
        line([(430, 182), (302, 182)], end="head"),
        text(365, 178, "answers", size=11, at="middle"),
        *[box(346, 104 + 20 * n, 38, 14, ORANGE) for n in range(3)],
    ]
    for number, name in enumerate(("client A", "client B", "client C")):
        y = 96 + 34 * number
        parts += [text(20, y + 5, name), line([(80, y), (168, y)], end="head")]
    parts += [
        text(600, 110, "another"),
        text(600, 128, "replica is"),
        text(600, 146, "the same"),
        text(
            160, 212, ":8081 counts rows and batches, for the operator and for Prometheus", size=12
        ),
    ]
    return picture(
        240,
        "Clients' requests go through a web process into one queue and to a model process",
        parts,
    )


def loop() -> str:
    """What the operator does every two seconds."""
    steps = (
        ("count", "rows that came,", "sizes of batches"),
        ("learn", "how long a batch", "of n rows takes"),
        ("divide", "rows/s by what", "one replica serves"),
        ("limit", "min, max, never", "down too soon"),
        ("write", "replicas, and", "the sentence why"),
    )
    parts = [text(24, 30, "every 2 seconds, for each API", size=15)]
    for number, (name, first, second) in enumerate(steps):
        x = 20 + number * 138
        parts += [
            box(x, 48, 122, 88, ORANGE if name == "divide" else BLUE, opacity=0.16),
            text(x + 10, 72, name, size=15, colour=ORANGE if name == "divide" else BLUE),
            text(x + 8, 98, first, size=12),
            text(x + 8, 116, second, size=12),
        ]
        if number:
            parts.append(line([(x - 16, 92), (x - 2, 92)], end="head"))
    return picture(156, "The operator counts, learns, divides, limits and writes", parts)


PICTURES: Final = {
    "batch.svg": alone_and_together,
    "curve.svg": curve,
    "replica.svg": replica,
    "scaling.svg": loop,
}


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
