"""The Gateway API's own resource definitions, out of its Go module."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

MODULE: Final = "sigs.k8s.io/gateway-api@v1.4.0"
KINDS: Final = ("httproutes", "grpcroutes")


def definitions() -> list[dict[str, Any]]:
    """Those of routes, as a cluster has them from the standard channel."""
    command = ["go", "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=300)
    folder = Path(json.loads(done.stdout)["Dir"]) / "config" / "crd" / "standard"
    files = (folder / f"gateway.networking.k8s.io_{kind}.yaml" for kind in KINDS)
    return [yaml.safe_load(file.read_text()) for file in files]
