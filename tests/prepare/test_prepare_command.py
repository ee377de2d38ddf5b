from __future__ import annotations

import inspect

import pytest

from lit_kvpred import prepare as package
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.prepare import prepare_command
from lit_kvpred.prepare.demo import DEMO_SIZES


@pytest.fixture
def calls(monkeypatch) -> list:
    made = []
    for name in ("prepare", "prepare_demo", "prepare_packaged"):
        signature = inspect.signature(getattr(package, name))

        def record(*arguments, _name=name, _signature=signature, **options):
            made.append((_name, _signature.bind(*arguments, **options).arguments))

        monkeypatch.setattr(package, name, record)
    return made


def test_demo(calls):
    prepare_command("demo", "out")
    prepare_command("demo-small", "out", steps=3)
    demo, small = DEMO_SIZES["demo"], DEMO_SIZES["demo-small"]
    assert calls == [
        ("prepare_demo", {"out": "out", "steps": package.DEFAULT_STEPS, "size": demo}),
        ("prepare_demo", {"out": "out", "steps": 3, "size": small}),
    ]


def test_packaged_name(calls):
    prepare_command("smollm2-135m", "out", dtype="bfloat16")
    assert calls == [
        ("prepare_packaged", {"name": "smollm2-135m", "out": "out", "dtype": "bfloat16"})
    ]


@pytest.mark.parametrize("source", ["./demo", "owner/name", "file.gguf"])
def test_everything_else_is_converted(calls, source):
    prepare_command(source, "out", revision="v1")
    expected = {"source": source, "out": "out", "dtype": "float32", "revision": "v1"}
    assert calls == [("prepare", expected)]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("owner/name", {"steps": 3}, "steps is for the demos only"),
        ("smollm2-135m", {"steps": 3}, "steps is for the demos only"),
        ("demo", {"revision": "v1"}, "demo has no revisions"),
        ("smollm2-135m", {"revision": "v1"}, "smollm2-135m has no revisions"),
        ("demo", {"dtype": "bfloat16"}, "made in float32"),
    ],
)
def test_options_that_would_be_ignored_are_refused(calls, source, options, message):
    with pytest.raises(ConfigurationError, match=message):
        prepare_command(source, "out", **options)
    assert calls == []
