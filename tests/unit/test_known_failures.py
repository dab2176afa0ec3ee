"""Known failures are forgiven, never hidden, and refused when they are gone or misspelt."""

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Result, Verdict
from dsa_verify.run import known_failures

ENTRY = """
provider = "theirs"

[[failure]]
id = "dense_mla/decode-*/races"
reason = "reads one row past its buffer"
smallest = "two decodes, kv_len 128 and 192"
when = "interpret"
"""


def result(check="races", status="rejected", scenario="decode-one-d16-bf16", provider="theirs", **more):
    return Result(provider, "dense_mla", scenario, check, Verdict(status, "row 98 of 98"), **more)


@pytest.fixture
def entries():
    return known_failures.parse(ENTRY, "theirs.toml")


def test_rejection_that_matches_is_not_verified_and_keeps_what_was_found(entries):
    (forgiven,) = known_failures.forgive([result()], entries)
    assert forgiven.verdict == Verdict.not_verified("known failure: reads one row past its buffer")
    assert (forgiven.known, forgiven.found) == (entries[0], "row 98 of 98")


@pytest.mark.parametrize(
    "other",
    [
        result(check="parity"),
        result(scenario="single-extend-p16-f32"),
        result(provider="ours"),
        result(status="accepted"),
        result(broke="Traceback"),
    ],
)
def test_any_other_result_stays_as_it_is(entries, other):
    assert known_failures.forgive([other], entries) == [other]


def test_entry_is_stale_when_its_cases_ran_and_none_failed(entries):
    entry = entries[0]
    fine, failing = result(status="accepted"), result(scenario="decode-page-edges-d16-bf16")
    assert known_failures.tally([fine], entries) == {entry: False}
    assert known_failures.tally([fine, failing], entries) == {entry: True}
    assert known_failures.tally([result(check="parity"), result(status="not verified")], entries) == {}
    assert "stale known failure of theirs: dense_mla/decode-*/races" in known_failures.stale_message(entry)


def test_each_id_of_a_list_goes_stale_by_itself():
    text = ENTRY.replace('"dense_mla/decode-*/races"', '["dense_mla/decode-*/races", "dense_mla/single-*/races"]')
    both = known_failures.parse(text, "theirs.toml")
    assert [entry.reason for entry in both] == ["reads one row past its buffer"] * 2
    seen = known_failures.tally([result(), result(scenario="single-extend-p16-f32", status="accepted")], both)
    assert list(seen.values()) == [True, False]


def test_entry_of_interpret_mode_means_nothing_on_a_device(entries):
    assert known_failures.applicable(entries, native=False) == tuple(entries)
    assert known_failures.applicable(entries, native=True) == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[failure]]", "[[failure", "is not TOML"),
        ("[[failure]]", "[[failures]]", "found failures"),
        ("dense_mla/decode-*/races", "dense_mla/races", "not of the form surface/scenario-glob/check"),
        ("dense_mla/", "dense_mal/", "unknown surface 'dense_mal'. Did you mean 'dense_mla'"),
        ("/races", "/race", "unknown check 'race'. Did you mean 'races'"),
        ("decode-*", "decoed-*", "no scenario matches 'decoed-"),
        ('"interpret"', '"on tuesdays"', "unknown when 'on tuesdays'"),
        ("reason", "raeson", "lacks reason"),
        ("when", "whenever", "unknown key 'whenever'"),
        ('"reads one row past its buffer"', "7", "expected a table of strings"),
    ],
)
def test_file_that_does_not_parse_is_one_clear_error(old, new, message):
    with pytest.raises(ConfigError, match=message) as caught:
        known_failures.parse(ENTRY.replace(old, new), "theirs.toml")
    assert "theirs.toml" in str(caught.value)


def test_file_shipped_for_one_provider_may_not_speak_for_another():
    with pytest.raises(ConfigError, match="is for provider 'theirs', expected 'jnp'"):
        known_failures.parse(ENTRY, "jnp.toml", "jnp")


def test_shipped_files_parse_and_a_users_file_is_added(tmp_path):
    from dsa_verify.kernels.providers import provider_names

    shipped = known_failures.load(provider_names())
    file = tmp_path / "mine.toml"
    file.write_text(ENTRY)
    assert len(known_failures.load(provider_names(), file)) == len(shipped) + 1
    with pytest.raises(ConfigError, match="cannot read"):
        known_failures.load([], tmp_path / "absent.toml")
