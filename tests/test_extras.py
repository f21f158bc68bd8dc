"""Optional packages: the library needs none of them, and what needs one says so in one sentence, exit code 4."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quadform.core.errors import EXTRAS, MissingExtra, needing

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Packages whose import name is not that of the distribution.
IMPORTED = {"vl-convert-python": "vl_convert", "pytorch-optimizer": "pytorch_optimizer"}

#: Imports torch, and nothing of quadform, where no package of the first line of stdin is found; then forks a child for
#: every other line, (packages, code, files for stdout and stderr), that finds all but those. It answers its exit code.
SERVER = """
import json, os, sys, traceback
from importlib.machinery import PathFinder

class Others(PathFinder):
    hidden = json.loads(sys.stdin.readline())

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Others if finder is PathFinder else finder for finder in sys.meta_path]
import torch
import torch.func, torch.nn.attention, torch.utils.flop_counter
torch.set_num_threads(1)
held = {name.partition(".")[0] for name in sys.modules} & {*Others.hidden, "quadform"}
assert not held, held

for line in sys.stdin:
    Others.hidden, code, *files = json.loads(line)
    child = os.fork()
    if not child:
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        left = 0
        try:
            exec(code, {"__name__": "__main__", "sys": sys})
        except SystemExit as leaving:
            left = leaving.code
        except BaseException:
            traceback.print_exc()
            left = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
#: What the library does without.
OTHERS = ["jaxtyping", "pandas", "hypothesis", "pytest"]
#: What is asked without the package, as words of the command line or as Python, and what is said to need it.
ASKED: dict[str, tuple[list[str] | str, str]] = {
    "tyro": (["attention"], "This command"),
    "rich": (["ls", "designs"], "This command"),
    "altair": (["report", "--out", "FOLDER/out"], "A figure"),
    "vl_convert": (["reproduce", "growth", "--out", "FOLDER"], "A figure"),
    "jinja2": (["report", "--out", "FOLDER/out"], "A figure"),
    "starlette": (["explore", "--no-open"], "The live page"),
    "uvicorn": (["explore", "--no-open"], "The live page"),
    "websockets": (["explore", "--no-open"], "The live page"),
    "transformers": (["spectrum", "FOLDER"], "Reading Hugging Face models"),
    "gguf": ("from quadform.corpora import zoo; zoo.dequantised(FOLDER, 1, 1)", "Dequantising SmolLM2"),
    "tokenizers": ("from quadform.nn.tokens import PieceTokenizer as P; P.train(['a'], 300)", "A sub-word tokenizer"),
    "sacrebleu": ("import quadform as qf; qf.train.score_translations(['a'], ['a'], 'de')", "BLEU and chrF"),
    "pytorch_optimizer": (
        ["reproduce", "optimizers", "--preset", "smoke", "--out", "FOLDER"],
        "Shampoo, SOAP and PSGD",
    ),
    "triton": (
        "import torch; from quadform.kernels import attention, using\n"
        "with using('triton'): attention(*[torch.zeros(1, 1, 2, 4)] * 3)",
        "Triton attention",
    ),
}


Without = Callable[[list[str], str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Without]:
    """Run code in a process that has imported torch alone and does not find the packages."""
    folder = tmp_path_factory.mktemp("without")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], **pipes) as server:

        def ask(*words: object) -> None:
            server.stdin.write(json.dumps(words[0] if len(words) == 1 else words) + "\n")
            server.stdin.flush()

        def run(packages: list[str], code: str) -> subprocess.CompletedProcess[str]:
            out, err = (Path(tempfile.mkstemp(dir=folder)[1]) for _ in range(2))
            ask(packages, code, str(out), str(err))
            answer = server.stdout.readline()
            assert answer, "the server has ended"
            return subprocess.CompletedProcess(code, int(answer), out.read_text(), err.read_text())

        ask([*EXTRAS, *OTHERS])
        yield run
        server.stdin.close()
        assert server.wait(timeout=60) == 0


def test_the_table_is_that_of_pyproject() -> None:
    """Every package of an extra is in the table under that extra, and nothing else is."""
    extras = {
        IMPORTED.get(name, name): extra
        for extra, packages in PROJECT["optional-dependencies"].items()
        for name in re.findall(r"^[\w-]+(?=[>=])", "\n".join(packages), re.M)
        if extra not in ("dev", "docs")
    }
    assert extras == EXTRAS
    assert ASKED.keys() == EXTRAS.keys()


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_told_in_one_line(package: str, without: Without, tmp_path: Path) -> None:
    """`WHAT needs PACKAGE: pip install 'quadform[EXTRA]'`, exit code 4, no traceback, nothing measured before."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    asked, what = ASKED[package]
    if isinstance(asked, str):
        body = "\n    ".join(asked.replace("FOLDER", repr(str(tmp_path))).splitlines())
        code = (
            f"try:\n    {body}\nexcept Exception as error:\n"
            "    print('quadform: ' + str(error), file=sys.stderr)\n    sys.exit(getattr(error, 'exit_code', 1))"
        )
    else:
        words = [word.replace("FOLDER", str(tmp_path)) for word in asked]
        code = f"from quadform.cli import main\nsys.exit(main({words!r}))"
    done = without([package], code)
    assert done.stderr == f"quadform: {what} needs {package}: pip install 'quadform[{EXTRAS[package]}]'\n"
    assert (done.returncode, done.stdout) == (4, "")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_the_library_needs_no_extra(without: Without) -> None:
    """With every optional package hidden: a Hessian product, eigenvalues and a spectrum in Python."""
    code = """
import quadform as qf, torch
model, x = torch.nn.Linear(3, 2), torch.randn(5, 3)
risk = qf.Risk(model, lambda out, batch: out.square().mean(), x)
assert float(qf.estimate.eigenpairs(qf.hessian(risk), 1).values[0]) > 0
print(qf.spectrum(model, [x], loss=lambda out, batch: out.square().mean(), top=1, blocks="all"))
"""
    done = without([*EXTRAS, *OTHERS], code)
    assert done.returncode == 0, done.stderr


def test_other_missing_modules_are_not_called_an_extra() -> None:
    """Only packages of the table are translated."""
    with pytest.raises(ModuleNotFoundError) as caught, needing("Nothing"):
        import no_such_module_anywhere  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtra)
