"""Compiled programs stay on disk: nothing in them differs from process to process."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_second_process_takes_a_program_from_disk(tmp_path):
    """Two programs: one for every layout of the arguments."""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("at_cached.py")
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, timeout=300)
        assert not done.returncode, done.stderr
        found.append(json.loads(done.stdout))
    assert found == [{"hit": 0, "miss": 2}, {"hit": 2, "miss": 0}]
