"""Measure the usable length of a language model, as a measurement of `evaluate`.

    import evaluate
    measurement = evaluate.load("examples/usable_length.py")
    measurement.compute(data=documents, model_id="HuggingFaceTB/SmolLM2-135M", lengths=[128, 256, 512])["verdict"]

`lengths` and other arguments are those of `hf_posenc.measure_length`. The result has the verdict and all numbers of its
report.
"""

from typing import Any

import datasets
import evaluate

from hf_posenc import measure_length
from hf_posenc.measure.loading import load_for_measuring


class UsableLength(evaluate.Measurement):
    """Loads a model by name and measures it on documents."""

    def _info(self) -> evaluate.MeasurementInfo:
        features = datasets.Features({"data": datasets.Value("string")})
        return evaluate.MeasurementInfo(description=__doc__, citation="", inputs_description=__doc__, features=features)

    def _compute(self, data: list[str], model_id: str, **arguments: Any) -> dict[str, Any]:
        report = measure_length(*load_for_measuring(model_id), data, **arguments)
        return {"verdict": report.verdict, **report.numbers}
