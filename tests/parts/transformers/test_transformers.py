"""Models of transformers: from a folder or from numbers, without network and without its code."""

import json
import pickle

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.build.training import TrainingParts
from penstock.runs import checkpoint
from tests.support.program import run

pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SMALL = "{hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32"
NEW = ["model.model_type=bert", f"model.arguments={SMALL}, max_position_embeddings: 40}}"]
WORDS = ["good", "bad", "day", "night", "rain", "##y"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    draw = np.random.default_rng(0)
    rows = ["label,text"]
    for number in range(40):
        words = draw.choice(["day", "night", "rain", "rainy"], 2 + number % 3)
        rows.append(f"{number % 2},{' '.join([['bad', 'good'][number % 2], *words])}")
    (folder / "texts.csv").write_text("\n".join(rows) + "\n")
    return folder


def words(data, *more):
    return [
        "dataset=delimited_text",
        f"dataset.root={data}",
        "dataset.file=texts.csv",
        "dataset.text=text",
        "dataset.label=label",
        "model=transformers",
        "transform.train.tokenize.size=300",
        "batch.size=8",
        "trainer.max_epochs=2",
        "loader.num_workers=0",
        "tracker=none",
        "trainer.pictures=false",
        "trainer.report=false",
        *more,
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as `save_pretrained` writes it, of a model without a head, with its vocabulary."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("saved")
    vocabulary = {name: n for n, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=50)
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def test_a_new_model_learns_texts_by_its_configuration_alone(capsys, data, tmp_path):
    more = ["+trainer.groups.body={names: [bert.embeddings, bert.encoder], lr_scale: 0.5}"]
    often = ["trainer.checkpoint.every_steps=2", "trainer.checkpoint.keep_last=9"]
    for folder, rest in (("whole", []), ("rest", [f"resume={tmp_path}/whole/checkpoints/STEP"])):
        rest = [word.replace("STEP", "step-00000002.safetensors") for word in rest]
        done = run(capsys, *words(data, *NEW, *more, *often, *rest, f"run_dir={tmp_path / folder}"))
        assert done.code == 0, done.err
        assert "BertForSequenceClassification" in done.err
    whole, rest = (checkpoint.find_newest(tmp_path / f).state["model"] for f in ("whole", "rest"))
    for name, value in whole.items():
        assert torch.equal(value, rest[name]), name
    out = tmp_path / "rows.csv"
    asked = [f"run={tmp_path / 'whole'}", f"dataset.root={data / 'texts.csv'}", f"out={out}"]
    done = run(capsys, "task=predict", *asked)
    assert done.code == 0, done.err
    assert len(out.read_text().splitlines()) == 41


def test_a_folder_gives_what_transformers_makes_of_it(data, saved, capsys, tmp_path):
    from transformers import AutoModelForSequenceClassification

    tokens = ["transform=pieces", "transform.train.tokenize.size=10"]
    given = [word for word in words(data, f"model.path={saved}", *tokens) if "size=300" not in word]
    parts = TrainingParts(compose(*given))
    model = parts.model().eval()
    with parts.data.train.loader() as loader:
        batch = next(iter(loader.epoch(0)))
    text = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
    sample = parts.data.train.dataset[int(batch.indices[0])]["text"]
    assert batch["tokens"][0][: batch["tokens_lengths"][0]].tolist() == text.encode(sample).ids
    theirs = AutoModelForSequenceClassification.from_pretrained(saved, local_files_only=True)
    theirs.classifier.load_state_dict(model.classifier.state_dict())
    mask = (batch["tokens"] != 0).long()
    with torch.no_grad():
        own = model(batch["tokens"], batch["tokens_lengths"]).logits
        reference = theirs.eval()(input_ids=batch["tokens"], attention_mask=mask).logits
        torch.testing.assert_close(own, reference, rtol=0, atol=0)
        length = int(batch["tokens_lengths"][0])
        alone = model(batch["tokens"][:1, :length], batch["tokens_lengths"][:1]).logits
        torch.testing.assert_close(alone, own[:1], rtol=1e-5, atol=1e-6)
    long = [*given, "transform.train.tokenize.max_length=41", f"run_dir={tmp_path / 'run'}"]
    done = run(capsys, *long)
    assert done.code == 0  # no text is as long
    assert "start     39 of 41 tensors; new: classifier.bias, classifier.weight from" in done.err


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


CODE = "open({path!r}, 'w')\nfrom transformers import BertForSequenceClassification as Own\n"


@pytest.mark.parametrize("model_type", ["bert", "own"])
@pytest.mark.parametrize("weights", ["safetensors", "pickle"])
def test_nothing_of_a_folder_is_run(capsys, data, saved, tmp_path, model_type, weights):
    folder, canary = tmp_path / "folder", tmp_path / "canary"
    folder.mkdir()
    said = json.loads((saved / "config.json").read_text())
    said |= {
        "model_type": model_type,
        "auto_map": {
            "AutoConfig": "own.Own",
            "AutoModelForSequenceClassification": "own.Own",
        },
        "attn_implementation": "somebody/kernels",
        "_attn_implementation": "somebody/kernels",
        "quantization_config": {"quant_method": "bitsandbytes"},
        "vocab_size": 300,
    }
    (folder / "config.json").write_text(json.dumps(said))
    (folder / "own.py").write_text(CODE.format(path=str(canary)))
    if weights == "safetensors":
        from transformers import BertConfig, BertForSequenceClassification

        numbers = {name: said[name] for name in ("hidden_size", "intermediate_size", "vocab_size")}
        numbers |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 40}
        made = BertForSequenceClassification(BertConfig(**numbers))
        made.save_pretrained(tmp_path / "made")
        (tmp_path / "made/model.safetensors").rename(folder / "model.safetensors")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))
    asked = words(data, f"model.path={folder}", f"run_dir={tmp_path / 'run'}")
    done = run(capsys, *asked, "trainer.max_steps=1")
    assert not canary.exists()
    assert "Traceback" not in done.err
    if model_type == "own":
        assert done.code == 2
        assert "model: " in done.err
    elif weights == "pickle":
        assert done.code == 2
        assert "no file named model.safetensors" in done.err
    else:
        assert done.code == 0, done.err


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "model: None: ValueError: Unrecognized"),
        (["model.model_type=brt"], "model: brt: ValueError: Unrecognized"),
        (["model.path=me/bert"], "No such file or directory: 'me/bert/config.json' (nothing is f"),
        ([NEW[0], "model.arguments={hiden: 3}"], "arguments: hiden: no number of its configur"),
        ([NEW[0], "model.arguments={auto_map: {}}"], "arguments: auto_map: no number of its"),
        ([NEW[0], "model.arguments={hidden_size: 7}"], "model: bert: ValueError"),
        ([*NEW, "model.kind=image_classification"], "model: bert: ValueError"),
        ([*NEW, "+model.trust_remote_code=true"], "transformers_model 'trust_remote_code'"),
        ([*NEW, "+model.arguments.vocab_size=20"], "vocab_size has no room for the 300 of the"),
    ],
)
def test_what_does_not_go_is_one_message(capsys, data, tmp_path, more, message):
    done = run(capsys, *words(data, *more, f"run_dir={tmp_path / 'run'}"))
    assert done.code == 2, done.err
    assert message in done.err
    assert "Traceback" not in done.err
