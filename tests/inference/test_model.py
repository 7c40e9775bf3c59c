"""Models of every format, on every kind of rows, against TensorFlow's own answer; and out of memory for real."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import tensorflow as tf
from tests.gpu.hosts import TWO_OF_8_GB, Host

from gridflow import inference
from gridflow.errors import SchemaError, UsageError
from gridflow.gpu import Grant
from gridflow.inference.memory import DeviceMemory
from gridflow.inference.model import _guard

Images = npt.NDArray[np.float32]

# Keras' own way with variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(scope="module")
def images() -> Images:
    return np.random.default_rng(0).random((50, 6, 4), np.float32)


@pytest.fixture(scope="module")
def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((6, 4), name="image"), keras.layers.Flatten(), keras.layers.Dense(3)])


@pytest.fixture(scope="module")
def expected(network: keras.Model, images: Images) -> Images:
    answer: Images = network(images).numpy()
    return answer


def freeze(network: keras.Model, path: Path) -> None:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(lambda image: {"scores": network(image)})
    concrete = function.get_concrete_function(tf.TensorSpec([None, 6, 4], tf.float32, "image"))
    path.write_bytes(convert_variables_to_constants_v2(concrete).graph.as_graph_def().SerializeToString())


@pytest.fixture(scope="module", params=["saved model", "keras", "frozen graph"])
def saved(request: pytest.FixtureRequest, network: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    if request.param == "keras":
        network.save(folder / "model.keras")
        return folder / "model.keras"
    if request.param == "saved model":
        network.export(folder / "export", verbose=False)
        return folder / "export"
    freeze(network, folder / "graph.pb")
    return folder / "graph.pb"


@pytest.fixture(scope="module")
def model(saved: Path) -> Iterator[inference.Model]:
    with inference.load(saved, max_batch=20) as model:
        yield model


def same(answer: Any, expected: Images) -> None:
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


def test_rows_keep_their_order_in_batches_of_any_size(model: inference.Model, images: Images, expected: Images) -> None:
    assert list(model.inputs) == ["image"]
    assert model.grant.is_cpu
    assert model.largest_batch == 20
    for batch_size in (None, 1, 7, 50, 1000):
        same(model.predict(images, batch_size), expected)
    assert model.predict(images[:0]).shape == (0, 3)
    with pytest.raises(UsageError, match="batch_size=0 is not positive"):
        model.predict(images, 0)


def test_a_table_keeps_its_columns_and_gains_the_outputs(
    model: inference.Model, images: Images, expected: Images
) -> None:
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 24)
    table = pa.table({"id": range(50), "pixels": pixels})
    (name,) = model.outputs
    answer = model.predict(table, columns={"image": "pixels"})
    assert answer.schema.names == ["id", "pixels", name]
    assert answer.select(["id", "pixels"]) == table
    same(np.array(answer[name].to_pylist()), expected)
    alone = model.predict(table.to_batches()[0].select(["pixels"]))
    assert alone.schema.names == ["pixels", name]
    with pytest.raises(UsageError, match=r"is a column and an output of the model .rename the column"):
        model.predict(answer, columns={"image": "pixels"})
    with pytest.raises(SchemaError, match=r"the model has no input 'picture' .it has image"):
        model.predict(table, columns={"picture": "pixels"})


def test_a_dataset_is_predicted_batch_by_batch_without_its_labels(
    model: inference.Model, images: Images, expected: Images
) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((images, np.zeros(50))).batch(8)
    same(model.predict(dataset), expected)
    with pytest.raises(UsageError, match="there is nothing to predict: the dataset is empty"):
        model.predict(dataset.take(0))


def test_many_threads_predict_with_one_model(model: inference.Model, images: Images, expected: Images) -> None:
    answers: dict[int, Any] = {}

    def predict(number: int) -> None:
        answers[number] = model.predict(images, number + 1)

    threads = [threading.Thread(target=predict, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(8):
        same(answers[number], expected)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [[0.5] * 24, None]}, "column 'image' has 1 nulls .fill them"),
        ({"image": [[0.5] * 24, [0.5]]}, "the lists of column 'image' differ in length"),
        ({"image": [[0.5] * 5]}, r"input 'image' takes rows of shape \(6, 4\), not \(5,\)"),
        ({"image": [["a"] * 24]}, "input 'image' takes float32, not object"),
        ({"a": [1.0], "b": [2.0]}, "there is no column 'image' for the model's input 'image' .say which of a, b it is"),
    ],
)
def test_columns_that_do_not_fit_are_named(model: inference.Model, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        model.predict(pa.table(columns))


def test_several_inputs_and_outputs_go_by_name(tmp_path: Path) -> None:
    left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    total = keras.layers.Add(name="total")([left, right])
    peak = keras.layers.Maximum(name="peak")([left, right])
    keras.Model({"left": left, "right": right}, {"total": total, "peak": peak}).save(tmp_path / "two.keras")
    rows = {"left": np.arange(6.0).reshape(3, 2), "right": np.full((3, 2), 2.0)}
    with inference.load(tmp_path / "two.keras") as model:
        answer = model.predict(rows, batch_size=2)
        np.testing.assert_array_equal(answer["total"], rows["left"] + 2)
        np.testing.assert_array_equal(answer["peak"], np.maximum(rows["left"], 2))
        with pytest.raises(SchemaError, match=r"one array for a model with 2 inputs .give a dict of left, right"):
            model.predict(rows["left"])
        with pytest.raises(SchemaError, match="there is no array for the model's input 'right'"):
            model.predict({"left": rows["left"]})
        with pytest.raises(SchemaError, match=r"different numbers of rows: {'left': 3, 'right': 1}"):
            model.predict({"left": rows["left"], "right": rows["right"][:1]})
    with inference.load(tmp_path / "two.keras", outputs=["peak"]) as model:
        np.testing.assert_array_equal(model.predict(rows), np.maximum(rows["left"], 2))
    with pytest.raises(UsageError, match=r"the model has no output 'low' .it has"):
        inference.load(tmp_path / "two.keras", outputs=["low"])


class Shouting(tf.Module):  # type: ignore[misc]
    """Takes strings, and another number of rows than 4 only with the other signature."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])  # type: ignore[untyped-decorator]
    def shout(self, text: Any) -> dict[str, Any]:
        return {"loud": tf.strings.upper(text), "size": tf.strings.length(text)}

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float32, "x")])  # type: ignore[untyped-decorator]
    def double(self, x: Any) -> dict[str, Any]:
        return {"twice": 2 * x, "sum": tf.reduce_sum(x)}


@pytest.fixture(scope="module")
def shouting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, path = Shouting(), tmp_path_factory.mktemp("shouting")
    tf.saved_model.save(module, str(path), signatures={"shout": module.shout, "double": module.double})
    return path


def test_a_signature_is_chosen_by_name_and_strings_go_both_ways(shouting: Path) -> None:
    with inference.load(shouting, signature="shout") as model:
        answer = model.predict(pa.table({"text": ["hi", "ü"]}))
        assert answer.to_pylist() == [{"text": "hi", "loud": "HI", "size": 2}, {"text": "ü", "loud": "ü", "size": 2}]
        assert model.predict(np.array(["a", "b"]))["loud"].tolist() == [b"A", b"B"]
    with pytest.raises(UsageError, match=r"has no signature 'serving_default' .it has shout, double"):
        inference.load(shouting)


def test_a_model_of_one_batch_size_is_given_just_that(shouting: Path) -> None:
    with inference.load(shouting, signature="double", outputs=["twice"]) as model:
        assert model.predict(np.arange(10, dtype=np.float32)).tolist() == [2.0 * x for x in range(10)]
    with inference.load(shouting, signature="double", outputs=["sum"]) as model:
        message = r"output 'sum' has the shape \(\) for 4 samples .choose outputs that have one row for each sample"
        with pytest.raises(UsageError, match=message):
            model.predict(np.arange(4, dtype=np.float32))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad.pb").write_bytes(b"\xff" * 10)
    for name, message in [
        ("missing", "model .*missing is not there"),
        ("notes.txt", "is no model that can be read .give a SavedModel's folder, a .keras file or a frozen graph"),
        ("bad.pb", "bad.pb is not a frozen graph"),
    ]:
        with pytest.raises(UsageError, match=message):
            inference.load(tmp_path / name)
    with pytest.raises(UsageError, match="max_batch=0 is not positive"):
        inference.load(tmp_path / "bad.pb", max_batch=0)


@pytest.mark.parametrize(
    ("grant", "limit_mb"),
    [
        (Grant(devices=[0], memory=[8192.0], overhead_mb=512), 7680),
        (Grant(devices=[0], memory=[2048.0], limits_mb=[1536], overhead_mb=512, is_declared=True), 1536),
    ],
    ids=["a whole GPU", "a share"],
)
def test_memory_is_measured_on_every_gpu_that_is_there(
    grant: Grant, limit_mb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _guard(grant, "/GPU:0", None, None)[1] is None  # none is here
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _kind: ["/GPU:0"])
    guard, memory = _guard(grant, "/GPU:0", None, None)
    assert isinstance(memory, DeviceMemory)
    assert guard._limit == limit_mb << 20


def test_a_limit_of_threads_holds_or_comes_too_late(tmp_path: Path, network: keras.Model) -> None:
    network.save(tmp_path / "model.keras")
    program = """
import sys, numpy as np, tensorflow as tf
from gridflow import inference
from gridflow.errors import TaskError
model = inference.load(sys.argv[1], threads=1, callers=4)
model.predict(np.zeros((3, 6, 4), "f4"))
threads = tf.config.threading
print(threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads())
try:
    inference.load(sys.argv[1], threads=2)
except TaskError as error:
    print(error)
"""
    done = run(program, tmp_path / "model.keras")
    one, late = done.splitlines()
    assert one == "1 4"
    assert late.startswith("a limit of 2 threads comes too late: TensorFlow has started already")


def test_models_of_one_process_run_in_the_grants_that_were_applied_together(
    tmp_path: Path, network: keras.Model
) -> None:
    network.save(tmp_path / "model.keras")
    host = Host(tmp_path)
    host.declare(TWO_OF_8_GB)
    program = """
import sys, numpy as np
from gridflow import gpu, inference
from gridflow.errors import TaskError
grants = gpu.get_my_device(1, 2048.), gpu.get_my_device(1, 7000.)
names = gpu.apply(*grants)
for grant, (name,) in zip(grants, names):
    model = inference.load(sys.argv[1], grant)
    assert gpu.apply(grant) == [[name]]
    print(name, model.grant is grant, model.predict(np.zeros((3, 6, 4), "f4")).shape)
wishes = {"memory_per_gpu_mb": 100, "shared": True}
print(inference.load(sys.argv[1], gpu.Claim(**wishes, cpu_fallback=True)).grant.reason)
try:
    inference.load(sys.argv[1], gpu.Claim(**wishes))
except TaskError as error:
    print(error)
"""
    assert host.run(program, str(tmp_path / "model.keras")).splitlines() == [
        "/GPU:0 True (3, 3)",
        "/GPU:1 True (3, 3)",
        "CPU: other grants were applied in this process already",
        "1 GPU with 100 MB, shared comes too late: TensorFlow has started already "
        "(apply the grant before TensorFlow's first use)",
    ]


def run(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


#: Takes 64 MB for each sample.
HUNGRY = """
import resource, sys, numpy as np, tensorflow as tf
from gridflow import inference
path, limit_mb, memory_mb = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) or None

class Hungry(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])  # type: ignore[untyped-decorator]
    def eat(self, x):
        return {"y": tf.reduce_sum(tf.tile(x, [1, 4 << 20]), axis=1) / (4 << 20)}

module = Hungry()
tf.saved_model.save(module, path, signatures={"eat": module.eat})
rows = np.arange(4 * 40, dtype=np.float32).reshape(40, 4)
expected = np.concatenate([module.eat(row[None])["y"].numpy() for row in rows])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (limit_mb << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    module.eat(rows)
    print("it fits")
except tf.errors.ResourceExhaustedError as error:
    print("it does not fit")
model = inference.load(path, memory_mb=memory_mb)
assert np.array_equal(model.predict(rows), expected)
print(model.largest_batch)
assert np.array_equal(model.predict(rows), expected)
print(model.largest_batch)
"""


def test_batches_that_run_out_of_memory_are_halved_until_they_fit_and_that_is_remembered(tmp_path: Path) -> None:
    fits, first, again = run(HUNGRY, tmp_path, 1200, 0).splitlines()
    assert fits == "it does not fit"
    assert first == again
    # 1,200 MB hold at most 18 samples of 64 MB.
    assert 2 <= int(first) <= 18


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_the_largest_batch_is_measured_before_memory_runs_out(
    tmp_path: Path, onednn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TensorFlow's memory is the process's own, or one that TensorFlow never gives back.
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    fits, first, again = run(HUNGRY, tmp_path, 20_000, 600).splitlines()
    assert fits == "it fits"
    assert first == again
    # Nine tenths of 600 MB for samples of 64 MB, by a memory that also holds other things.
    assert 4 <= int(first) <= 12


def test_a_single_sample_that_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With oneDNN, TensorFlow waits ten seconds for memory each time that there is none.
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    # Before that nothing may have been predicted, for TensorFlow may keep the memory for it.
    program = HUNGRY.replace('[module.eat(row[None])["y"].numpy() for row in rows]', "[rows]")
    with pytest.raises(AssertionError, match="the model runs out of memory with a single sample"):
        run(program, tmp_path, 40, 0)


def test_limits_of_this_test_are_those_of_its_programs_alone() -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
