"""An ONNX file behind MLServer, which has no runtime of its own for one."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    """One session with one thread."""

    async def load(self) -> bool:
        """Open the file of `parameters.uri`."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Rows of as many requests as MLServer has put together."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        (found,) = self._session.run(["y"], {"x": rows})
        outputs = [NumpyCodec.encode_output("y", found)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
