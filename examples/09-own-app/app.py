"""An app of one's own, in as many processes as one likes; the model is in none of them.

REDIS__HOST=localhost gunicorn app:app -k uvicorn.workers.UvicornWorker --workers=4
"""

import contextlib
import time

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from batchedapi_serving.client import QueueClient, RowFailedError
from batchedapi_serving.errors import OverloadedError, ServingError

client = QueueClient()


class Nested(BaseModel):
    """Values to add to."""

    key: str
    values: list[float]


class Item(BaseModel):
    """One item."""

    content: str
    nested: Nested


@contextlib.asynccontextmanager
async def lifespan(_app):
    """Connections are made with the first row, and given up at the end."""
    yield
    await client.close()


app = FastAPI(lifespan=lifespan)


@app.post("/items/test/{item_id}")
async def test(item_id: int, item: Item):  # noqa: ARG001 - part of the path
    """Ask the workers of `items` for one row."""
    began = time.perf_counter()
    try:
        data = await client.predict("items", item.model_dump())
    except RowFailedError as error:
        raise HTTPException(error.row_status, str(error)) from error
    except OverloadedError as error:
        raise HTTPException(
            error.status, str(error), {"retry-after": str(error.retry_after)}
        ) from error
    except ServingError as error:
        raise HTTPException(error.status, str(error)) from error
    return {"data": data, "elapsed_time": time.perf_counter() - began}
