"""Records when requests arrive, for `batchedapi simulate`: `batchedapi serve --record FILE`.

    engine.submit -> RecordingEngine -> ArrivalLog (bounded, in memory) -> its thread -> RecordFile

One JSON object a line: {"t": seconds since the recording began, "rows", "shape", "method"}, of
every request that asked for service, refused or not. What is in a request is never written. The web
process with the queue writes for all of them, as all requests come to it; without `--record` its
engine is the dispatcher itself.
"""
