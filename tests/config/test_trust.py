"""What a configuration may call, and what it may not by any way of writing it."""

import functools
import sys

import pytest

from penstock.config import targets
from penstock.errors import ConfigError

ALLOWED = [
    "torch.nn.Linear",
    "torch.nn.modules.linear.Linear",
    "torch.nn.CrossEntropyLoss",
    "torch.optim.AdamW",
    "torch.optim.lr_scheduler.OneCycleLR",
    "torch.utils.data.RandomSampler",
    "torch.utils.data.TensorDataset",
    "torch.utils.data.Subset",
    "torch.utils.data.default_collate",
    "torchvision.datasets.FakeData",
    "torchvision.datasets.CIFAR10",
    "torchvision.datasets.mnist.MNIST",
    "torchvision.datasets.ImageFolder",
    "torch.utils.data.BatchSampler",
    "torchvision.transforms.v2.Resize",
    "torchvision.transforms.v2.Lambda",
    "torchvision.transforms.v2.functional.horizontal_flip",
    "torchvision.models.resnet18",
    "torchvision.models.ResNet",
    "torchvision.models.detection.ssd300_vgg16",
    "torchmetrics.classification.MulticlassRecall",
    "torchmetrics.MeanMetric",
    "penstock.datasets.face_landmarks.FaceLandmarks",
    "penstock.order.samplers.Weighted",
    "penstock.loading.collate.Pad",
    "penstock.transforms.image.LandmarkFlip",
    "penstock.training.models.torchvision_model",
    "penstock.training.objective.LandmarkRegression",
    "penstock.training.metrics.NormalizedMeanError",
    "penstock.addons.trackers.tracker.Nothing",
    "skimage.filters.gaussian",
    "skimage.color.rgb2gray",
]

REFUSED = [
    # pickles and native code
    "torch.load",
    "torch.hub.load",
    "torch.hub.load_state_dict_from_url",
    "torch.jit.load",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.serialization.load",
    "torch.package.PackageImporter",
    "torch.utils.cpp_extension.load",
    "torch.save",
    "numpy.load",
    "numpy.loadtxt",
    "numpy.ctypeslib.load_library",
    "pandas.read_pickle",
    "pandas.read_csv",
    "joblib.load",
    "pickle.load",
    "pickle.loads",
    "_pickle.loads",
    "cloudpickle.load",
    "dill.load",
    "ctypes.CDLL",
    "ctypes.cdll.LoadLibrary",
    "marshal.loads",
    "shelve.open",
    # whatever runs code, reads or writes
    "builtins.open",
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
    "builtins.print",
    "os.system",
    "os.remove",
    "os.environ.update",
    "posix.system",
    "subprocess.run",
    "pty.spawn",
    "shutil.copy",
    "shutil.rmtree",
    "importlib.import_module",
    "runpy.run_path",
    "sys.exit",
    "webbrowser.open",
    "urllib.request.urlopen",
    "functools.partial",
    "operator.attrgetter",
    "hydra.utils.call",
    "hydra.utils.instantiate",
    "hydra.utils.get_method",
    "hydra.utils.get_object",
    "hydra._internal.instantiate._instantiate2.instantiate",
    "omegaconf.OmegaConf.load",
    "yaml.load",
    # ours and torch's, but not parts
    "torch.nn.Module.load_state_dict",
    "torch.optim.Optimizer.load_state_dict",
    "torch.nn.functional.relu",
    "torch.nn.init.zeros_",
    "torch.nn.utils.clip_grad_norm_",
    "torch.utils.data.DataLoader",
    "torch.utils.data.random_split",
    "torchvision.io.read_image",
    "torchvision.datasets.LSUN",
    "torchvision.datasets.folder.default_loader",
    "torch.utils.data.datapipes.iter.FileOpener",
    "torchvision.transforms.v2.functional.register_kernel",
    "torchvision.transforms.Resize",
    "torchmetrics.text.bert.BERTScore",
    "torchmetrics.image.fid.FrechetInceptionDistance",
    "torchmetrics.functional.accuracy",
    "skimage.io.imread",
    "skimage.data.astronaut",
    "penstock.runs.checkpoint.load",
    "penstock.order.samplers.hash64",
    "penstock.config.targets.make",
    "penstock.command.main",
    "penstock.datasets.reading.split.split_rows",
    "penstock.datasets.face_landmarks.read_image",
    # ways around
    "torch.nn.functional.torch.hub.load",
    "torch.nn.modules.module.torch.load",
    "torch.utils.data.dataloader.os.system",
    "torch.optim.lr_scheduler.warnings.sys.exit",
    "penstock.order.samplers.np.load",
    "penstock.datasets.face_landmarks.os.system",
    "torchvision.transforms.v2.functional._utils.register_kernel",
    "torch.nn.Linear.__init__",
    "torch.nn.Linear.__init__.__globals__",
    "torch.nn.Linear.forward.__globals__.get",
    "torch.nn.Module.__class__",
    # not names
    "Linear",
    "",
    "torch..nn",
    "torch.nn.",
    "torch.nn.Linear()",
    "torch nn Linear",
    "../torch.nn",
    "torch.nn.Linear\n",
    "${oc.env:HOME}",
    "tοrch.nn.Linear",
]


@pytest.mark.parametrize("name", ALLOWED)
def test_parts_may_be_called(name):
    assert callable(targets.resolve(name, "model._target_"))


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_may_not(name):
    with pytest.raises(ConfigError, match=r"^model._target_: ") as caught:
        targets.resolve(name, "model._target_")
    assert name.strip() in str(caught.value) or repr(name) in str(caught.value)


@pytest.mark.parametrize("name", [None, 3, ["torch.nn.Linear"], {"a": 1}, True])
def test_a_target_that_is_no_text_is_refused(name):
    with pytest.raises(ConfigError, match="may not be called"):
        targets.resolve(str(name) if isinstance(name, list | dict) else name, "k")


def test_nothing_is_imported_for_a_refused_name():
    assert "this" not in sys.modules
    with pytest.raises(ConfigError, match="may not be called"):
        targets.resolve("this.d", "k")
    assert "this" not in sys.modules


def test_the_refusal_says_how_to_trust():
    with pytest.raises(ConfigError, match=r"trusted by --trust mypkg \(or by PENSTOCK_TRUST\)"):
        targets.resolve("mypkg.parts.Net", "model._target_")
    with pytest.raises(ConfigError, match=r"torch\.nn, .*--trust mypackage"):
        targets.resolve("torch.load", "model._target_")
    with pytest.raises(ConfigError, match=r"configuration \(did you mean 'torch'\?\)"):
        targets.resolve("toch.nn.Linear", "model._target_")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.nn.Linaer", r"no attribute 'Linaer' \(did you mean 'Linear'\?\)"),
        ("penstock.datasets.face_landmark.X", r"did you mean 'face_landmarks'"),
        ("penstock.order.samplers.Wieghted", r"did you mean 'Weighted'"),
        ("torch.nn.Linear.foo", r"No module named 'torch.nn.Linear'"),
        ("pipeline.order.samplers.Weighted", r"penstock may\."),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_one_that_is_near(name, message):
    with pytest.raises(ConfigError, match=message):
        targets.resolve(name, "k")


def test_a_package_is_trusted_by_the_environment_alone(monkeypatch):
    with pytest.raises(ConfigError, match="--trust tests"):
        targets.resolve("tests.own_parts.Holder", "k")
    monkeypatch.setenv("PENSTOCK_TRUST", "other, tests.own_parts")
    assert targets.resolve("tests.own_parts.Holder", "k").__name__ == "Holder"
    assert targets.resolve("tests.own_parts.add", "k").__name__ == "add"
    with pytest.raises(ConfigError, match="--trust tests"):
        targets.resolve("tests.toy.Pictures", "k")
    monkeypatch.delenv("PENSTOCK_TRUST")
    with pytest.raises(ConfigError, match="--trust tests"):
        targets.resolve("tests.own_parts.Holder", "k")


def test_trust_in_a_package_is_no_trust_in_what_it_imports(monkeypatch):
    import torch

    from tests import own_parts

    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.setattr(own_parts, "fetch_weights", torch.load, raising=False)
    monkeypatch.setattr(own_parts, "hidden", functools.partial(torch.load, "x"), raising=False)
    ways = ["os.system", "torch.load", "torch.hub.load", "Holder.__init__", "Holder.__class__"]
    for name in [*ways, "__builtins__", "LIMIT", "fetch_weights", "hidden"]:
        with pytest.raises(ConfigError, match=f"^k: tests.own_parts.{name}"):
            targets.resolve(f"tests.own_parts.{name}", "k")
    # Somebody else's part is called if it could have been named directly.
    assert targets.resolve("tests.own_parts.resnet18", "k").__name__ == "resnet18"


@pytest.mark.parametrize("name", ["os", "torch", "torch.hub", "builtins", "numpy", "hydra", "sys"])
def test_packages_that_can_do_anything_cannot_be_trusted_as_a_whole(name, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", f"mypkg,{name}")
    with pytest.raises(ConfigError, match=rf"^--trust: '{name}' cannot be trusted as a whole"):
        targets.resolve("torch.nn.Linear", "k")


def test_an_import_that_fails_is_reported(tmp_path, monkeypatch):
    (tmp_path / "half_done.py").write_text("x = 1\nimport nothing_like_this\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PENSTOCK_TRUST", "half_done,never_there")
    with pytest.raises(ConfigError, match=r"half_done.Net: No module named 'nothing_like_this'"):
        targets.resolve("half_done.Net", "k")
    with pytest.raises(ConfigError, match=r"never_there.Net: No module named 'never_there'"):
        targets.resolve("never_there.Net", "k")
