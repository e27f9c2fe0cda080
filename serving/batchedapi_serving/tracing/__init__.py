"""Traces of requests, on their way to a collector of OpenTelemetry's.

`environment` says what was asked for, `spans` what a span is and who has one, `otlp` sends them.
Only `otlp` imports what the extra `otel` brings, and only a replica that traces imports it.
"""
