"""Shards on a real Ray cluster of two workers, one of which is killed."""

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

import psutil
import pytest

from cosent.cli import parse
from cosent.data.files import table_writer
from cosent.encode import EncodeArguments, main
from cosent.errors import InputError
from cosent.inference.ray_encode import encode_on_ray


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster on this machine, which ends with the test."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 by default: on a busy machine workers hardly start
    ray = pytest.importorskip("ray")
    before = set(psutil.Process().children(recursive=True))
    folder = tempfile.mkdtemp(prefix="ray")  # short: sockets lie below it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder, object_store_memory=100 << 20)
    yield
    ray.shutdown()
    left = set(psutil.Process().children(recursive=True)) - before
    shutil.rmtree(folder, ignore_errors=True)
    assert not psutil.wait_procs(left, timeout=20)[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_ray_writes_the_bytes_of_a_local_run_though_a_worker_is_killed(tiny_model, tmp_path, cluster):
    """Fails if a vector differs in a bit from that of `cosent encode`, or a killed worker's shard is lost or torn."""
    for number, rows in enumerate((30, 4_200, 40, 50)):
        with table_writer(tmp_path / f"part-{number}.parquet", ("id", "question")) as write:
            write([{"id": row, "question": f"第{number}{row}个问题怎么还款"} for row in range(rows)])
    inputs = str(tmp_path / "part-*.parquet")
    words = ["--model", str(tiny_model), "--text", inputs, "--output", str(tmp_path / "local"), "--device", "cpu"]
    main(*parse([*words, "--text_column", "question", "--keep", "id", "--normalize"], EncodeArguments))

    killed = []

    def kill_writer_of_the_large_shard():
        end = time.monotonic() + 120
        while not killed and time.monotonic() < end:
            for partial in (tmp_path / "ray").glob("part-1.npy.*.partial"):
                killed.append(int(re.findall(r"-(\d+)-\w{8}\.partial$", partial.name)[0]))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.002)

    watcher = threading.Thread(target=kill_writer_of_the_large_shard)
    watcher.start()
    options = {"text_column": "question", "kept": ("id",), "normalize": True}
    shards = encode_on_ray(str(tiny_model), [inputs], tmp_path / "ray", workers=2, **options)
    watcher.join()
    assert killed and killed[0] != os.getpid() and not psutil.pid_exists(killed[0])
    assert [(shard.rows, shard.truncated) for shard in shards] == [(30, 0), (4_200, 0), (40, 0), (50, 0)]
    local, ours = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("local", "ray"))
    assert len(local) == 12 and ours.keys() == local.keys()
    parquet = {name for name in local if name.endswith(".parquet")}
    assert [name for name in local if ours[name] != local[name] and name not in parquet] == []


def test_without_ray_the_command_to_install_it_is_named(tiny_model, tmp_path, monkeypatch):
    """Fails if a missing extra ends in a stack trace."""
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(InputError, match=r"pip install 'cosent\[ray\]'"):
        encode_on_ray(str(tiny_model), ["part-*"], tmp_path / "ray", workers=2)
