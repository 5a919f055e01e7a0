"""All errors are listed in one module, and each names the way out."""

import pickle
import re

from conformance.findings import errors
from reference import ConformanceError
from tests import command


def test_every_error_is_listed_with_the_step_that_raises_it() -> None:
    folders = [command.ROOT / name for name in ("adapters", "conformance", "reference")]
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    defined = {
        name for text in texts for name in re.findall(r"^class ([A-Z]\w*Error)\(", text, re.M)
    }

    assert defined == set(re.findall(r"(\w+Error)`", errors.__doc__ or ""))


def test_a_message_ends_with_the_way_out_also_of_an_error_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(ConformanceError("mode 'x' is unknown", "choose y")))

    assert (str(error), error.hint) == ("mode 'x' is unknown; choose y", "choose y")
