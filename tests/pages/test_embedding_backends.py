"""The choice of a backend on the Embeddings page: its table before it is used, measured in place."""

import threading

import pytest
from streamlit.testing.v1 import AppTest

from engine.embedding.agreement import SAME, Agreement
from engine.embedding.choice import BackendSpeed, Measurement, keep_measurement
from engine.embedding.models import find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import ModelError
from engine.exchange.text_files import shipped_texts
from engine.workbench import Workbench, backend_manager
from engine.workbench.backend_manager import BackendManager
from engine.workbench.machine_lease import MachineLease
from pages.parts import task_progress
from tests.pages.app import HOSTILE, open_page, press, said


@pytest.fixture(autouse=True)
def embedded(bench: Workbench, unmeasured_export: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped sentences have their vectors, and no other model is loaded, whatever is chosen."""
    work = bench.embedding.embed(shipped_texts("English").texts, EmbedSpec(backend="onnx"))
    assert work.wait(120)
    monkeypatch.setattr(bench.embedding, "embed", lambda *_of, **_how: work)


def page(**query: str) -> AppTest:
    return open_page("embeddings.py", "Embeddings", **query)


def rows(at: AppTest) -> dict[str, dict[str, object]]:
    (frame,) = [frame.value for frame in at.main.dataframe if "backend" in frame.value]
    return {row["backend"]: row for row in frame.to_dict("records")}


@pytest.fixture
def measured() -> None:
    """As if the backends had been measured here."""
    model = find_model("")
    figures = (
        BackendSpeed("torch", 50.0, 5_000.0, 1.0, 4e8, SAME),
        BackendSpeed("onnx", 60.0, 6_000.0, 1.2, 3e8, Agreement(0.99999, 1.0, 1.0)),
        BackendSpeed("onnx-int8", reason=HOSTILE),
    )
    keep_measurement(model, Measurement(model.name, "2026-11-21T12:00:00+00:00", 83, 5, figures))


def test_before_a_measurement_the_table_says_so() -> None:
    at = page()
    assert list(rows(at)) == ["torch", "torch-bf16", "onnx", "onnx-int8", "openvino", "openvino-bf16"]
    assert rows(at)["onnx"]["note"] == "ONNX Runtime in float32"
    assert "Not measured on this machine yet: auto is torch." in said(at)
    assert at.button(key="embed_measure").label == "Measure"


@pytest.mark.usefixtures("measured")
def test_speed_and_agreement_stand_there_before_a_backend_is_used() -> None:
    at = page()
    found = rows(at)
    assert found["onnx"]["speedup"] == 1.2 and found["onnx"]["worst"] == 0.99999 and found["onnx"]["memory"] == 300
    assert found["onnx-int8"]["note"] == HOSTILE and found["onnx-int8"]["speedup"] != found["onnx-int8"]["speedup"]
    assert "auto is onnx" in said(at) and "83 texts in 5 rounds" in said(at)
    assert at.button(key="embed_measure").label == "Measure again"


def test_a_backend_stands_in_the_address() -> None:
    at = page(backend="torch-bf16")
    assert at.selectbox(key="embed_backend").value == "torch-bf16"
    at.selectbox(key="embed_backend").set_value("torch").run()
    assert at.query_params["backend"] in ("torch", ["torch"])


def test_what_would_disturb_is_said(bench: Workbench) -> None:
    with bench.machine.acquire("A benchmark", "benchmark"):
        at = press(page(), "embed_measure")
    assert "A benchmark is still running" in at.main.error[0].value
    assert not at.run().main.error


def test_a_measurement_shows_progress_and_stop_and_its_failure(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, failure = threading.Event(), list[Exception]()

    def measure(_model: str, **_how: object) -> None:
        assert go_on.wait(60)
        if failure:
            raise failure[0]

    monkeypatch.setattr(backend_manager, "measure_backends", measure)
    monkeypatch.setattr(bench, "backends", BackendManager(MachineLease(), lambda: None))
    bench.backends.start("")
    run = bench.backends.running
    at = page()
    assert [bar.proto.text for bar in at.main.get("progress")] == [f"Measuring · {task_progress.UNKNOWN}"]
    assert "Stop" in [button.label for button in at.main.button]
    assert "torch" in rows(at)
    press(at, "embed_measure_stop")
    assert run is not None and run.is_stopped
    go_on.set()
    assert run.wait(60)
    assert not page().main.error
    failure.append(ModelError(HOSTILE))
    bench.backends.start("")
    bench.backends.close()
    at = page()
    assert len(at.main.error) == 1 and "<script>" not in at.main.error[0].value
