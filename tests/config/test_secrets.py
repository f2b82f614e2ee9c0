"""What must not be written down, nor leave the machine: the environment, and secrets."""

import json
import logging
import os
import re

import pytest
import yaml
from omegaconf import OmegaConf

import penstock
from penstock import command, seams
from penstock.addons.stores.store import check_options
from penstock.addons.sweeps.stored_sweep import StoredSweep, store
from penstock.config import disclosure, endpoints, environment, hydra_output
from penstock.config.endpoints import Endpoint
from penstock.runs.resumption import fingerprint
from tests.program import run
from tests.web_server import WebServer

CANARY = "canary-7f3a91c4"
TYPED = "typed-5e21bb08"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to run in, with a secret in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CANARY", CANARY)
    for name in ("PENSTOCK_ALLOW_ENV", "PENSTOCK_ALLOW_ENDPOINT", "AWS_PROFILE", "PENSTOCK_SAID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def configs(monkeypatch):
    """The configurations that tasks are handed."""
    seen = []
    monkeypatch.setattr(seams, "runner", lambda name: seen.append)
    return seen


def everything_in(folder):
    """All bytes of all files below a folder, and their names."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    return {path: path.read_bytes() + str(path).encode() for path in found}


def assert_nowhere(text, folder):
    for path, content in everything_in(folder).items():
        assert text.encode() not in content, f"{text} stands in {path}"


STEP = (
    "+transform.train.note={_target_: tests.own_parts.noted, _partial_: true, api_token: %s, "
    "note: '${oc.env:CANARY}'}"
)
SHORT = [
    "--trust",
    "tests",
    "trainer=quick",
    "trainer.max_epochs=1",
    "loader=debug",
    "trainer.pictures=false",
    "scheduler=none",
]


def test_a_run_leaves_neither_the_environment_nor_secrets_behind(
    faces, capsys, tmp_path, monkeypatch
):
    words = [*SHORT, *faces, STEP % TYPED, "run_dir=out"]
    monkeypatch.setattr("sys.orig_argv", ["python", "run.py", *words])
    outcome = run(capsys, *words)
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "out"
    names = {path.name.split(".")[0] for path in everything_in(folder)}
    assert {"manifest", "config", "holder", "metrics", "events"} <= names, "tensorboard's, too"
    assert any("checkpoints" in str(path) for path in everything_in(folder))
    for text in (CANARY, TYPED):
        assert_nowhere(text, folder)
        assert text not in outcome.out + outcome.err
    step = yaml.safe_load((folder / "config.yaml").read_text())["transform"]["train"]["note"]
    assert (step["note"], step["api_token"]) == ("${oc.env:CANARY}", "***")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert any("api_token: ***, note: '${oc.env:CANARY}'" in word for word in manifest["overrides"])
    assert "api_token: ***" in manifest["command"]

    # What is missing in the manifest has to be given again, and then the run goes on.
    outcome = run(capsys, "--trust", "tests", "resume=out", "trainer.max_epochs=2")
    assert outcome.code == 2
    assert "transform.train.note: is a secret that out was started with" in outcome.err
    outcome = run(capsys, "--trust", "tests", "resume=out", "trainer.max_epochs=2", STEP % TYPED)
    assert outcome.code == 0, outcome.err
    assert_nowhere(TYPED, folder)


@pytest.mark.thorough
def test_a_sweep_leaves_none_either(capsys, tmp_path, monkeypatch):
    def fails(config):
        raise command.PenstockError(f"cannot use {config.transform.train['note']['note']}")

    monkeypatch.setattr(seams, "runner", lambda name: fails)
    outcome = run(
        capsys,
        "-m",
        "--trust",
        "tests",
        STEP % TYPED,
        "seed=1,2",
        "hydra.sweep.dir=sweep",
        "hydra.output_subdir=.hydra",
    )
    assert outcome.code == 1
    names = {path.name for path in everything_in(tmp_path / "sweep")}
    assert {"result.json", "sweep.csv", "multirun.yaml", "overrides.yaml", "hydra.yaml"} <= names
    for text in (CANARY, TYPED):
        assert_nowhere(text, tmp_path / "sweep")
    assert TYPED not in outcome.out + outcome.err
    assert "seed=1" in outcome.err


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:CANARY}",
        "x${oc.env:CANARY}y",
        "'${oc.env:CANARY,other}'",
        "${tracker.tensorboard.folder}",
        "'${oc.decode:${oc.env:CANARY}}'",
        "${oc.select:tracker.tensorboard.folder}",
        "'${oc.create:{a: \"${oc.env:CANARY}\"}}'",
        "'${oc.dict.values:tracker.tensorboard}'",
        "${hydra:sweep.subdir}",
    ],
)
def test_whatever_way_leads_to_the_environment_is_written_as_it_was(configs, capsys, text):
    words = [
        "--trust",
        "tests",
        f"+transform.train.note={{_target_: tests.own_parts.noted, _partial_: true, note: {text}}}",
        "+tracker.tensorboard.folder=${oc.env:CANARY}/x",
        "'hydra.sweep.subdir=${oc.env:CANARY}'".strip("'"),
    ]
    outcome = run(capsys, *words)
    assert outcome.code == 0, outcome.err
    (config,) = configs
    assert CANARY in str(config.transform.train["note"]["note"]), "the run itself gets the value"
    assert CANARY not in str(config.written())
    assert "${" in str(config.written()["transform"]["train"]["note"]["note"])
    kept = fingerprint(config, {}, 0)
    assert CANARY not in str(kept)


def test_a_fingerprint_notices_that_the_environment_changed(configs, capsys, monkeypatch):
    words = ["--trust", "tests", STEP % TYPED]
    for value in (CANARY, "another-value", CANARY):
        monkeypatch.setenv("CANARY", value)
        assert run(capsys, *words).code == 0
    first, second, third = (fingerprint(config, {}, 0) for config in configs)
    assert first == third
    assert {key for key in first if first[key] != second[key]} == {"transform.train.note.note"}
    assert "another" not in str(second)


@pytest.mark.parametrize("resolve", [[], ["--resolve"]])
def test_a_configuration_is_shown_without_secrets(capsys, resolve):
    outcome = run(capsys, "--cfg", "job", *resolve, "--trust", "tests", STEP % TYPED)
    assert outcome.code == 0, outcome.err
    assert "api_token: '***'" in outcome.out
    assert ("note: $CANARY" if resolve else "note: ${oc.env:CANARY}") in outcome.out
    assert CANARY not in outcome.out
    assert TYPED not in outcome.out
    shown = yaml.safe_load(outcome.out)
    assert shown["limits"]["files"] == 100_000_000, "everything else is as it was"


def test_nor_does_info_show_any(capsys):
    outcome = run(capsys, "--info", "config", "--trust", "tests", STEP % TYPED)
    assert outcome.code == 0, outcome.err
    assert "api_token: '***'" in outcome.out + outcome.err
    assert TYPED not in outcome.out + outcome.err


WEB = ["dataset=image_folder", "task=digest", "loader=debug"]
SENDS = {
    "whole": ["dataset.root=${oc.env:CANARY_URL}"],
    "inside": ["dataset.root=https://h.invalid/${oc.env:CANARY}"],
    "through another key": [
        "run_dir=${oc.env:CANARY}",
        "dataset.root=https://h.invalid/${run_dir}",
    ],
    "decoded": ["dataset.root='https://h.invalid/${oc.decode:${oc.env:CANARY}}'"],
    "default in it": ["dataset.root=https://h.invalid/${oc.env:CANARY,x}"],
    "scheme from it": ["dataset.root='${oc.env:CANARY_SCHEME}//h.invalid/x'"],
    "option": ["+dataset.files.options.profile=${oc.env:CANARY}"],
    "header": ["+dataset.files.options.client_kwargs.headers={X-Me: '${oc.env:CANARY}'}"],
    "beside an address": [
        "dataset.root=https://h.invalid/x",
        "+dataset.classes=[]",
        "dataset.files.timeout=60",
        "dataset.reader=${oc.env:CANARY}",
    ],
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("words", SENDS.values(), ids=SENDS)
def test_the_environment_does_not_leave_the_machine(words, configs, capsys, monkeypatch):
    monkeypatch.setenv("CANARY_URL", f"https://h.invalid/{CANARY}")
    monkeypatch.setenv("CANARY_SCHEME", "https:")
    outcome = run(capsys, "dataset=image_folder", *words)
    assert outcome.code == 2
    assert "--allow-env CANARY" in outcome.err
    assert configs == []
    allowed = ["--allow-env", "CANARY,CANARY_URL", "--allow-env=CANARY_SCHEME"]
    outcome = run(capsys, "dataset=image_folder", *words, *allowed)
    assert "--allow-env" not in outcome.err


@pytest.mark.thorough
def test_what_a_server_is_asked_for(capsys, tmp_path):
    with WebServer() as server:
        root = f"dataset.root={server.address}/${{oc.env:CANARY}}"
        words = [*WEB, root, "dataset.files.retries=0"]
        outcome = run(capsys, *words)
        assert (outcome.code, server.requests) == (2, [])
        assert "--allow-env CANARY" in outcome.err
        outcome = run(capsys, *words, "--allow-env", "OTHER,CANARY")
        assert outcome.code == 3
        assert any(CANARY in line for line in server.requests), "it was allowed"
    assert "PENSTOCK_ALLOW_ENV" not in os.environ
    assert run(capsys, "--allow-env", "a b").code == 2


@pytest.mark.stress
def test_paths_of_this_machine_may_come_from_the_environment(
    configs, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("DATA", str(tmp_path))
    words = ["dataset=image_folder", "dataset.root=${oc.env:DATA}/x", "cache_dir=${oc.env:DATA}/c"]
    assert run(capsys, *words).code == 0
    words[1] = "dataset.root=https://h.invalid/x"
    outcome = run(capsys, *words)
    assert outcome.code == 0, "the cache of files stays here"
    words[1] = "dataset.root='file://${oc.env:DATA}/x'"
    assert run(capsys, *words).code == 0
    assert [config.dataset["root"] for config in configs] == [
        f"{tmp_path}/x",
        "https://h.invalid/x",
        f"file://{tmp_path}/x",
    ]


@pytest.mark.parametrize("variable", ["PENSTOCK_ALLOW_ENV", "PENSTOCK_ALLOW_ENDPOINT"])
def test_a_configuration_allows_itself_nothing(capsys, variable):
    assert run(capsys, f"+hydra.job.env_set.{variable}=CANARY").code == 2


OPTION = "+dataset.files.options"
MOVED = {
    "endpoint": f"{OPTION}.endpoint_url=https://evil.example",
    "nested": f"{OPTION}.client_kwargs.endpoint_url=https://evil.example",
    "proxy": f"{OPTION}.config_kwargs.proxies={{https: 'evil.example:80', anon: true}}",
    "session": f"{OPTION}.session_kwargs.proxy=http://evil.example",
    "base": f"{OPTION}.client_kwargs.base_url=https://evil.example",
    "user": f"'{OPTION}.endpoint_url=https://s3.amazonaws.com@evil.example'".strip("'"),
    "backslash": f"{OPTION}.endpoint_url='https://evil.example\\\\@s3.amazonaws.com'",
    "fragment": f"{OPTION}.endpoint_url='https://evil.example#.s3.amazonaws.com'",
    "of a tenant": f"{OPTION}.endpoint_url=https://ec2-1-2-3-4.compute.amazonaws.com",
    "s3 of a tenant": f"{OPTION}.endpoint_url=https://s3.evil.compute.amazonaws.com",
    "like it": f"{OPTION}.endpoint_url=https://s3.amazonaws.com.evil.example",
    "not https": f"{OPTION}.endpoint_url=http://storage.googleapis.com",
    "like localhost": f"{OPTION}.endpoint_url=http://localhost.evil.example",
    "somewhere": f"{OPTION}.whatever=https://evil.example",
    "anon elsewhere": f"{OPTION}.client_kwargs={{anon: true, endpoint_url: 'https://evil.example'}}",
    "anon as text": f"{OPTION}={{anon: 'no', endpoint_url: 'https://evil.example'}}",
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("word", MOVED.values(), ids=MOVED)
def test_credentials_go_to_no_other_server(word, configs, capsys):
    words = ["dataset=image_folder", "dataset.root=s3://bucket/x", word]
    outcome = run(capsys, *words)
    assert outcome.code == 2, outcome.err
    assert "not the provider's" in outcome.err
    assert configs == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "word",
    [
        "endpoint_url=http://127.0.0.1:9000",
        "endpoint_url='http://[::1]:9000'",
        "endpoint_url=http://localhost:1",
        "region=eu",
        "endpoint_url=https://s3.eu-west-1.amazonaws.com",
    ],
)
def test_this_machine_and_the_provider_are_servers_as_any(word, configs, capsys):
    outcome = run(capsys, "dataset=image_folder", "dataset.root=s3://b/x", f"{OPTION}.{word}")
    assert outcome.code == 0, outcome.err


@pytest.mark.thorough
def test_a_server_that_is_allowed_is_announced(configs, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CANARY)
    word = f"{OPTION}.endpoint_url=https://minio.lab:9000"
    words = ["dataset=image_folder", "dataset.root=s3://b/x", word]
    assert run(capsys, *words, "--allow-endpoint", "minio.lab:9001").code == 2
    for name in ("minio.lab", "minio.lab:9000"):
        outcome = run(capsys, *words, "--allow-endpoint", name)
        assert outcome.code == 0, outcome.err
        assert outcome.err.partition("\n")[2] == (
            "notice: requests go to https://minio.lab:9000 (dataset.files.options.endpoint_url), "
            "signed with the key of AWS_ACCESS_KEY_ID\n"
        )
    outcome = run(capsys, *words, f"{OPTION}.anon=true")
    assert outcome.code == 0
    assert "without credentials" in outcome.err
    assert run(capsys, "--allow-endpoint", "https://minio.lab").code == 2


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "word", ["client_kwargs.verify=false", "use_ssl=false", "ssl=false", "client_kwargs.ssl=false"]
)
def test_connections_without_protection_are_warned_of_once(word, configs, capsys):
    words = ["dataset=image_folder", "dataset.root=s3://b/x", f"{OPTION}.{word}"]
    outcome = run(capsys, *words)
    assert f"\nWARNING: dataset.files.options.{word.replace('=f', '=F')}" in outcome.err
    outcome = run(capsys, "-m", *words, "seed=1,2", "hydra.sweep.dir=s")
    assert outcome.err.count("WARNING") == 1


def test_what_was_said_is_not_said_again_by_a_process_that_this_one_starts(monkeypatch):
    config = {"dataset": {"files": {"options": {"verify": False}}}}
    monkeypatch.delenv(endpoints.SAID, raising=False)
    assert len(list(endpoints.notices(config))) == 1
    assert list(endpoints.notices(config)) == []
    assert os.environ[endpoints.SAID], "which it gets with the environment"


WORDS = {
    "dataset.files.options.secret=abc": "dataset.files.options.secret=***",
    "++model.api_key='a b'": "++model.api_key=***",
    "a.token=123456": "a.token=***",
    "a.secret.inner=x": "a.secret.inner=***",
    "a.secret=x,y": "a.secret=***",
    "--password=x": "--password=***",
    "PGPASSWORD=x": "PGPASSWORD=***",
    "a={secret: x, n: 3}": "a={secret: ***, n: 3}",
    "a={'auth_token': 'x,}y', b: {key: [1, {c: d}], n: 3}}": (
        "a={'auth_token': ***, b: {key: ***, n: 3}}"
    ),
    "root=https://me:pw@host/x": "root=https://***@host/x",
    "root=s3://b/x?X-Amz-Signature=abc&n=1": "root=s3://b/x?X-Amz-Signature=***&n=1",
    "https://host/?access_token=abc": "https://host/?access_token=***",
    "hydra.job.env_set.AWS_SECRET_ACCESS_KEY=x": "hydra.job.env_set.AWS_SECRET_ACCESS_KEY=***",
    # and what is none
    "model.num_tokens=512000": "model.num_tokens=512000",
    "sampler.tokens=4096": "sampler.tokens=4096",
    "transform.train.tokenize.kind=words": "transform.train.tokenize.kind=words",
    "model.keypoints=abc": "model.keypoints=abc",
    "a.key=null": "a.key=null",
    "a.secret=${oc.env:NAME}": "a.secret=${oc.env:NAME}",
    "optimizer.lr=0.01": "optimizer.lr=0.01",
    "dataset.root=/data/secret/x": "dataset.root=/data/secret/x",
    "run.py": "run.py",
}


@pytest.mark.parametrize(("word", "written"), WORDS.items())
def test_words_of_a_command_line(word, written):
    assert disclosure.word(word) == written
    assert disclosure.word(written) == written
    assert disclosure.is_redacted(written) == (word != written)


def test_values_of_a_configuration():
    value = {
        "options": {"api_key": "abc", "anon": True, "secret": {"a": "x", "b": ["y", 1]}},
        "passwords": ["x", "y"],
        "num_tokens": 50000,
        "_target_": "secret.Token",
        "url": "https://u:p@h/?sig=1",
        "name": "plain",
    }
    assert disclosure.tree(value, {}) == {
        "options": {"api_key": "***", "anon": True, "secret": {"a": "***", "b": ["***", "***"]}},
        "passwords": ["***", "***"],
        "num_tokens": 50000,
        "_target_": "secret.Token",
        "url": "https://***@h/?sig=***",
        "name": "plain",
    }


def test_logging_is_left_as_it_was(configs, capsys):
    last = logging.lastResort
    assert run(capsys, "seed=1").code == 0
    assert logging.lastResort is last


def test_a_variable_in_a_url_does_not_hide_its_password(monkeypatch):
    monkeypatch.setitem(environment._read, "https:", "SCHEME")
    assert environment.unresolved("https://user:hidden@server") == "${oc.env:SCHEME}//***@server"


@pytest.mark.parametrize(("value", "shown"), [("p4ss", "${oc.env:CANARY}"), ("p4s", "p4s")])
def test_a_value_of_four_characters_is_hidden_in_messages(value, shown, monkeypatch):
    monkeypatch.setattr(environment, "_read", {})
    monkeypatch.setenv("CANARY", value)
    with environment.traced():
        assert OmegaConf.create({"key": "${oc.env:CANARY}"}).key == value
    assert environment.unresolved(f"got '{value}'") == f"got '{shown}'"


LONG = {
    "a word in a mapping": lambda: disclosure.words(["model.x={" + "a" * 300_000]),
    "words in a mapping": lambda: disclosure.words(["model.x={" + "a " * 100_000 + "}"]),
    "an address": lambda: disclosure.urls("://" + "a:" * 200_000),
    "a server": lambda: Endpoint("x", "s3" + "-a" * 100_000, anonymous=False).is_allowed,
    "a password": lambda: check_options({"proxy": "//" + ":" * 300_000}),
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts_take_no_time(name):
    """Each took minutes or years, by a pattern that tried each way to divide the text."""
    LONG[name]()


def test_secrets_in_mappings_are_hidden_however_they_are_written():
    words = ["a={b:{token:x},'secret':y,\"key\": z,tokens:3}", "a={x-key: 1234567}"]
    assert disclosure.words(words) == [
        "a={b:{token:***},'secret':***,\"key\": ***,tokens:***}",
        "a={x-key: ***}",
    ]


FOLDER = {"_target_": "penstock.datasets.image_folder.ImageFolder"}

# What a stranger's folder asks for: overrides, the same in a configuration, and what to type.
ASKS = {
    "code": (
        ["model._target_=stranger.Net"],
        {"model": {"_target_": "stranger.Net"}},
        "--trust PACKAGE",
    ),
    "server": (
        [
            "dataset=image_folder",
            "dataset.root=s3://b/x",
            f"{OPTION}.endpoint_url=https://stranger",
        ],
        {
            "dataset": {
                **FOLDER,
                "root": "s3://b/x",
                "files": {"options": {"endpoint_url": "https://stranger"}},
            }
        },
        "--allow-endpoint HOST",
    ),
    "variable": (
        ["dataset=image_folder", "dataset.root=https://stranger/${oc.env:CANARY}"],
        {"dataset": {**FOLDER, "root": "https://stranger/${oc.env:CANARY}"}},
        "--allow-env NAME",
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("door", ["resume", "run", "sweep"])
@pytest.mark.parametrize("kind", ASKS)
def test_no_folder_has_an_option_made_that_only_has_to_be_pasted(kind, door, tmp_path, capsys):
    words, nodes, way = ASKS[kind]
    (tmp_path / "manifest.json").write_text(json.dumps({"overrides": words, "sessions": []}))
    config = penstock.compose().written() | nodes
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    typed = {
        "resume": [f"resume={tmp_path}"],
        "run": ["task=where", "sample=0", f"run={tmp_path}"],
        "sweep": ["-m", f"resume={tmp_path}"],
    }
    if door == "sweep":
        store(tmp_path, StoredSweep(words=[*words, "seed=1,2"]))
    outcome = run(capsys, *typed[door])
    assert outcome.code == 2, outcome.err
    assert way in outcome.err
    assert not re.search("--(trust|allow-[a-z]+)[ =](stranger|CANARY)", outcome.err)
    if kind == "code":  # a person's own is told of
        assert "--trust stranger" in run(capsys, *words).err


@pytest.mark.parametrize(
    "key",
    [
        "collate.tokens",
        "dataset.tokens",
        "dataset.val.val_tokens[1]",
        "dataset.sources.web.tokens",
    ],
)
def test_tokens_of_texts_are_no_secrets(key):
    assert not disclosure.names_secret(key, "ids")
    assert disclosure.word(f"{key}=ids") == f"{key}=ids"


@pytest.mark.parametrize(
    "key",
    [
        "tokens",
        "tracker.tokens",
        "dataset.token",
        "dataset.api_tokens",
        "dataset.options.tokens",
        "dataset.files.options.tokens",
        "dataset.auth.tokens",
        "dataset.tokens.key",
    ],
)
def test_other_tokens_are(key):
    assert disclosure.names_secret(key, "ids")


def test_a_process_of_a_launcher_saves_what_others_give_omegaconf(tmp_path):
    """Lightning's loggers save dicts."""
    hydra_output.save_without_secrets()
    OmegaConf.save({"rate": [0.1], "password": "abc"}, tmp_path / "a.yaml")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text()) == {"rate": [0.1], "password": "***"}
