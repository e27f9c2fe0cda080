"""Asks a running API from P processes with T threads each, for so long, and prints the rate.

python throughput_test.py http://localhost:8080/resnet50 -p 4 -t 60
python throughput_test.py http://localhost:8080/resnet50 -p 4 -i 30    # 30 requests a process
"""

import argparse
import http.client
import io
import multiprocessing
import threading
import time
import urllib.parse

import numpy as np

HEADERS = {"content-type": "application/x-npy"}


def image(samples):
    stream = io.BytesIO()
    np.save(stream, np.zeros((samples, 3, 224, 224), dtype=np.float32))
    return stream.getvalue()


def ask(url, body, *, ends, requests, counts, lock):
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=120)
    while time.monotonic() < ends and (requests is None or requests > 0):
        connection.request("POST", where.path, body, HEADERS)
        response = connection.getresponse()
        response.read()
        with lock:
            counts[response.status] = counts.get(response.status, 0) + 1
        if requests is not None:
            requests -= 1
    connection.close()


def process(url, results, *, threads, seconds, requests, samples):
    counts, lock, body = {}, threading.Lock(), image(samples)
    ends = time.monotonic() + seconds
    workers = [
        threading.Thread(
            target=ask,
            args=(url, body),
            kwargs={"ends": ends, "requests": requests, "counts": counts, "lock": lock},
        )
        for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    results.put(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("-p", "--processes", type=int, default=1)
    parser.add_argument("-w", "--threads", type=int, default=8, help="of each process")
    parser.add_argument("-t", "--time", type=float, default=60.0, help="seconds")
    parser.add_argument("-i", "--iterations", type=int, help="requests a thread, instead of time")
    parser.add_argument("-s", "--samples", type=int, default=1, help="images a request")
    options = parser.parse_args()
    seconds = options.time if options.iterations is None else 3600.0
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    began = time.monotonic()
    workers = [
        context.Process(
            target=process,
            args=(options.url, results),
            kwargs={
                "threads": options.threads,
                "seconds": seconds,
                "requests": options.iterations,
                "samples": options.samples,
            },
        )
        for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    total = {}
    for _ in workers:
        for status, count in results.get().items():
            total[status] = total.get(status, 0) + count
    for worker in workers:
        worker.join()
    took = time.monotonic() - began
    good = total.get(200, 0) * options.samples
    print(f"{good} images in {took:.1f} s: {good / took:.1f} images/s; answers by status: {total}")


if __name__ == "__main__":
    main()
