"""What the commands of a page are run on: files as its reader has them, and earlier runs.

`FILES` writes a page's files into an empty folder, `BEFORE` and `AFTER` have further commands, and
`WORDS` replaces what a page leaves to its reader: names of folders, addresses, steps of a long run.
"""

import io
import re

import numpy as np
import pandas as pd
from PIL import Image

from penstock.addons.starter import drawn
from tests.face_folder import write_faces
from tests.program import ROOT


def put(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def photos(folder):
    """A folder a class, and a table of all pictures."""
    files = drawn.images()
    put(folder / "photos", files)
    kinds = [name.partition("/")[0] for name in files]
    table = pd.DataFrame({"path": list(files), "label": kinds, "age": np.arange(len(files))})
    table["tags"] = [f"{kind}|{'odd' if row % 2 else 'even'}" for row, kind in enumerate(kinds)]
    table["caption"] = [f"a {kind}, number {row}" for row, kind in enumerate(kinds)]
    table.to_csv(folder / "photos" / "photos.csv", index=False)


def scenes(folder):
    """Pictures with boxes and with masks, of a background and two classes."""
    boxes = drawn.boxes()
    annotations = boxes.pop("annotations.json")
    put(folder / "photos", {**boxes, "boxes.json": annotations})
    for name in boxes:
        mask = Image.fromarray(np.arange(64 * 64, dtype=np.uint8).reshape(64, 64) % 3)
        path = folder / "photos" / name.replace("images", "masks")
        path.parent.mkdir(exist_ok=True)
        mask.save(path)


def faces(folder):
    files = drawn.points()
    names = [name.removeprefix("images/") for name in files if name.endswith(".png")]
    put(folder / "faces", {name: files[f"images/{name}"] for name in names})
    points = np.random.default_rng(0).uniform(8, 56, (len(names), 2 * 68)).round(1)
    parts = [f"part_{part}_{axis}" for part in range(68) for axis in "xy"]
    table = pd.DataFrame(points, names, pd.Index(parts))
    table.to_csv(folder / "faces" / "face_landmarks.csv", index_label="image_name")


def tables(folder):
    people = drawn.table()["customers.csv"]
    put(folder, {"people.csv": people})
    houses = pd.read_csv(io.BytesIO(people))
    houses["price"] = houses.pop("income").fillna(0)
    houses.to_parquet(folder / "houses.parquet")


def series(folder):
    days = pd.date_range("2025-01-01", periods=400).strftime("%Y-%m-%d")
    sold = 20 + 5 * np.sin(np.arange(400) / 7 * 2 * np.pi)
    table = pd.DataFrame({"day": days, "shop": "north", "sold": sold, "promotion": 0})
    table.to_csv(folder / "sales.csv", index=False)


def texts(folder):
    put(folder, {"messages.tsv": drawn.text()["texts.tsv"]})


def books(folder):
    lines = drawn.text()["texts.tsv"]
    put(folder, {f"books/{number}.txt": lines for number in range(10)})
    put(folder, {"notes.tsv": lines})


def recordings(folder):
    import soundfile

    random = np.random.default_rng(0)
    sounds = [f"sounds_of_birds/{kind}/{n}.wav" for kind in ("owl", "wren") for n in range(12)]
    digits = [f"fsdd/recordings/{d}_theo_{take}.wav" for d in range(10) for take in range(4, 8)]
    pairs = [f"pairs/{number}.wav" for number in range(10)]
    for name in (*sounds, *digits, *pairs):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, random.normal(0, 0.1, 4000), 8000)
        if name in pairs:
            np.save(path.with_suffix(".npy"), np.zeros((1, 4000), np.float32))


def videos(folder):
    from penstock.addons.video.drawn_motions import write_video

    random = np.random.default_rng(0)
    rows = []
    for number in range(20):
        name = f"{('juggling', 'walking')[number % 2]}/{number:04}.mp4"
        path = folder / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frames = random.integers(0, 255, (40, 64, 64, 3), dtype=np.uint8)
        write_video(path, list(frames), key_frames=12)
        rows.append({"path": name, "action": "ab"[number % 2], "person": number})
    pd.DataFrame(rows).to_csv(folder / "videos" / "clips.csv", index=False)


def insects(folder):
    """Photographs in the layout of PyTorch's tutorial on transfer learning."""
    for number in range(48):
        split, label = ("train" if number < 40 else "val"), ("bees", "ants")[number % 2]
        path = folder / "insects" / split / label / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((72, 64)).save(path)


def messages(folder):
    """Text messages as the SMS spam collection has them."""
    (folder / "sms").mkdir()
    rows = [
        f"{'spam' if n % 4 == 0 else 'ham'}\tWord {n} " + "and so on " * (n % 7) for n in range(80)
    ]
    (folder / "sms" / "SMSSpamCollection").write_text("\n".join(rows) + "\n")


def bert(folder):
    """A folder as `save_pretrained` of transformers writes it."""
    import tokenizers
    from transformers import BertConfig, BertModel

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "word", "and", "so", "on"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=30522,  # as many as transform=pieces expects
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertModel(config).save_pretrained(folder / "bert-base-uncased")
    made.save(str(folder / "bert-base-uncased" / "tokenizer.json"))


def resnet(folder):
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("resnet18").state_dict(), folder / "resnet18.safetensors")


def finetuning(folder):
    for part in (insects, messages, bert, resnet):
        part(folder)


def recipes(folder):
    for part in (insects, messages, recordings):
        part(folder)
    write_faces(folder / "faces")


def birds(folder):
    random = np.random.default_rng(0)
    (folder / "recordings").mkdir()
    for number in range(24):
        split, label = ("val" if number % 4 == 0 else "train"), int(number % 3 == 0)
        array = random.normal(label, 1, (5 + number % 6, 2)).astype(np.float32)
        np.save(folder / "recordings" / f"{split}{number}_{label}.npy", array)


def tokens(folder):
    from tests.tokens.test_token_files import write_pair

    documents = [list(range(1, 9 + n % 5)) for n in range(60)]
    write_pair(folder / "megatron", sequences=documents, documents=list(range(61)))
    (folder / "flat").mkdir()
    flat = np.concatenate([np.array([*document, 0], np.uint16) for document in documents])
    flat.tofile(folder / "flat" / "a.bin")
    flat.tofile(folder / "flat" / "b.bin")
    messages(folder)


def tars(folder):
    """Two archives of pictures with a number each."""
    import tarfile

    (folder / "tars").mkdir(parents=True)
    for split, count in (("train-0", 24), ("train-1", 24), ("val-0", 8)):
        with tarfile.open(folder / "tars" / f"{split}.tar", "w") as archive:
            for number in range(count):
                picture = io.BytesIO()
                Image.new("RGB", (48, 48), (number * 5, 0, 0)).save(picture, "PNG")
                for ending, content in (
                    ("png", picture.getvalue()),
                    ("cls", str(number % 3).encode()),
                ):
                    member = tarfile.TarInfo(f"{split}-{number:03}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def stores(folder):
    """What lies on this machine, and what the store has."""
    photos(folder)
    put(folder / "store" / "folder", drawn.images())
    tars(folder / "store")
    tars(folder)


def saved_dataset(folder):
    """Pictures with a class, as `DatasetDict.save_to_disk` of datasets writes them."""
    import datasets

    files = drawn.images()
    kinds = [name.partition("/")[0] for name in files]
    rows = {"image": [{"bytes": content, "path": None} for content in files.values()]}
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=sorted(set(kinds)))}
    )
    made = datasets.Dataset.from_dict({**rows, "label": kinds}, features)
    datasets.DatasetDict(train=made).save_to_disk(folder / "saved")


LIT_MODEL = """
import pytorch_lightning as pl
import torch
from torch import nn


class LitModel(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 5, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 136)
        )

    def error(self, batch):
        image, landmarks = batch
        return (self.layers(image) - landmarks.flatten(1)).square().mean()

    def training_step(self, batch, batch_idx):
        return self.error(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.error(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]
"""


def new_pictures(folder):
    put(folder / "new_pictures", dict(list(drawn.images().items())[:6]))
    for name, content in zip(("a.png", "b.png"), drawn.images().values(), strict=False):
        (folder / name).write_bytes(content)


FILES = {
    "README.md": photos,
    "docs/audio.md": recordings,
    "docs/bad_samples.md": photos,
    "docs/classification.md": photos,
    "docs/datasets.md": photos,
    "docs/finetuning.md": finetuning,
    "docs/forecasting.md": series,
    "docs/huggingface.md": saved_dataset,
    "docs/image_tables.md": photos,
    "docs/index.md": photos,
    "docs/landmarks.md": faces,
    "docs/language_models.md": books,
    "docs/mixtures.md": faces,
    "docs/multi_label.md": photos,
    "docs/own_dataset.md": birds,
    "docs/packing.md": photos,
    "docs/pairs.md": photos,
    "docs/predicting.md": new_pictures,
    "docs/recipes.md": recipes,
    "docs/resuming.md": photos,
    "docs/sequences.md": tokens,
    "docs/shards.md": tars,
    "docs/stores.md": stores,
    "docs/tables.md": texts,
    "docs/tabular.md": tables,
    "docs/texts.md": texts,
    "docs/tuning.md": photos,
    "docs/video.md": videos,
    "docs/vision.md": scenes,
}

_FIRST = "python run.py run_dir=outputs/first trainer.max_steps=20"
_TWO = ("python run.py run_dir=outputs/a", "python run.py run_dir=outputs/b optimizer.lr=0.01")
_SWEEP = "python run.py -m sampler=random,weighted seed=1,2 hydra.sweep.dir=multirun/first"

BEFORE = {
    "README.md": (_FIRST,),
    "docs/backwards.md": (_FIRST,),
    "docs/index.md": tuple(
        f"python run.py run_dir=outputs/{name} trainer.max_steps=4 trainer.digest=true"
        for name in ("whole", "killed")
    ),
    "docs/reports.md": (*_TWO, _SWEEP),
    "docs/sweeps.md": (
        _SWEEP,
        "python run.py -m optimizer.lr=1e-2,1e-3 hydra.sweep.dir=multirun/lr",
    ),
    "docs/using.md": (_FIRST,),
}


def _predicting(words, root):
    """A run on labelled files predicts files without labels."""
    return (
        f"python run.py {words} run_dir=outputs/last",
        f"python run.py task=predict run=outputs/last dataset.root={root} out=new.csv",
    )


AFTER = {
    "docs/classification.md": _predicting(
        "dataset=image_folder dataset.root=photos", "photos/circle"
    ),
    "docs/landmarks.md": _predicting(
        "dataset=face_landmarks dataset.root=faces transform=faces", "faces"
    ),
    "docs/tabular.md": _predicting(
        "dataset=table dataset.root=people.csv dataset.target=left", "people.csv"
    ),
    "docs/texts.md": _predicting(
        "dataset=delimited_text dataset.root=messages.tsv", "messages.tsv"
    ),
}

EVERYWHERE = (
    (r"docs/examples/", f"{ROOT}/docs/examples/"),
    (r"\bmultirun/(2026-11-22/18-00-00|DATE/TIME)", "multirun/first"),
    (r"\boutputs/(2026-11-22/18-15-17|DATE/TIME)", "outputs/first"),
    (r"distributed\.nproc=4", "distributed.nproc=2"),
    (r"sweep\.seeds=[35]", "sweep.seeds=2"),
    (r"dataset\.folds=5", "dataset.folds=3"),
    (r"dataset\.fold=3", "dataset.fold=2"),
    (r"dataset\.root=FOLDER", "dataset.root=photos"),
)

WORDS = {
    "docs/bad_samples.md": ((r"=photographs", "=photos"),),
    "docs/completion.md": ((r'^eval "\$\((.*)\)"', r"\1"), (r" \| source$", "")),
    "docs/comparing.md": ((r"\[A,B\]", "[outputs/a,outputs/b]"),),
    "docs/finetuning.md": (
        (r"(experiment=ants_bees dataset\.root=)FOLDER", r"\1insects"),
        (r"(experiment=sms_spam dataset\.root=)FOLDER", r"\1sms"),
    ),
    "docs/huggingface.md": ((r"FOLDER", "saved"),),
    "docs/index.md": ((r"--kind images\S*", "--kind images"),),
    "docs/optuna.md": (
        (r"trainer\.max_epochs=8", "trainer.max_epochs=2 hydra.sweep.dir=multirun/study"),
        (r"resume=FOLDER/3", "resume=multirun/study/1"),
        (r"resume=FOLDER$", "resume=multirun/study"),
    ),
    "docs/predicting.md": ((r'"(a|b)\.jpg"', r'"\1.png"'),),
    "docs/recipes.md": (
        (r"(dataset=face_landmarks dataset\.root=)FOLDER", r"\1faces"),
        (r"(experiment=ants_bees dataset\.root=)FOLDER", r"\1insects"),
        (r"(experiment=sms_spam)( dataset\.root=FOLDER)?", r"\1 dataset.root=sms"),
        (r"(experiment=spoken_digits)( dataset\.root=FOLDER)?", r"\1 dataset.root=fsdd"),
        (r"seed=1,2,3$", "seed=1"),
    ),
    "docs/resuming.md": ((r"=/data/photos", "=photos"),),
    "docs/sequences.md": (
        (r"FOLDER dataset\.tokens", "flat dataset.tokens"),
        (r"FOLDER", "megatron"),
        (r"(experiment=sms_spam)", r"\1 dataset.root=sms"),
    ),
    "docs/shards.md": ((r"FOLDER", "tars"),),
    "docs/stores.md": (
        (r"tar\.index FOLDER", "tar.index tars"),
        (r"file_index FOLDER", "file_index photos"),
        (r"(dataset=indexed_tars dataset\.root=s3://)bucket/folder", r"\1data/tars"),
        (r"s3://bucket/", "s3://data/"),
    ),
    "docs/training.md": (
        (r"step-00003000", "best"),
        (r"\[\[3,1200\],\[3,1210\]\]", "[[0,10],[0,11]]"),
    ),
}


def filled_in(page, text):
    """A command or block of a page, with the names of this folder."""
    for pattern, name in (*WORDS.get(page, ()), *EVERYWHERE):
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text
