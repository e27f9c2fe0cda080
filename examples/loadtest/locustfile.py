"""Simulated users for examples/01-iris.

With a page:  locust -f examples/loadtest/locustfile.py -H http://localhost:8080     # see :8089
Without:      locust -f examples/loadtest/locustfile.py -H http://localhost:8080 \
                  --headless -u 50 -r 10 -t 30s
"""

import os
import random

from locust import HttpUser, between, task

SAMPLES = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3], [5.9, 3.0, 4.2, 1.5]]
PATH = os.environ.get("LOCUST_PATH", "/iris")
SLOWEST = float(os.environ.get("LOCUST_SLOWEST", "1.0"))
"""Seconds over which a request counts as failed; 0: any time will do."""


class IrisUser(HttpUser):
    """Asks, thinks for a moment, asks again."""

    wait_time = between(0.01, 2)

    @task
    def classify(self):
        with self.client.post(PATH, json=random.choice(SAMPLES), catch_response=True) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
            elif SLOWEST and response.elapsed.total_seconds() > SLOWEST:
                response.failure(f"took over {SLOWEST:g} s")
