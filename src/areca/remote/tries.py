"""Calls to a place behind a URL: each is tried again while the link is lost, has a deadline of its own, and ends.

It ends with the answer, with RemoteError for what trying again does not mend (no such bucket, no permission, no
credentials), or with LinkLost after ARECA_REMOTE_SECONDS without an answer.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from areca.errors import ConfigError, LinkLost, ObjectMissing, RemoteError

T = TypeVar("T")

SECONDS = 120.0  # without an answer, unless ARECA_REMOTE_SECONDS says otherwise
FIRST_SECONDS = 15.0  # the same before the first answer: then it is a wrong endpoint rather than a lost link
SILENT_SECONDS = 5.0, 30.0  # the least and the most that one call waits for a server that says nothing
QUIET_SECONDS = 3.0  # after which it is said what is waited for
LONGEST_WAIT = 10.0  # between two tries

_NO_CREDENTIALS = ("NoCredentials", "PartialCredentials", "CredentialRetrieval", "DefaultCredentials", "NoAuthToken")
_INVALID = ("ParamValidationError", "InvalidRegionError", "HFValidationError")
_HEARD: set[str] = set()  # protocols that have answered in this process
_SAID = [-1e9]  # when it was said last that an answer is waited for


def tried(ask: Callable[[], T], url: str) -> T:
    """The answer to a call, which is repeated while the link is lost. See the head of the file for how it ends."""
    protocol = url.partition("://")[0]
    started, wait = time.monotonic(), 0.25
    while True:
        try:
            answer = ask()
            _HEARD.add(protocol)
            return answer
        except (RemoteError, TypeError, AttributeError, KeyError):
            raise
        except Exception as error:  # the packages behind fsspec raise what they like
            said = sentence(error, url)
            if said is not None:
                raise (ObjectMissing if isinstance(error, FileNotFoundError) else RemoteError)(said) from None
            if time.monotonic() - started > QUIET_SECONDS:
                _say_waiting(f"{url} ({brief(error)})")
            limit = seconds_to_wait() if protocol in _HEARD else min(FIRST_SECONDS, seconds_to_wait())
            if time.monotonic() + wait - started > limit:
                raise LinkLost(
                    f"{url} can't be reached ({brief(error)}; tried for {time.monotonic() - started:.0f} s); check the "
                    "network and the endpoint, then give the same command again."
                ) from None
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def within(ask: Callable[[], T], url: str) -> T:
    """The answer to a call that moves few bytes, from a thread that is given up if the server stays silent."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    seconds = silent_seconds() + 1.0  # where the package behind fsspec has a deadline too, its own error is the better
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(min(QUIET_SECONDS, seconds))
    if thread.is_alive():
        _say_waiting(url)
        thread.join(max(0.0, seconds - QUIET_SECONDS))
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer for {seconds:.0f} s")
    return answers[0]


def _say_waiting(what: str) -> None:
    """One line on what is waited for, and not a second one soon."""
    if time.monotonic() - _SAID[0] > SECONDS:
        _SAID[0] = time.monotonic()
        print(f"areca: waiting for an answer of {what}", file=sys.stderr, flush=True)


def seconds_to_wait() -> float:
    """How long a lost link is waited for; ConfigError if the variable is no number above 0."""
    said = os.environ.get("ARECA_REMOTE_SECONDS", "")
    if not said:
        return SECONDS
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(said)) < math.inf:
            return seconds
    raise ConfigError(f"ARECA_REMOTE_SECONDS is {said!r}; it must be a number of seconds above 0, such as 120.")


def silent_seconds() -> float:
    """How long one call waits for a server that says nothing."""
    least, most = SILENT_SECONDS
    return min(most, max(least, seconds_to_wait()))


def brief(error: BaseException) -> str:
    """The first line of what an error says, or its kind."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__


def sentence(error: Exception, url: str) -> str | None:
    """What is said of an error that trying again does not mend, or None."""
    kind, status = type(error).__name__, getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(error, FileNotFoundError) or status == 404:
        said = brief(error)
        why = "there is no such object" if "://" in said or said in url else said[:1].lower() + said[1:]
        return f"{url} can't be used ({why}); check its bucket and its name."
    if isinstance(error, PermissionError) or status in (401, 403):
        return f"{url} is refused ({brief(error)}); check the keys and what they may do there."
    if any(word in kind for word in _NO_CREDENTIALS):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" if url.startswith("s3") else "log in"
        return f"there are no credentials for {url} ({brief(error)}); {hint}."
    if isinstance(error, ValueError | NotImplementedError) or kind in _INVALID:
        return f"{url} can't be used ({brief(error)}); check how it is written."
    if isinstance(error, IsADirectoryError | NotADirectoryError) or getattr(error, "errno", None) == 28:
        return f"{url} can't be used ({brief(error)})."
    return None
