"""A device plugin that offers GPUs where there are none, as the plugins of vendors do.

    python device_plugin.py nvidia.com/gpu 2

Speaks the kubelet's device plugin API v1beta1; runs on the node, in a pod, with the kubelet's
folder mounted where it is on the node, and needs grpcio alone: the few messages are written by
hand. Whoever gets a device has the device file and the variable that NVIDIA's plugin gives.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
ENDPOINT: Final = "batchedapi-test.sock"
"""Name of our socket, below FOLDER."""
SERVICE: Final = "v1beta1.DevicePlugin"
_TEXT: Final = 2
"""Wire type of texts and messages; all of these are shorter than 128 bytes, so lengths are one."""


def text(number: int, value: str | bytes) -> bytes:
    """Field `number` of a message: a text, or a message in it."""
    content = value.encode() if isinstance(value, str) else value
    assert len(content) < 128
    return bytes([number << 3 | _TEXT, len(content)]) + content


def texts(message: bytes) -> Iterator[bytes]:
    """The fields of a message that has only texts."""
    while message:
        length = message[1]
        yield message[2 : 2 + length]
        message = message[2 + length :]


def devices(count: int) -> bytes:
    """ListAndWatchResponse: all are healthy."""
    return b"".join(text(1, text(1, f"GPU-{i}") + text(2, "Healthy")) for i in range(count))


def allocated(request: bytes) -> bytes:
    """AllocateResponse: for each container, the variable and a file for each of its devices."""
    answer = b""
    for container in texts(request):
        ids = [device.decode() for device in texts(container)]
        variable = text(1, "NVIDIA_VISIBLE_DEVICES") + text(2, ",".join(ids))
        files = (
            text(1, f"/dev/{name.replace('GPU-', 'nvidia')}") + text(2, "/dev/null") + text(3, "rw")
            for name in ids
        )
        answer += text(1, text(1, variable) + b"".join(text(3, file) for file in files))
    return answer


def main(resource: str, count: str) -> None:
    """Offer `count` devices until the process ends."""
    (FOLDER / ENDPOINT).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))

    def watched(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield devices(int(count))
        threading.Event().wait()

    handlers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda *_: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(watched),
        "Allocate": grpc.unary_unary_rpc_method_handler(lambda request, _: allocated(request)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix://{FOLDER / ENDPOINT}")
    server.start()
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{FOLDER / 'kubelet.sock'}", options) as kubelet:
        register = kubelet.unary_unary("/v1beta1.Registration/Register")
        register(text(1, "v1beta1") + text(2, ENDPOINT) + text(3, resource))
    print("registered", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
