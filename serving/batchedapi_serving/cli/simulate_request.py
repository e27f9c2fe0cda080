"""What `batchedapi simulate` was asked for: reads the files, runs it, judges the assertions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedapi_core.manifest import (
    ManifestError,
    UnitError,
    UnknownFields,
    parse_duration,
)
from batchedapi_serving.cli.documents import DocumentError, load_api, manifest_of
from batchedapi_serving.laptop.simulating.report import BLOCKS, PLAIN, render
from batchedapi_serving.laptop.simulating.run import (
    AssertionFormError,
    Simulated,
    TraceError,
    parse_assertion,
    parse_trace,
    run,
)
from batchedapi_serving.laptop.simulating.settings import (
    OptionError,
    Options,
    parse_service,
    parse_startup,
    set_up,
)

_MODEL: Final = "model:Model"
"""Whose manifest is taken without a file: every value is its default."""


class RequestError(ValueError):
    """Nothing can be simulated; one line a problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Request:
    """The options as they were written; None: not given."""

    file: Path | None
    name: str | None
    trace: Path
    service: str | None
    startup: str | None
    batch_interval: str | None
    max_latency: str | None
    assertions: tuple[str, ...]
    numbers: Mapping[str, int]
    """`max_batch_size`, `min_replicas`, `max_replicas`, `replicas`, `connections` and `seed`; a
    number that was not given is None, or missing."""


def perform(request: Request) -> tuple[Simulated, list[str]]:
    """The simulation, and a sentence for each assertion that does not hold.

    Raises:
        RequestError: an option, the manifest or the trace is wrong.
    """
    try:
        wanted = [parse_assertion(text) for text in request.assertions]
        api = (
            manifest_of(_MODEL)
            if request.file is None
            else load_api(request.file, request.name, UnknownFields.REFUSE)
        )
        options = Options(
            service=None if request.service is None else parse_service(request.service),
            batch_interval=_duration("--batch-interval", request.batch_interval),
            max_latency=_duration("--max-latency", request.max_latency),
            startup=None if request.startup is None else parse_startup(request.startup),
            **request.numbers,
        )
        setup = set_up(api, options)
        trace = parse_trace(request.trace.read_text("utf-8", "replace"))
    except AssertionFormError as error:
        raise RequestError((f"--assert: {error}",)) from error
    except TraceError as error:
        raise RequestError((f"--trace {request.trace}: {error}",)) from error
    except DocumentError as error:
        raise RequestError((f"{request.file}: {error}",)) from error
    except ManifestError as error:
        place = request.file or "options"
        raise RequestError(tuple(f"{place}: {problem}" for problem in error.problems)) from error
    except (OptionError, OSError) as error:
        raise RequestError((str(error),)) from error
    simulated = run(setup, trace)
    values = [(one, simulated.value(one.quantity)) for one in wanted]
    return simulated, [one.failure(value) for one, value in values if not one.holds(value)]


def text_of(simulated: Simulated, encoding: str) -> str:
    """For a terminal; the picture of blocks, where its character set has them."""
    try:
        BLOCKS.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return render(simulated, PLAIN)
    return render(simulated, BLOCKS)


def _duration(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except UnitError as error:
        raise OptionError(f"{option}: {error}") from error
