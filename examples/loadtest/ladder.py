"""Climbs a ladder of simulated users and prints a table of rates, failures and latencies.

python examples/loadtest/ladder.py http://localhost:8080 --seconds 20
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = [
    (1, 1),
    (50, 10),
    (200, 50),
    (300, 50),
    (400, 50),
    (1000, 100),
]  # users, users started a second
LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def step(host, users, spawn_rate, seconds, folder):
    prefix = Path(folder) / f"u{users}"
    command = [
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "-H", host, "--headless",
        "-u", str(users), "-r", str(spawn_rate), "-t", f"{seconds + users // spawn_rate}s",
        "--csv", str(prefix), "--only-summary", "--exit-code-on-error", "0", "--loglevel", "ERROR",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with Path(f"{prefix}_stats.csv").open() as file:
        return next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("host")
    parser.add_argument("--seconds", type=int, default=20, help="of each step, after the start")
    parser.add_argument("--steps", type=int, default=len(STEPS), help="only the first so many")
    options = parser.parse_args()
    print("| users | started/s | requests/s | failed | median ms | p90 | p99 | max |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for users, spawn_rate in STEPS[: options.steps]:
            row = step(options.host, users, spawn_rate, options.seconds, folder)
            requests, failed = int(row["Request Count"]), int(row["Failure Count"])
            share = failed / requests if requests else 0
            print(
                f"| {users} | {spawn_rate} | {float(row['Requests/s']):.0f} | {share:.1%} |"
                f" {row['Median Response Time']} | {row['90%']} | {row['99%']} |"
                f" {float(row['Max Response Time']):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
