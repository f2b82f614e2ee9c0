"""Datasets as people write them, changes to them, and who is asked whether they are the same.

python -m tests.strangers        the table of all of them, and what was called the same wrongly
"""

import contextlib
import importlib
import io
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock import command, compose
from penstock.addons.reports.same_data import SameData
from penstock.addons.tokens.byte_pairs import learn
from penstock.build.data import DataParts
from penstock.config import allow_list, instantiate
from penstock.errors import PenstockError
from penstock.runs.record import RunRecord
from penstock.tasks.digest import lines

DATA = """
import hashlib
import json
from pathlib import Path

import pandas as pd
import torch
from torch.utils.data import IterableDataset

FACTOR = 1.0
HERE = Path(__file__).parent / "data.json"


class Base:
    facts = {"num_classes": 2, "num_outputs": 2, "num_features": 1}

    def read(self, path, scale=1.0):
        self.file, self.scale = Path(path), scale
        self.rows = json.loads(self.file.read_text())

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, label = self.rows[index]
        point = torch.tensor([x * self.scale * FACTOR])
        return {"x": point, "label": label, "text": f"{label} is {float(point)}, " * 4}


class Bare(Base):
    def __init__(self, split="train"):
        self.read(HERE)


class Args(Base):
    def __init__(self, path, scale=1.0, split="train"):
        self.read(path, scale)


class Print(Args):
    @property
    def fingerprint(self):
        return hashlib.sha256(self.file.read_bytes()).hexdigest()


class Table(Args):
    @property
    def metadata(self):
        return pd.DataFrame({"label": [label for _, label in self.rows]})


class Files(Args):
    def data_files(self):
        return [("data.json", str(self.file))]

    def path(self, index):
        return str(self.file)


class Everything(Print, Table, Files):
    pass


class Flow(IterableDataset):
    def __init__(self, rows):
        self.of = rows

    facts = Base.facts

    def __iter__(self):
        for index in range(len(self.of)):
            yield self.of[index]


class StreamBare(Flow):
    def __init__(self, split="train"):
        super().__init__(Bare())


class StreamArgs(Flow):
    def __init__(self, path, scale=1.0, split="train"):
        super().__init__(Args(path, scale))


class StreamPrint(StreamArgs):
    @property
    def fingerprint(self):
        return hashlib.sha256(self.of.file.read_bytes()).hexdigest()


class StreamFiles(StreamArgs):
    def data_files(self):
        return [("data.json", str(self.of.file))]
"""
STEPS = """
AMOUNT = 1.0


class Shift:
    def __call__(self, sample):
        return {**sample, "x": sample["x"] + AMOUNT}
"""
MAPS = ("Bare", "Args", "Print", "Table", "Files", "Everything")
STREAMS = ("StreamBare", "StreamArgs", "StreamPrint", "StreamFiles")
CHANGES = ("argument", "bytes", "label", "code", "order", "length", "transform")
ASKED = ("resume", "verify", "diff", "report", "caches", "where")
SAME = "the same!"  # said of different batches
FIT = (
    "transform=none",
    "+transform.train.shift._target_=stranger_steps.Shift",
    "model=linear",
    "objective=classification",
    "objective.inputs=[x]",
    "batch.size=8",
    "scheduler=none",
    "trainer=quick",
    "trainer.max_epochs=1",
    "trainer.pictures=false",
    "trainer.report=false",
    "trainer.baseline=false",
    "trainer.progress=none",
    "tracker=none",
    "loader.num_workers=0",
    "loader.prefetch_factor=null",
    "loader.persistent_workers=null",
    "seed=3",
)


class Project:
    """A folder with a dataset of a person's own, and the runs of it."""

    def __init__(self, folder, kind):
        self.folder, self.kind = folder, kind
        self.rows = [[float(row), row % 2] for row in range(40)]
        self.scale, self.data, self.steps = None, DATA, STEPS
        self.write()
        self.base = self.fit("base")
        self.batches = self.digest()

    def write(self):
        (self.folder / "data.json").write_text(json.dumps(self.rows))
        (self.folder / "stranger.py").write_text(self.data)
        (self.folder / "stranger_steps.py").write_text(self.steps)
        for name in ("stranger", "stranger_steps"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        allow_list._resolve.cache_clear()
        instantiate._passed_by_hydra.cache_clear()

    def change(self, what):
        """Make a change; False where this dataset has nothing of the kind."""
        if what == "argument":
            if "Bare" in self.kind:
                return False
            self.scale = 2.0
        elif what == "bytes":
            self.rows[1][0] = 1.5  # no row that is looked at
        elif what == "label":
            self.rows = [[x, 1 - label] for x, label in self.rows]
        elif what == "code":
            self.data = DATA.replace("FACTOR = 1.0", "FACTOR = 3.0")
        elif what == "order":
            self.rows.reverse()
        elif what == "length":
            self.rows = self.rows[:-8]
        else:
            self.steps = STEPS.replace("1.0", "2.0")
        self.write()
        return True

    @property
    def words(self):
        path = "" if "Bare" in self.kind else f",path:{self.folder / 'data.json'}"
        scale = "" if self.scale is None else f",scale:{self.scale}"
        dataset = f"+dataset={{_target_:stranger.{self.kind}{path}{scale}}}"
        stream = ["sampler=stream"] if self.kind in STREAMS else []
        return [*FIT, *stream, "~dataset", dataset, f"cache_dir={self.folder / 'cache'}"]

    def fit(self, name):
        folder = self.folder / name
        told = run(*self.words, f"run_dir={folder}")
        assert told.code == 0, told.text
        return folder

    def parts(self, *words):
        return DataParts(compose(*self.words, *words))

    def digest(self):
        return list(lines(compose(*self.words, "task=digest")))


@dataclass
class Told:
    code: int
    text: str


def run(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = command.main([str(word) for word in words])
    return Told(code, out.getvalue())


def doubts(text):
    return any(one in text for one in ("not known", "as far as is known", "may differ", "not that"))


def resume(project, changed):
    copied = project.folder / "resumed"
    shutil.copytree(project.base, copied)
    word = [one for one in project.words if one.startswith(("~dataset", "+dataset"))]
    told = run(f"resume={copied}", *word, "trainer.max_epochs=2")
    shutil.rmtree(copied)
    if told.code:
        assert told.code == 2, told.text
        return "refused"
    return "not known" if doubts(told.text) else SAME


def verify(project, changed):
    told = run("task=verify", f"runs=[{project.base},{changed}]")
    return "differ" if told.code else "not known" if doubts(told.text) else SAME


def diff(project, changed):
    answer = run("task=diff", f"runs=[{project.base},{changed}]").text.splitlines()[-2:]
    said = [line for line in answer if line.startswith(("the same batches", "the same samples"))]
    return SAME if said else "not known" if doubts("\n".join(answer)) else "differ"


def report(project, changed):
    found = SameData.of([RunRecord.read(one) for one in (project.base, changed)])
    if len(found.classes) > 1:
        return {"same": SAME, "alike": "not known"}.get(found.relation(0, 1).kind, "differ")
    return "not known" if getattr(found, "alike", ()) else SAME


def caches(project, changed):
    """Whether what is kept of the data is what would be made of it now."""
    data, size = project.parts(), 300
    node = {
        "_target_": "penstock.addons.tokens.byte_pairs.BytePairs",
        "vocabulary": "dataset",
        "size": size,
    }
    try:
        kept = data.with_statistics(node)["vocabulary"]
    except PenstockError:
        return "refused"
    texts = [data.train.dataset[row]["text"] for row in range(len(data.train.dataset))]
    fresh = json.loads(learn(iter(texts), size, "<|begin|>"))
    stale = json.loads(Path(kept).read_text())["model"] != fresh["model"]
    return SAME if stale else "right"


def where(project, changed):
    told = run("task=where", "sample=1", f"run={project.base}")
    if told.code:
        return "refused"
    return "not known" if doubts(told.text) else SAME


def table(folder, kinds=MAPS + STREAMS, changes=CHANGES):
    """(dataset, change, asker) -> answer; "-" where batches are the same, or there is no such."""
    found = {}
    for kind in kinds:
        for what in changes:
            place = folder / f"{kind}-{what}"
            place.mkdir()
            sys.path.insert(0, str(place))
            try:
                found |= {(kind, what, who): said for who, said in answers(place, kind, what)}
            finally:
                sys.path.remove(str(place))
                shutil.rmtree(place)
    return found


def answers(place, kind, what):
    project = Project(place, kind)
    with contextlib.suppress(PenstockError):
        node = {
            "_target_": "penstock.addons.tokens.byte_pairs.BytePairs",
            "vocabulary": "dataset",
            "size": 300,
        }
        project.parts().with_statistics(node)  # kept from now on
    if not project.change(what):
        return
    assert project.digest() != project.batches, (kind, what)
    changed = project.fit("changed")
    for who in ASKED:
        asks = who != "caches" or what != "transform"  # nothing of a transform is kept
        asks = asks and (who != "where" or what not in ("argument", "transform"))  # of the run
        yield who, globals()[who](project, changed) if asks else "-"


def main():
    os.environ["PENSTOCK_TRUST"] = "stranger,stranger_steps"
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = table(Path(folder))
    print(f"{'':24}" + "".join(f"{who:12}" for who in ASKED))
    for kind, what in dict.fromkeys(key[:2] for key in found):
        row = "".join(f"{found[kind, what, who]:12}" for who in ASKED)
        print(f"{kind:12}{what:12}{row}")
    wrong = sum(said == SAME for said in found.values())
    print(f"{len(found)} cells, {wrong} in which different batches are called the same")


if __name__ == "__main__":
    main()
