"""Records for the tests of the report, each made once."""

import pytest
from report_sample import make_record

from quadform.core.record import Record


@pytest.fixture(scope="session")
def record() -> Record:
    """8 tokens of width 8, softmax, 192 parameters, with a sweep into saturation."""
    return make_record()


@pytest.fixture(scope="session")
def variants() -> dict[str, Record]:
    """The corners: over 256 parameters and no sweep, no softmax, one token of width one, saturated, small inputs."""
    return {
        "large": make_record(tokens=3, dim=10, vary=None),
        "linear": make_record(tokens=4, dim=4, attention="linear", vary=(0.01, 3.0, 7)),
        "one": make_record(tokens=1, dim=1, vary=(0.01, 1.0, 5)),
        "saturated": make_record(tokens=4, dim=4, scale=25.0, vary=(0.01, 60.0, 9)),
        "small": make_record(tokens=4, dim=4, scale=0.03, vary=(0.01, 0.3, 7)),
    }
