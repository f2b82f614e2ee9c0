"""Files at paths of this machine; `tests/stores` has addresses."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import compose
from penstock.datasets.files import Files, open_root
from penstock.errors import ConfigError, DataError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GB", 20 * 10**9), ("1.5 kb", 1500), ("2MiB", 2**21), (77, 77), ("77", 77), ("1t", 10**12)],
)
def test_sizes(text, size):
    compose(f"files.cache_size={text}")
    assert Files(cache_size=text).cache_size == size


@pytest.mark.parametrize("text", ["GB", "-1", "0", "1 XB", "i", "5ib"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match=r"files\.cache_size: "):
        compose(f"files.cache_size={text}")


@pytest.mark.parametrize("name", ["retries", "first_wait", "timeout", "concurrency"])
def test_what_is_no_patience_is_refused(name):
    with pytest.raises(ConfigError, match=f"files.{name}: .*got -1"):
        compose(f"files.{name}=-1")


def test_paths_of_this_machine_are_read_where_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"here")
    (tmp_path / "a/.hidden").write_bytes(b"")
    files = Files(str(tmp_path / "cache"))
    for address in (str(tmp_path / "a/x"), "a/x", f"file://{tmp_path}/a/x"):
        assert files.read(address, lambda path: Path(path).read_bytes()) == b"here"
        assert files.local(address).samefile(tmp_path / "a/x")
    root = open_root("a", "x")
    assert (root.files(), root.sizes(["x"]).tolist()) == (["x"], [4])
    assert not (tmp_path / "cache").exists()
    for name, wrong in (("none", "is missing"), ("a/x", "is not a folder")):
        with pytest.raises(DataError, match=rf"dataset\.root: '.*{name}' {wrong}"):
            open_root(name, "x")


def test_links_are_followed_and_loops_end(tmp_path):
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "elsewhere/deep/a").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/deep/back").symlink_to(tmp_path / "root")
    (tmp_path / "root/up").symlink_to(tmp_path)
    assert open_root(str(tmp_path / "root"), "a").files() == ["link/deep/a"]


def test_paths_of_this_machine_need_nothing_of_stores(tmp_path):
    (tmp_path / "x").write_bytes(b"here")
    code = (
        "import sys\n"
        "from penstock.datasets.files import Files\n"
        "from penstock.datasets.files import open_root\n"
        f"open_root({str(tmp_path)!r}, 'x').read('x', lambda path, _: open(path)).close()\n"
        f"Files().read({str(tmp_path / 'x')!r}, lambda path: open(path)).close()\n"
        "assert not [name for name in sys.modules if name.startswith('penstock.addons')]\n"
        "new = {name.split('.')[0] for name in sys.modules}\n"
        "assert not new & {'torch', 'obstore', 'boto3', 'botocore', 'asyncio'}, new\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
