"""Simulated users for this app: locust -f locustfile.py -H http://localhost:8000"""

import random

from locust import HttpUser, constant, task


class ItemUser(HttpUser):
    """Asks again as soon as it is answered."""

    wait_time = constant(0)

    @task
    def test(self):
        """One item, and the answer is to be its own."""
        values = [random.randint(0, 100) for _ in range(3)]
        item = {"content": "string", "nested": {"key": "string", "values": values}}
        number = random.randint(1, 1000)
        with self.client.post(
            f"/items/test/{number}", json=item, name="/items/test/{item_id}", catch_response=True
        ) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
            elif answer.json()["data"]["nested"]["values_add1"] != [value + 1 for value in values]:
                answer.failure("somebody else's answer")
