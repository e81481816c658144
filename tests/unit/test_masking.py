"""Tokens that are known only at run time do not reach Airflow's logs, and hiding them does not pile up."""

from __future__ import annotations

import secrets

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_provider_multikueue import masking
from airflow_provider_multikueue.masking import mask_tokens


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
    await mask_tokens([secret])
    shown = str(redact(f"sent {secret} to the server"))
    assert not usable(secret, shown)
    assert "sent " in shown
    assert " to the server" in shown


async def test_a_key_loses_a_line_of_its_data():
    body = [secrets.token_hex(32) for _ in range(5)]
    await mask_tokens(["\n".join(["-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----", ""])])
    shown = str(redact("\n".join(body) + " -----END PRIVATE KEY-----"))
    assert body[-1] not in shown
    assert "-----END PRIVATE KEY-----" in shown


async def test_dots_and_short_texts_are_not_hidden():
    await mask_tokens(["." * 80, "abc", "", "-----BEGIN-----"])
    assert redact(f"wait{'.' * 80} abc") == f"wait{'.' * 80} abc"


async def test_the_newest_tokens_are_hidden_and_the_number_is_bounded():
    tokens = [secrets.token_urlsafe(200) for _ in range(masking.KEPT + 10)]
    for token in tokens:
        await mask_tokens([token])
    assert all(not usable(token, str(redact(token))) for token in tokens[10:])
    assert all(redact(token) == token for token in tokens[:10])


async def test_what_goes_to_another_process_is_hidden_here_and_otherwise_unchanged():
    token = secrets.token_urlsafe(200)
    await mask_tokens([token])
    event = {"error": {"text": f"Last lines: {token}"}, "report": {"token": "mine", "items": [1, None, token]}}
    hidden = masking.hide(event)
    assert token not in str(hidden)
    assert hidden["report"]["token"] == "mine"
    assert hidden["report"]["items"][:2] == [1, None]
