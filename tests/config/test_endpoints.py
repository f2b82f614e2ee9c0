"""Servers that options name: which are found, which are allowed, and the announcements."""

import pytest

from penstock.config import endpoints
from penstock.config.endpoints import Endpoint, check, check_allowed, found, notices

AWS = "https://s3.amazonaws.com"
NONE = ("", "", "")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (endpoints.VARIABLE, endpoints.SAID, "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


@pytest.mark.parametrize(
    ("text", "server", "provider", "allowed", "way"),
    [
        (AWS, ("https", "s3.amazonaws.com", ""), True, True, "s3.amazonaws.com"),
        (f"{AWS}:443/b", ("https", "s3.amazonaws.com", "443"), True, True, "s3.amazonaws.com:443"),
        (f"{AWS}:8443", ("https", "s3.amazonaws.com", "8443"), False, False, None),
        ("http://s3.amazonaws.com", ("http", "s3.amazonaws.com", ""), False, False, None),
        ("https://s3.compute.amazonaws.com", None, False, False, None),
        ("A.b", ("", "a.b", ""), False, False, "a.b"),
        ("https://a.b:9/c", ("https", "a.b", "9"), False, False, "a.b:9"),
        ("https://a@b", NONE, False, False, ""),
        ("localhost:9", ("", "localhost", "9"), False, True, None),
        ("http://127.0.0.2", None, False, True, None),
        ("http://[::1]:9", ("http", "[::1]", "9"), False, True, None),
        ("http://128.0.0.1", None, False, False, None),
        ("a" * 300, ("", "a" * 300, ""), False, False, None),
        ("a" * 301, NONE, False, False, ""),
    ],
)
def test_servers(text, server, provider, allowed, way):
    endpoint = Endpoint("x", text, anonymous=False)
    assert server is None or endpoint.server == server
    assert (endpoint.is_providers, endpoint.is_allowed) == (provider, allowed)
    assert way is None or endpoint.way == (way and f"--allow-endpoint {way}")
    assert Endpoint("x", text, anonymous=True).is_allowed


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        ("a.b", ["a.b", "A.b:9", "https://a.b/c"]),
        ("c, a.b:9", ["a.b:9"]),
        (" A.B ", ["a.b"]),
        ("", []),
        ("b", []),
    ],
)
def test_servers_that_the_command_line_allows(names, allowed, monkeypatch):
    monkeypatch.setenv(endpoints.VARIABLE, names)
    texts = ["a.b", "A.b:9", "https://a.b/c", "a.b:9", "a.b:8", "a@b"]
    passed = {text for text in texts if Endpoint("x", text, anonymous=False).is_allowed}
    assert passed >= set(allowed)
    assert names or not passed
    assert "a@b" not in passed
    assert ("a.b:8" in passed) == (names.strip().lower() == "a.b")


def test_names_that_may_be_allowed():
    assert check_allowed(["a.b", "a.b:9", "[::1]", "[::1]:9"]) == []
    problems = check_allowed(["https://a.b", "a.b", "a b"])
    assert [str(problem.message) for problem in problems] == [
        "'https://a.b' is not a server; give HOST or HOST:PORT",
        "'a b' is not a server; give HOST or HOST:PORT",
    ]


URL = {"endpoint_url": "https://a"}


@pytest.mark.parametrize(
    ("config", "servers"),
    [
        ({"root": "https://a"}, []),
        ({"options": {"x": 3, "y": "b", "endpoint": ""}}, []),
        ({"options": URL}, [("options.endpoint_url", False)]),
        ({"d": {"options": {**URL, "anon": True}}}, [("d.options.endpoint_url", True)]),
        ({"d": {"options": {**URL, "anon": 1}}}, [("d.options.endpoint_url", False)]),
        ({"options": {"a": {**URL, "anon": True}}}, [("options.a.endpoint_url", False)]),
        ({"anon": True, "options": URL}, [("options.endpoint_url", False)]),
        ({"d": {"options": {"a": [{"b": "x://y"}]}}}, [("d.options.a[0].b", False)]),
        ({"d": {"options": {"proxies": {"b": "y"}}}}, [("d.options.proxies.b", False)]),
        ({"d": {"client_kwargs": {"host": "y"}}}, [("d.client_kwargs.host", False)]),
        ({"d": {"hosts": {"options": {"b": "y"}}}}, []),
        ({"url": {"options": {"b": "y"}}}, []),
        ({"d": {"url": {"options": {"b": "y"}}}}, []),
        ({"d": {"_target_": "x.Files", "_args_": [{"url": "y"}]}}, [("d._args_[0].url", False)]),
        (
            {"d": {"_target_": "x.Files", "_args_": [{"url": "y", "anon": True}]}},
            [("d._args_[0].url", True)],
        ),
        ({"d": {"_target_": "x.Other", "_args_": [{"url": "y"}]}}, []),
        ({"d": {"_target_": "x.Files", "args": [{"url": "y"}]}}, []),
        ({"options": {"_target_": "x", "anon": True, **URL}}, [("options.endpoint_url", False)]),
    ],
)
def test_servers_that_options_name(config, servers):
    assert [(one.key, one.anonymous) for one in found(config)] == servers


def test_servers_that_are_refused():
    config = {"a": {"options": {"url": "b.c"}}, "b": {"options": {"url": "a@b"}}}
    first, second = check(config | {"c": {"options": {"url": "localhost"}}})
    assert first.key == "a.options.url"
    assert "is right, --allow-endpoint b.c; public data: anon: true beside it" in first.message
    assert "with your credentials, to 'a@b', which is not the provider's" in second.message
    assert "is right; public data" in second.message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "b.c"}, "notice: requests go to b.c (d.options.url), signed with whatever"),
        ({"url": "b.c", "anon": True}, "notice: requests go to b.c (d.options.url), without"),
        ({"url": AWS}, None),
        ({"verify": False}, "WARNING: d.options.verify=False turns off the protection"),
        ({"verify": "off"}, "WARNING: d.options.verify=off turns off"),
        ({"verify": 0}, "WARNING: d.options.verify=0 turns off"),
        ({"ssl": [False]}, "WARNING: d.options.ssl[0]=False turns off"),
        ({"other": False}, None),
        ({"verify": True}, None),
        ({"verify": "true"}, None),
        ({"verify": "1"}, None),
        ({"verify": None}, None),
        ({"verify": "ca.pem"}, "WARNING: d.options.verify: certificates are checked against ca"),
        ({"other": "ca.pem"}, None),
        ({"trust_env": True}, "notice: d.options.trust_env: proxies and ~/.netrc"),
        ({"trust_env": False}, None),
        ({"other": True}, None),
    ],
)
def test_announcements(options, text):
    said = list(notices({"d": {"options": options}}))
    assert len(said) == (text is not None)
    assert not said or said[0].startswith(text)


def test_credentials_that_are_used(monkeypatch):
    (said,) = notices({"d": {"options": {"url": "b.c"}}})
    assert said.endswith("signed with whatever credentials ~/.aws or gcloud hold")
    monkeypatch.setenv("AWS_PROFILE", "x")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "x")
    (said,) = notices({"d": {"options": {"url": "b.c"}}})
    assert said.endswith("AWS_PROFILE's or those of GOOGLE_APPLICATION_CREDENTIALS")
    assert list(notices({"d": {"options": {"url": "b.c"}}})) == [], "it was said"
