"""Tokens that are known only at run time do not reach Airflow's logs, and hiding them does not pile up."""

from __future__ import annotations

import secrets

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_provider_multikueue import masking
from airflow_provider_multikueue._compat import AIRFLOW_2
from airflow_provider_multikueue.masking import mask_tokens


class Holder:
    """Stands for a connection to a cluster."""


def hidden(text: str) -> bool:
    """Return whether nothing of use is logged of a token."""
    return not usable(text, str(redact(text)))


def patterns() -> int:
    """Return how many texts Airflow's masker searches each line for."""
    if AIRFLOW_2:
        from airflow.utils.log.secrets_masker import _secrets_masker
    else:
        from airflow.sdk._shared.secrets_masker import _secrets_masker

    return len(_secrets_masker().patterns)


def usable(secret: str, logged: str) -> bool:
    """Return whether a log holds so much of a secret that the rest could be guessed."""
    return secret in logged or secret[: -masking.HIDDEN + 8] + secret[-masking.HIDDEN + 8 :] in logged


@pytest.mark.parametrize(
    "secret",
    [
        secrets.token_urlsafe(900),
        "ya29.c." + secrets.token_urlsafe(300) + "." * 200,
        "pass-" + secrets.token_hex(4),
        "x" * 8 + secrets.token_urlsafe(60) + "==",
    ],
    ids=["long", "of Google", "short", "padded"],
)
async def test_what_a_log_shows_of_a_token_is_worth_nothing(secret):
    await mask_tokens([secret], Holder())
    shown = str(redact(f"sent {secret} to the server"))
    assert not usable(secret, shown)
    assert "sent " in shown
    assert " to the server" in shown


async def test_a_key_loses_a_line_of_its_data():
    body = [secrets.token_hex(32) for _ in range(5)]
    await mask_tokens(["\n".join(["-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----", ""])], Holder())
    shown = str(redact("\n".join(body) + " -----END PRIVATE KEY-----"))
    assert body[-1] not in shown
    assert "-----END PRIVATE KEY-----" in shown


async def test_dots_and_short_texts_are_not_hidden():
    await mask_tokens(["." * 80, "abc", "", "-----BEGIN-----"], Holder())
    assert redact(f"wait{'.' * 80} abc") == f"wait{'.' * 80} abc"


async def test_what_a_cluster_uses_stays_hidden_however_often_others_renew_theirs():
    steady, busy = Holder(), Holder()
    static, key = secrets.token_urlsafe(200), secrets.token_urlsafe(200)
    await mask_tokens([static], steady)
    before = patterns()
    tokens = [secrets.token_urlsafe(200) for _ in range(300)]
    for token in tokens:
        await mask_tokens([key, token], busy)
    assert hidden(static)
    assert hidden(key)
    assert all(map(hidden, tokens[-masking.REPLACED :]))
    assert patterns() - before <= masking.KEPT + masking.REPLACED + 2
    assert redact(tokens[0]) == tokens[0]


async def test_what_nobody_uses_any_more_is_hidden_for_a_while():
    tokens = [secrets.token_urlsafe(200) for _ in range(masking.KEPT + 30)]
    before = patterns()
    for token in tokens:
        await mask_tokens([token], Holder())
    assert all(map(hidden, tokens[-masking.KEPT :]))
    assert patterns() - before <= masking.KEPT + 1


async def test_what_two_clusters_use_stays_hidden_while_one_of_them_does():
    token, one, other = secrets.token_urlsafe(200), Holder(), Holder()
    await mask_tokens([token], one)
    await mask_tokens([token], other)
    for _ in range(masking.KEPT + 30):
        await mask_tokens([secrets.token_urlsafe(200)], other)
    assert hidden(token)
    del one
    for _ in range(masking.KEPT + 30):
        await mask_tokens([secrets.token_urlsafe(200)], other)
    assert not hidden(token)


async def test_what_goes_to_another_process_is_hidden_here_and_otherwise_unchanged():
    token = secrets.token_urlsafe(200)
    await mask_tokens([token], Holder())
    event = {"error": {"text": f"Last lines: {token}"}, "report": {"token": "mine", "items": [1, None, token]}}
    hidden = masking.hide(event)
    assert token not in str(hidden)
    assert hidden["report"]["token"] == "mine"
    assert hidden["report"]["items"][:2] == [1, None]
