"""Keys that name secrets, and values, addresses and words as they may be written down."""

import re

import pytest

from penstock.config import disclosure
from penstock.config.disclosure import Origin, names_secret, tree, urls, word


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("a.password", "x", True),
        ("a.password", False, False),
        ("a.password", None, False),
        ("a.password", "NULL", False),
        ("a.password", "''", False),
        ("a.password", 12, True),
        ("a.secret.inner", "x", True),
        ("a[secret].x", "x", True),
        ("a.my_pass", "x", True),
        ("a.compass", "x", False),
        ("a.key", "x", True),
        ("a[key]", "x", True),
        ("a.key.inner", "x", False),
        ("a.key", "12345", False),
        ("a.key", "123456", True),
        ("a.key", "-1e+3", False),
        ("a.key", "1-e3", True),
        ("a.num_key", "123456", False),
        ("a.num_key", "x", True),
        ("a.keys", 123456, False),
        ("a.keys", "x", True),
        ("a.keyword", "x", False),
        ("a.author", "x", False),
        ("a.authorization", "x", True),
        ("a.my_pat", "x", True),
        ("a.path", "x", False),
    ],
)
def test_keys_that_name_secrets(key, value, secret):
    assert names_secret(key, value) == secret


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"password": "${oc.env:NAME}"}, {"password": "${oc.env:NAME}"}),
        ({"password": "${oc.env:NAME,x}"}, {"password": "***"}),
        ({"password": 123456, "n": 3.5}, {"password": "***", "n": 3.5}),
        ({"key": {"_target_": "a.key"}}, {"key": {"_target_": "a.key"}}),
        ({"a": {"password._target_": "x"}}, {"a": {"password._target_": "x"}}),
        ({"names": ["x", "s3://a:b@c"]}, {"names": ["x", "s3://***@c"]}),
        ({"keys": ["x", {"a": "y"}, ["z"]]}, {"keys": ["***", {"a": "y"}, ["z"]]}),
        ({"keys": ("x", {"key": "y"})}, {"keys": ["***", {"key": "***"}]}),
    ],
)
def test_values_that_are_written_down(value, written):
    assert tree(value, {}) == written


@pytest.mark.parametrize(
    ("key", "text", "value", "written"),
    [
        ("b", "${oc.env:X}/b", "x/b", "${oc.env:X}/b"),
        ("b", "${oc.env:X}/b", "changed", "x/b"),
        ("b", "s3://u:p@h/${oc.env:X}", "x/b", "s3://***@h/${oc.env:X}"),
        ("key", "${oc.env:X}", "x/b", "${oc.env:X}"),
        ("key", "${oc.env:X,y}", "x/b", "***"),
        ("key", "${oc.env:X}", "changed", "***"),
    ],
)
def test_values_of_the_environment_are_written_as_they_were(key, text, value, written):
    config, origins = {"a": {key: "x/b"}}, {f"a.{key}": Origin(text, ("X",), value)}
    assert tree(config, origins) == {"a": {key: written}}


def test_hidden_values_that_changed_are_noticed():
    def marked(value):
        return tree({"key": value, "n": value}, {}, digests=True)["key"]

    assert re.fullmatch(r"\*{3} #[0-9a-f]{4}", marked("x"))
    assert marked("x") == marked("x") != marked("y")
    assert tree({"n": "x"}, {}, digests=True) == {"n": "x"}
    known = {"n": Origin("${oc.env:X}", ("X",), "x")}
    assert re.fullmatch(r"\$\{oc.env:X\} #[0-9a-f]{4}", tree({"n": "x"}, known, True)["n"])


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a?token=x", "a?token=x"),
        ("s3://b?token=x", "s3://b?token=***"),
        ("s3://b?x-goog-a=1&sig=2;code=3&x=4", "s3://b?x-goog-a=***&sig=***;code=***&x=4"),
        ("s3://b?signed=1&key=12345&key=123456", "s3://b?signed=1&key=12345&key=***"),
        ("see s3://a:b@c and s3://d@e/f@g", "see s3://***@c and s3://***@e/f@g"),
    ],
)
def test_addresses(text, written):
    assert urls(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("say password=x", "say password=x"),
        ("a/password=x", "a/password=x"),
        ("~password='${oc.env:X}'", "~password='${oc.env:X}'"),
        ("password='${oc.env:X,y}'", "password=***"),
        ("a={key: {key: x}, n: y}", "a={key: ***, n: y}"),
        ("a={key: null, secret: true, n: y}", "a={key: null, secret: true, n: y}"),
        (r"a={key: 'x\'},y', n: z}", "a={key: ***, n: z}"),
        ('a={key: "x\'},y", n: z}', "a={key: ***, n: z}"),
        ("a={key: [x, {y: z}], n: y}", "a={key: ***, n: y}"),
        ("a={key: f(x, y), n: y}", "a={key: ***, n: y}"),
        ("a=f({key: x})", "a=f({key: ***})"),
        ("a={key: x", "a={key: ***"),
        ("a={n: y, url: 's3://b:c@d'}", "a={n: y, url: 's3://***@d'}"),
        ("a=[key: x]", "a=[key: x]"),
    ],
)
def test_words_with_entries(text, written):
    assert word(text) == written
    assert disclosure.words([text, "b"]) == [written, "b"]
