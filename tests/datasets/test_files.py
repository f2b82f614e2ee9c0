"""Files at paths of this machine; `tests/stores` has addresses."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import compose
from penstock.datasets.files import FileInfo, Files, parse_size
from penstock.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GB", 20 * 10**9), ("1.5 kb", 1500), ("2MiB", 2**21), (77, 77), ("77", 77), ("1t", 10**12)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "1 XB", "1e9", "i", "5ib"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match=r"cache_size: .* allowed: a size such as 20GB"):
        Files(cache_size=text)


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
        with files.open(address) as file:
            assert file.read() == b"here"
        assert files.local(address).samefile(tmp_path / "a/x")
    assert files.list("a") == [FileInfo("x", 4, "")]
    assert not (tmp_path / "cache").exists()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        files.open("a/none")
    with pytest.raises(DataError, match="'none' is not a folder"):
        files.list("none")


def test_paths_of_this_machine_need_nothing_of_fsspec(tmp_path):
    (tmp_path / "x").write_bytes(b"here")
    code = (
        "import sys\n"
        "from penstock.datasets.files import Files\n"
        "from penstock.datasets.reading.folder import open_root\n"
        f"open_root({str(tmp_path)!r}, 'x').read('x', lambda path, _: open(path)).close()\n"
        f"Files().open({str(tmp_path / 'x')!r}).close()\n"
        "assert not [name for name in sys.modules if name.startswith('penstock.addons')]\n"
        "new = {name.split('.')[0] for name in sys.modules}\n"
        "assert not new & {'torch', 'fsspec', 's3fs', 'aiohttp', 'botocore', 'asyncio'}, new\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
