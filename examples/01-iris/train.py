"""Fits the model on scikit-learn's iris data and writes weights.json and batchedapi.yaml.

    pip install scikit-learn
    python train.py

The weights are text, so that they fit into a ConfigMap together with the code.
"""

import json
from pathlib import Path

from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

FOLDER = Path(__file__).parent

MANIFEST = """\
# Written by train.py: the model's code and weights as a ConfigMap, and the API that serves them.
apiVersion: v1
kind: ConfigMap
metadata:
  name: iris-model
data:
  weights.json: |
{weights}
  model.py: |
{code}
---
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata:
  name: iris
spec:
  predictor:
    path: model:Iris
    source:
      configMap: iris-model
  serverSideBatching:
    maxBatchSize: 64
    batchInterval: 5ms
  autoscaling:
    minReplicas: 1
    maxReplicas: 5
"""


def indented(text):
    return "\n".join("    " + line if line else "" for line in text.rstrip("\n").split("\n"))


def fit():
    """The weights as JSON text, rounded so that every platform writes the same."""
    data = load_iris()
    model = LogisticRegression(max_iter=10_000, tol=1e-10).fit(data.data, data.target)
    rows = [[round(float(w), 3) for w in row] for row in model.coef_.T]
    lines = ",\n".join("    " + json.dumps(row) for row in rows)
    intercepts = json.dumps([round(float(b), 3) for b in model.intercept_])
    return f'{{\n  "coefficients": [\n{lines}\n  ],\n  "intercepts": {intercepts}\n}}\n'


def main():
    weights = fit()
    code = (FOLDER / "model.py").read_text()
    (FOLDER / "weights.json").write_text(weights)
    manifest = MANIFEST.format(weights=indented(weights), code=indented(code))
    (FOLDER / "batchedapi.yaml").write_text(manifest)


if __name__ == "__main__":
    main()
