"""Bytes of a request -> rows for the batch, and rows of the answer -> bytes of the response.

One codec a method; which one depends on what the method declares. Nothing here waits or talks to
anybody. A codec's `decode` raises ClientError before a row can reach a batch.
"""

from batchedapi_serving.codecs.base import Answer, Codec, Decoded, Form, RequestHead, Results
from batchedapi_serving.codecs.choose import codec_for

__all__ = ["Answer", "Codec", "Decoded", "Form", "RequestHead", "Results", "codec_for"]
