"""The Open Inference Protocol over gRPC.

Imported by a process that serves it, and only there: grpcio starts threads of its own, and costs
memory that a replica without a gRPC port does not pay.
"""
