"""A real Prometheus for tests: found or fetched, started on a port of its own, stopped by id."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import httpx
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
UNPACKED: Final = ROOT / ".cache" / "prometheus"
"""Where the Debian package is unpacked: nothing is installed, so no packaged service is started."""
SCRAPE_FILE: Final = ROOT / "docs" / "reference" / "prometheus.yaml"
"""The documented jobs: what users are told to write is what the tests scrape with."""
PORT: Final = 9391
INTERVAL: Final = "1s"
"""Short, so that a rate over a few seconds has its two samples soon."""
DISCOVERY_INTERVAL: Final = "3s"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.2

Config = dict[str, Any]


class PrometheusUnavailableError(RuntimeError):
    """There is no Prometheus here and none can be fetched."""


class QueryError(RuntimeError):
    """Prometheus refused an expression."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer with its newest value."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A Prometheus that answers at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=10, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def query(self, expr: str) -> list[Sample]:
        """The series that `expr` gives now; empty when nothing matches.

        Raises:
            QueryError: `expr` cannot be parsed or evaluated.
        """
        answer = self._client.get("/api/v1/query", params={"query": expr}).json()
        if answer["status"] != "success":
            raise QueryError(f"{expr}: {answer['error']}")
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [Sample({}, float(result[1]))]
        return [Sample(series["metric"], float(series["value"][1])) for series in result]

    def wait_for(self, expr: str, seconds: float) -> list[Sample]:
        """The first answer of `expr` that is not empty, or the empty one after `seconds`."""
        deadline = time.monotonic() + seconds
        while not (samples := self.query(expr)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return samples

    def scrape_errors(self) -> dict[str, str]:
        """The error of each target that could not be scraped, by its address."""
        targets = self._client.get("/api/v1/targets").json()["data"]["activeTargets"]
        return {
            target["scrapeUrl"]: target["lastError"] for target in targets if target["lastError"]
        }

    def ready(self) -> bool:
        """Whether it has read its configuration and its storage."""
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def program(name: str) -> Path:
    """`prometheus` or `promtool`: from PATH, else out of the Debian package.

    Raises:
        PrometheusUnavailableError: It is not installed, and apt cannot fetch it.
    """
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    unpacked = UNPACKED / "usr" / "bin" / name
    if not unpacked.exists():
        _unpack_package()
    return unpacked


def _unpack_package() -> None:
    UNPACKED.mkdir(parents=True, exist_ok=True)
    commands = ["apt-get", "download", "prometheus"], ["dpkg-deb", "-x"]
    try:
        subprocess.run(commands[0], cwd=UNPACKED, check=True, capture_output=True, timeout=120)
        (package,) = UNPACKED.glob("prometheus_*.deb")
        subprocess.run(
            [*commands[1], package, UNPACKED], check=True, capture_output=True, timeout=60
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise PrometheusUnavailableError(
            "prometheus is neither on PATH nor to be had with `apt-get download prometheus`:"
            " install it to run this test"
        ) from error
    package.unlink()


def static_config(jobs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Config:
    """Scrapes fixed addresses: job name -> `{targets, labels}`; labels of the page are kept."""
    return _config(
        {
            "job_name": name,
            "honor_labels": True,
            "static_configs": [dict(group) for group in groups],
        }
        for name, groups in jobs.items()
    )


def cluster_config(discovery_url: str) -> Config:
    """The documented jobs with their relabelling, on pods that `pod_discovery` lists."""
    jobs = yaml.safe_load(SCRAPE_FILE.read_text(encoding="utf-8"))["scrape_configs"]
    for job in jobs:
        del job["kubernetes_sd_configs"]
        job["http_sd_configs"] = [{"url": discovery_url, "refresh_interval": DISCOVERY_INTERVAL}]
    return _config(jobs)


def _config(jobs: Any) -> Config:
    interval = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL}
    return {"global": interval, "scrape_configs": list(jobs)}


@contextmanager
def running_prometheus(config: Config, folder: Path, port: int = PORT) -> Iterator[Prometheus]:
    """A Prometheus with its data in `folder`, on loopback, for as long as the block runs."""
    config_file, log_file = folder / "prometheus.yaml", folder / "prometheus.log"
    config_file.write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{port}"
    command = [
        str(program("prometheus")),
        f"--config.file={config_file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with Prometheus(f"http://{address}") as prometheus:
            _wait_until_ready(prometheus, process, log_file)
            yield prometheus
    finally:
        _stop(process)


def _wait_until_ready(
    prometheus: Prometheus, process: subprocess.Popen[bytes], log_file: Path
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if prometheus.ready():
            return
        time.sleep(POLL_SECONDS)
    log = log_file.read_text(encoding="utf-8")[-2000:]
    raise PrometheusUnavailableError(
        f"prometheus at {prometheus.url} was not ready within {START_SECONDS:g} s"
        f" (exit code {process.poll()}): {log}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
