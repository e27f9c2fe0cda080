"""`batchedapi simulate` without its options: reads files, simulates, judges the assertions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from batchedapi_core.manifest import UnitError, UnknownFields, parse_duration
from batchedapi_core.simulation import RecordedTrace
from batchedapi_serving.cli.documents import load_api, manifest_of
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
    SimulateOptions,
    parse_lengths,
    parse_service,
    parse_startup,
    set_up,
)

_MODEL: Final = "model:Model"
"""Class of the manifest that is taken without a file: every value is its default."""


def perform(
    file: Path | None,
    name: str | None,
    trace: Path,
    assertions: Sequence[str],
    *,
    service: str | None,
    lengths: str | None,
    startup: str | None,
    batch_interval: str | None,
    max_latency: str | None,
    **numbers: int,
) -> tuple[Simulated, list[str]]:
    """The simulation, and a sentence for each assertion that does not hold.

    Texts are options as they were written; of `numbers`, those of Options, any may be missing.

    Raises:
        DocumentError: the file has no manifest.
        ManifestError: the manifest is wrong, also with the options.
        OptionError: an option or the trace is wrong.
        OSError: a file cannot be read.
    """
    try:
        wanted = [parse_assertion(text) for text in assertions]
    except AssertionFormError as error:
        raise OptionError(f"--assert: {error}") from error
    api = manifest_of(_MODEL) if file is None else load_api(file, name, UnknownFields.REFUSE)
    time, per_length = (None, 0.0) if service is None else parse_service(service)
    try:
        load = parse_trace(trace.read_text("utf-8", "replace"))
    except TraceError as error:
        raise OptionError(f"--trace {trace}: {error}") from error
    recorded = load.lengths if per_length and isinstance(load, RecordedTrace) else ()
    options = SimulateOptions(
        service=time,
        per_length=per_length,
        lengths=recorded if lengths is None else parse_lengths(lengths),
        lengths_from="--trace" if lengths is None else "--lengths",
        batch_interval=_duration("--batch-interval", batch_interval),
        max_latency=_duration("--max-latency", max_latency),
        startup=None if startup is None else parse_startup(startup),
        **numbers,
    )
    simulated = run(set_up(api, options), load)
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
