"""Every golden record against what the oracle says now; `dsa-verify golden update` accepts a change."""

from pathlib import Path

import pytest

from dsa_verify.golden import review, store
from dsa_verify.golden.snapshot import GoldenExtension
from dsa_verify.run.suite import DEFAULT_PROVIDERS

FOLDER = Path(__file__).parents[2] / "golden"
NAMES = review.wanted()

pytestmark = pytest.mark.golden


@pytest.fixture(scope="module")
def records():
    return {name: store.read(FOLDER, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES, ids="/".join)
def test_record_is_what_the_code_computes(name, snapshot):
    assert review.compute(name) == snapshot.with_defaults(extension_class=GoldenExtension)(
        name=str(store.path_of(FOLDER, name))
    )


def test_no_record_is_missing_and_none_is_left_over(records):
    assert not [name for name, record in records.items() if record is None]
    assert not store.strays(FOLDER, NAMES)


def test_every_record_has_the_metrics_of_the_default_providers(records):
    assert not [name for name, record in records.items() if not set(DEFAULT_PROVIDERS) <= set(record["providers"])]


def test_records_fit_their_budget():
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert max(sizes.values()) <= store.LARGEST
    assert sum(sizes.values()) <= store.LARGEST_FOLDER


def test_a_change_of_any_element_by_its_budget_is_above_the_noise(records):
    """The premise of the guarantee in `dsa_verify.golden.fingerprint`, for every output of every record."""
    outputs = [(name, key, out) for name, record in records.items() for key, out in record.get("outputs", {}).items()]
    assert outputs
    judged = [(name, key, out) for name, key, out in outputs if out["least_budget"] is not None]
    assert len(judged) > 0.9 * len(outputs)  # the rest are steps of padding alone
    assert not [(name, key) for name, key, out in judged if 2 * out["tolerance"] >= out["least_budget"]]


def test_selections_do_not_hang_on_the_last_bits_of_a_score(records):
    """float64 sums differ between machines by parts in 1e-14 of the magnitude; a cut closer than 1e-9 could flip."""
    margins = {name: record["margin"] for name, record in records.items() if record.get("margin") is not None}
    assert margins
    assert min(margins.values()) > 1e-9, min(margins, key=margins.get)
