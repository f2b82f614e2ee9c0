"""Random configurations: data x sampler x filter x mixture x pack x batch x training.

`draw(seed, number, files)` is a function of its arguments. What it draws is mostly allowed; that it
is not, the program has to find.
"""

import random
import re
from dataclasses import dataclass, field

OWN = "tests.promises.stress.random_data"
ORDERS = "penstock.order.samplers"
REGRESSION = (
    "transform=none",
    "collate=stack",
    "model=linear",
    "objective=regression",
    "objective.inputs=[x]",
    "objective.target=y",
)
CLASSES = (
    "transform=none",
    "collate=stack",
    "model=linear",
    "objective=classification",
    "objective.inputs=[x]",
)
BAG = (
    "transform=none",
    "objective=regression",
    "objective.inputs=[tokens,cu_seqlens]",
    "objective.target=row",
    "~model",
    f"+model={{_target_: {OWN}.Bag}}",
)
FAKE = "_target_: torchvision.datasets.FakeData, image_size: [3, 20, 20], num_classes: 3"
FEW_PIXELS = (
    "transform=images",
    "transform.train.crop.size=[16,16]",
    "model=small_conv_net",
    "objective=classification",
)


@dataclass
class Kind:
    """A dataset, and what may be asked of it.

    Attributes:
        words: that choose it, with a model for it.
        numbers, groups, texts, gaps: columns of its table, by what they hold.
        rows: of training, about; of a stream exactly; None: as epoch 0 has, 0: unknown.
        packs, fits: whether it can be packed, and has a model.
        norms: whether the model has batch norm, which wants two samples at least.
    """

    words: tuple
    numbers: tuple = ()
    groups: tuple = ()
    texts: tuple = ()
    gaps: tuple = ()
    rows: int = 40
    stream: bool = False
    documents: bool = False
    mixes: bool = False
    packs: bool = True
    fits: bool = True
    sources: tuple = ()
    damaged: bool = False
    draws: bool = False
    norms: bool = False


@dataclass
class Case:
    """Words of the program: `base` that hang together, and others that may be left out."""

    kind: Kind
    name: str
    base: list
    options: list = field(default_factory=list)

    @property
    def words(self):
        return [*self.base, *self.options]


def own(target, words=REGRESSION, more="", **options):
    return apart("~dataset", f"+dataset={{_target_: {OWN}.{target}{more}}}", *words)


def apart(*words):
    """Words with what is said of the data in a node's text as words of their own."""
    told = re.compile(r", (facts|fields): (\{[^}]*\}|\[[^]]*\])")
    found = [f"data.{name}={value}" for word in words for name, value in told.findall(word)]
    return (*(told.sub("", word) for word in words), *found)


def kinds(draw, files):
    """All kinds of data by name, of sizes that are drawn."""
    rows, val = draw.randint(20, 60), draw.randint(1, 14)
    more = f", rows: {rows}, val_rows: {val}"
    facts = ", facts: {num_features: 3, num_outputs: 1}"
    classes = ", facts: {num_features: 3, num_outputs: 3, num_classes: 3}, fields: [x, label]"
    table = {
        "numbers": ("length", "weight"),
        "groups": ("label", "name"),
        "texts": ("name",),
        "gaps": ("note",),
        "rows": rows,
    }
    few = {"groups": ("label",), "numbers": ("label",), "rows": rows, "packs": False}
    return {
        "bare": Kind(own("Bare", more=more + facts), rows=rows),
        "table": Kind(own("Table", more=more), **table),
        "at_once": Kind(own("AtOnce", more=more), **table),
        "damaged": Kind(own("Damaged", more=more), **table, damaged=True, packs=False),
        "drawing": Kind(own("Drawing", more=more), **table, draws=True),
        "pairs": Kind(own("Pairs", CLASSES, f", rows: {rows}{classes}"), **few),
        "subset": Kind(own("subset", CLASSES, f", rows: {rows}{classes}"), **few),
        "joined": Kind(own("joined", CLASSES, f", rows: {rows}{classes}"), **few),
        "own documents": Kind(
            own("Texts", BAG, more + facts), numbers=("length",), rows=rows, documents=True
        ),
        "own table of documents": Kind(
            own("TextTable", BAG, more + facts), ("length",), ("label",), rows=rows, documents=True
        ),
        **{
            f"stream {name}": Kind(
                own(name, more=(more if name != "generated" else f", rows: {rows}") + facts),
                rows=rows,
                stream=True,
            )
            for name in ("Forward", "Rewinding", "Divided", "Sharded", "generated")
        },
        "mixture": mixture(draw, rows),
        "tar shards": Kind(
            (
                "dataset=tar_shards",
                f"dataset.root={files}/shards",
                "dataset.classes=[a,b,c]",
                *FEW_PIXELS,
            ),
            rows=None,
            stream=True,
            draws=True,
            norms=True,
        ),
        "sequences": Kind(
            (
                "dataset=sequences",
                f"dataset.count={rows + 20}",
                "dataset.longest=20",
                "model.hidden=8",
                f"dataset.root={files}/sequences",
            ),
            numbers=("length",),
            groups=("label",),
            rows=rows + 4,
        ),
        "faces": Kind(
            (
                "dataset=synthetic_faces",
                "dataset.count=30",
                "dataset.size=32",
                "transform.train.resize.size=[16,16]",
                f"dataset.root={files}/faces",
            ),
            rows=24,
            draws=True,
            norms=True,
        ),
        "arrays": Kind(
            ("dataset=arrays", f"dataset.root={files}/arrays"), groups=("label",), rows=40
        ),
        "texts": Kind(
            (
                "dataset=delimited_text",
                f"dataset.root={files}/texts",
                "model.width=8",
                "model.hidden=8",
            ),
            numbers=("length",),
            groups=("label",),
            rows=48,
        ),
        "stream of texts": Kind(
            (
                "dataset=delimited_stream",
                f"dataset.root={files}/texts",
                "dataset.classes=[ham,spam]",
                "model.width=8",
                "model.hidden=8",
            ),
            stream=True,
            rows=None,
        ),
        "images": Kind(
            ("dataset=image_folder", f"dataset.root={files}/images", *FEW_PIXELS),
            groups=("label",),
            rows=28,
            draws=True,
            norms=True,
        ),
        "parquet": Kind(
            ("dataset=parquet", f"dataset.root={files}/table", *CLASSES),
            numbers=("size",),
            groups=("label", "name"),
            texts=("name",),
            rows=38,
            fits=False,
        ),
        "stream of parquet": Kind(
            ("dataset=parquet_stream", f"dataset.root={files}/table", *CLASSES),
            rows=None,
            stream=True,
            fits=False,
        ),
        "token files": Kind(
            (
                "dataset=token_files",
                f"dataset.root={files}/tokens",
                "data.split.val=0.2",
                *BAG,
            ),
            numbers=("length",),
            rows=40,
            documents=True,
            fits=False,
        ),
        "fake data": Kind(
            (
                "~dataset",
                f"+dataset={{{FAKE}, size: 30}}",
                f"data.val_dataset={{{FAKE}, size: 9}}",
                "data.facts={num_classes: 3, num_outputs: 3}",
                "data.fields=[image, label]",
                *FEW_PIXELS,
            ),
            rows=30,
            packs=False,
            draws=True,
            norms=True,
        ),
    }


def mixture(draw, rows):
    names = ("a", "b", "c")[: draw.randint(1, 3)]
    targets = ("Bare", "Table", "AtOnce")
    sources, weights = [], []
    for place, name in enumerate(names):
        target = draw.choice(targets)
        chosen = ", filter: length > 3}" if target != "Bare" and draw.random() < 0.3 else ""
        count = draw.choice((1, 5, rows, 2 * rows)) if not chosen else rows
        node = f"{{_target_: {OWN}.{target}, rows: {count}, val_rows: {draw.randint(2, 9)}, "
        node += f"start: {1000 * place}}}"
        if chosen:
            node = f"{{_target_: penstock.addons.filters.rows.filtered, dataset: {node}{chosen}"
        sources.append(f"{name}: {node}")
        weight = draw.choice((1, 2, 0.5, 3.25, 10))
        if draw.random() < 0.2:
            weight = f"[[0, {weight}], [{draw.randint(1, 30)}, {draw.choice((0, 1, 4))}]]"
        weights.append(f"{name}: {weight}")
    node = f"sources: {{{', '.join(sources)}}}, facts: {{num_features: 3, num_outputs: 1}}"
    if draw.random() < 0.8:
        node += f", weights: {{{', '.join(weights)}}}"
    if draw.random() < 0.4:
        node += f", num_samples: {draw.choice((7, 40, 300, 2500))}"
    if len(names) > 1 and draw.random() < 0.2:
        node += f", passes: {{{draw.choice(names)}: {draw.randint(1, 4)}}}"
    if draw.random() < 0.2:
        node += ", knots: samples"
    words = apart(
        "~dataset",
        f"+dataset={{_target_: penstock.addons.mixtures.mixture.Mixture, {node}}}",
        *REGRESSION,
    )
    return Kind(words, rows=rows, mixes=True, packs=False)


def draw_case(seed, number, files):
    """The case of a number."""
    draw = random.Random(f"case {seed} {number}")
    known = kinds(draw, files)
    name = draw.choice(list(known))
    kind = known[name]
    case = Case(kind, name, list(kind.words))
    size = draw.choice((1, 2, 3, 4, 5, 8, 12, 16))
    case.base.append(f"batch.size={size}")
    case.base += _sampler(draw, kind, size)
    case.options += [
        word for one in (_rows, _batches, _training, _steps) for word in one(draw, kind)
    ]
    if draw.random() < 0.3:
        case.options.append(f"seed={draw.choice((1, 7, 2**40, 2**63))}")
    if draw.random() < 0.06:
        case.options.append(draw.choice(WRONG.strip().replace("\n", " ").split(" | ")))
    return case


def _node(name, options):
    text = ", ".join(f"{key}: {value}" for key, value in options.items())
    return f"{{_target_: {name}{', ' if text else ''}{text}}}"


def _order(draw, kind, depth=0):
    """Name and options of an order of rows that may stand inside another sampler."""
    choices = ["random", "sequential", "subset", "subset", "torch"]
    choices += ["weights"] + ["curriculum"] * bool(kind.numbers)
    choices += ["weighted", "weighted"] * bool(kind.groups)
    chosen = draw.choice(choices)
    if chosen == "random":
        return f"{ORDERS}.Random", {}
    if chosen == "sequential":
        return f"{ORDERS}.Sequential", {}
    if chosen == "torch":
        return draw.choice(
            (
                ("torch.utils.data.RandomSampler", {}),
                ("torch.utils.data.SequentialSampler", {}),
                ("torch.utils.data.RandomSampler", {"replacement": "false"}),
            )
        )
    if chosen == "subset":
        shuffle = draw.choice(("true", "false"))
        if draw.random() < 0.5:
            share = draw.choice((0.25, 0.5, 0.9, 1.0))
            return f"{ORDERS}.Subset", {"fraction": share, "shuffle": shuffle}
        rows = [draw.randrange(kind.rows - kind.rows // 4) for _ in range(draw.randint(1, 25))]
        return f"{ORDERS}.Subset", {"indices": rows, "fraction": "null", "shuffle": shuffle}
    if chosen == "curriculum":
        options = {
            "column": draw.choice(kind.numbers),
            "stages": draw.choice((1, 2, 3, 4, 10)),
            "descending": draw.choice(("true", "false")),
        }
        return "penstock.order.samplers.Curriculum", options
    options = {"replacement": draw.choice(("true", "false"))}
    if chosen == "weights":
        options["column"], options["weights"] = (
            "null",
            [draw.choice((0, 1, 2.5)) for _ in range(kind.rows)],
        )
    elif "weight" in kind.numbers and draw.random() < 0.5:
        options["column"], options["weights"] = "null", "weight"
    else:
        options["column"] = draw.choice(kind.groups)
    if draw.random() < 0.4:
        options["num_samples"] = draw.randint(1, 70 if options["replacement"] == "true" else 12)
    return f"{ORDERS}.Weighted", options


def _sampler(draw, kind, size):
    if kind.stream:
        return [
            "sampler=stream",
            f"sampler.buffer={draw.choice((0, 1, 3, 7, 50))}",
            f"sampler.shuffle_shards={draw.choice(('true', 'false'))}",
            *([f"sampler.steps={draw.randint(1, 6)}"] if draw.random() < 0.2 else []),
        ]
    if kind.documents:
        case = [] if draw.random() < 0.5 else [f"collate.pad_to={draw.choice((30, 40))}"]
        words = [
            "collate=packed",
            "sampler=packed",
            *case,
            f"sampler.tokens={draw.choice((22, 30))}",
            f"sampler.split={draw.choice(('never', 'tail'))}",
            f"sampler.window={draw.choice((1, 3, 16, 4096))}",
        ]
        if draw.random() < 0.6:
            words.append(f"sampler.order={_node(*_inner(draw, kind, size))}")
        return words
    if kind.mixes:
        chosen = draw.choice(("mixture", "mixture", "repeated"))
        words = [f"sampler={chosen}"]
        if chosen == "repeated":
            words.append(f"sampler.times={_divisor(draw, size)}")
        return words
    chosen = draw.choice(("order", "order", "order", "repeated", "repeated", "bucket", "identity"))
    if chosen == "bucket" and kind.numbers:
        words = ["sampler=bucket", f"sampler.column={draw.choice(kind.numbers)}"]
        words += [f"sampler.num_buckets={draw.randint(1, 9)}"] if draw.random() < 0.5 else []
        return words + ([f"sampler.tokens={draw.randint(8, 120)}"] if draw.random() < 0.4 else [])
    if chosen == "identity" and kind.groups:
        words = ["sampler=identity", f"sampler.column={draw.choice(kind.groups)}"]
        words += [
            f"sampler.identities={draw.randint(1, 2)}",
            f"sampler.samples={draw.randint(1, 5)}",
        ]
        return words + ([f"sampler.batches={draw.randint(1, 9)}"] if draw.random() < 0.4 else [])
    if chosen == "repeated":
        name, options = _repeated(draw, kind, size)
    else:
        name, options = _order(draw, kind)
    return ["~sampler", f"+sampler={_node(name, options)}"]


def _divisor(draw, size):
    return draw.choice([one for one in range(1, size + 1) if size % one == 0])


def _repeated(draw, kind, size, depth=0):
    options = {"times": _divisor(draw, size), "shorten": draw.choice(("true", "false"))}
    if draw.random() < 0.6:
        name, inner = (
            _repeated(draw, kind, size, 1)
            if depth == 0 and draw.random() < 0.2
            else _order(draw, kind)
        )
        options["order"] = _node(name, inner)
    return "penstock.order.samplers.Repeated", options


def _inner(draw, kind, size):
    return _repeated(draw, kind, size) if draw.random() < 0.2 else _order(draw, kind)


FILTERS = {
    "numbers": (
        "{} > 3",
        "{} <= 8",
        "{}.between(2, 9)",
        "{} % 2 == 1",
        "not {} == 4",
        "{} * 2 < 15 or {} == 9",
    ),
    "groups": ("{}.notna()", "not {}.isna()"),
    "texts": (
        "{} != 'n3'",
        "{}.str.startswith('n')",
        "{} in ['n1', 'n2', 'n5', 'n7']",
        "{}.str.len() == 2",
    ),
    "gaps": ("{}.isna()", "{} != 'g0'", "{}.notna()"),
}


def _rows(draw, kind):
    """Filters, rows that are left out, and packs."""
    words = []
    if kind.stream:
        return words
    if draw.random() < 0.35:
        roles = [role for role in FILTERS if getattr(kind, role)]
        chosen = []
        for _ in range(draw.choice((1, 1, 2))):
            if roles:
                role = draw.choice(roles)
                column = draw.choice(getattr(kind, role))
                chosen.append(draw.choice(FILTERS[role]).replace("{}", column))
        if chosen:
            words.append("data.filter=[" + ",".join(f'"{one}"' for one in chosen) + "]")
    if draw.random() < 0.15 and kind.texts + kind.gaps:
        words.append(f"data.unique={draw.choice(kind.texts + kind.gaps)}")
    if draw.random() < 0.2:
        rows = sorted({draw.randrange(kind.rows // 2) for _ in range(draw.randint(1, 6))})
        words.append(f"data.without={rows}".replace(" ", ""))
    if draw.random() < 0.2 and kind.packs:
        words.append("+data.packed=auto")
    return words


def _batches(draw, kind):
    words = []
    if draw.random() < 0.4:
        words.append(f"batch.tail={draw.choice(('keep', 'drop', 'drop', 'pad'))}")
    if draw.random() < 0.3:
        words.append(f"batch.val_size={draw.randint(1, 9)}")
    costs = (
        ["tokens ** 2", "tokens"] if kind.documents else [f"{one} ** 2 + 1" for one in kind.numbers]
    )
    if costs and draw.random() < 0.25:
        words.append(f"batch.balance={draw.choice(costs)}")
    return words


def _training(draw, kind):
    words = [f"trainer.max_epochs={draw.choice((1, 2, 3))}"]
    for chance, word in (
        (0.2, f"trainer.accumulate={draw.randint(2, 4)}"),
        (0.15, f"trainer.limit_batches.train={draw.randint(1, 5)}"),
        (0.15, f"trainer.limit_batches.val={draw.randint(1, 2)}"),
        (0.1, f"trainer.overfit_batches={draw.randint(1, 4)}"),
        (0.15, f"trainer.skip=[[[0,{draw.randint(0, 2)}],[0,{draw.randint(3, 5)}]]]"),
        (0.1, f"trainer.skip=[[0,{draw.randint(0, 3)}],[1,{draw.randint(0, 3)}]]"),
        (0.1, "trainer.ema=0.9"),
        (0.1, f"trainer.max_steps={draw.randint(1, 20)}"),
        (0.2, f"trainer.val_every={draw.randint(2, 3)}"),
        (0.2, "trainer.baseline=true"),
        (0.2, "trainer.digest=true"),
        (0.1, "scheduler=cosine"),
        (0.1, "optimizer=sgd"),
        (0.3, f"trainer.checkpoint.every_steps={draw.randint(1, 4)}"),
        (0.1, f"trainer.checkpoint.keep_last={draw.randint(2, 3)}"),
        (0.1, f"trainer.log_every={draw.randint(1, 9)}"),
        (0.1, "trainer.clip_norm=null"),
        (0.05, "trainer.precision=bf16"),
    ):
        if draw.random() < chance:
            words.append(word)
    return words


def _steps(draw, kind):
    """Transforms that draw, mixing, and what is done about bad samples."""
    words = []
    if (
        "transform=none" in kind.words
        and "objective.inputs=[x]" in kind.words
        and draw.random() < 0.3
    ):
        words.append(f"+transform.train.noise={{_target_: {OWN}.Noise}}")
    if "small_conv_net" in str(kind.words) and draw.random() < 0.3:
        name = draw.choice(("MixUp", "CutMix"))
        words.append(f"+transform.train_batch.mix={{_target_: penstock.transforms.mixing.{name}}}")
    if kind.damaged:
        words.append(f"bad_samples.on_error={draw.choice(('skip', 'substitute', 'skip', 'raise'))}")
        words.append(
            "bad_samples.budget=0.9" if "raise" not in words[-1] else "bad_samples.budget=0.01"
        )
    return words


# Not allowed, or of no use: each is refused, or changes nothing that is promised.
WRONG = """
batch.size=0 | batch.size=null | batch.tail=never | seed=-1 | seed=18446744073709551616 |
batch.val_size=0 | trainer.max_epochs=0 | trainer.skip=[[[3,1],[2,0]]] | trainer.skip=[[0]] |
trainer.accumulate=0 | sampler=nothing | sampler.column=nothing | +sampler.nothing=1 |
sampler._target_=penstock.order.samplers.Nothing | sampler._target_=os.system |
+dataset.nothing=1 | data.filter=nothing > 1 | data.filter=( | data.filter=1 |
data.unique=nothing | data.without=[1000000] | data.without=[-1] |
data.without=nothing.csv | loader.num_workers=-1 | loader.prefetch_factor=0 |
loader.backend=none | bad_samples.budget=2 | bad_samples.quarantine=nothing.csv |
trainer.limit_batches.train=0 | collate=packed | collate=single | sampler=stream |
sampler=packed | sampler=mixture | sampler=bucket | sampler=identity | sampler=repeated |
sampler=curriculum | sampler=weighted | batch.balance=nothing | batch.balance=__import__ |
+data.packed=nothing | trainer.monitor=nothing | epoch=-1 |
epoch=x | split=nothing | resume=nothing | trainer.precision=fp16 |
distributed.strategy=nothing | transform.batch_on=nothing | objective.inputs=[nothing] |
objective.target=nothing | model=text_net | collate=pad | loader.max_deaths=0
"""
