"""/v1/files: uploads are stored, listed, read and deleted; hostile ones are refused, and no name is a path."""

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api.openai import file_store, files, guard
from engine.api.openai.server import server_of
from engine.ids import new_id
from tests.engine.api.openai.conftest import KEY, Answer, Api
from tests.waiting import until

LINES = b'{"custom_id":"a"}\n'
BOUNDARY = "limit"


def form(content: bytes = LINES, name: str = "in.jsonl", purpose: str | None = "batch") -> bytes:
    fields = (
        ""
        if purpose is None
        else f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
    )
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return (fields + part).encode("utf-8", "surrogateescape") + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def upload(api: Api, body: bytes | None = None, **headers: str) -> Answer:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"} | headers
    return api.ask("/v1/files", form() if body is None else body, **headers)


def stored(api: Api, content: bytes = LINES) -> Any:
    answer = upload(api, form(content))
    assert answer.status == 200, answer.body
    return answer.json


@pytest.fixture(autouse=True)
def no_files(api: Api) -> Iterator[None]:
    yield
    for file in api.ask("/v1/files").json["data"]:
        api.ask(f"/v1/files/{file['id']}", method="DELETE")
    left = {path.name for path in (api.bench.settings.home / "batches").iterdir()}
    assert left <= {"lock"}


def test_a_file_is_stored_listed_read_and_deleted(api: Api) -> None:
    made = [stored(api, LINES * number) for number in (1, 2, 3)]
    assert made[0] == {
        "id": made[0]["id"], "object": "file", "bytes": len(LINES), "created_at": made[0]["created_at"],
        "filename": "in.jsonl", "purpose": "batch", "status": "processed",
    }  # fmt: skip
    found = api.ask("/v1/files").json
    assert {**found, "data": [one["id"] for one in found["data"]]} == {
        "object": "list",
        "data": (newest := sorted((one["id"] for one in made), reverse=True)),
        "first_id": newest[0],
        "last_id": newest[-1],
        "has_more": False,
    }
    id = made[2]["id"]
    assert api.ask(f"/v1/files/{id}").json == made[2]
    content = api.ask(f"/v1/files/{id}/content")
    assert (content.status, content.body) == (200, LINES * 3)
    assert content.headers["content-length"] == str(len(LINES * 3))
    assert api.ask(f"/v1/files/{id}", method="DELETE").json == {"id": id, "object": "file", "deleted": True}
    for path, method in (("", "GET"), ("/content", "GET"), ("", "DELETE")):
        answer = api.ask(f"/v1/files/{id}{path}", method=method)
        assert (answer.status, answer.json["error"]["code"]) == (404, "file_not_found")


def test_a_list_has_pages(api: Api) -> None:
    ids = sorted(stored(api)["id"] for _ in range(3))
    for order, whole in (("asc", ids), ("desc", ids[::-1])):
        first = api.ask(f"/v1/files?limit=2&order={order}").json
        assert ([one["id"] for one in first["data"]], first["has_more"]) == (whole[:2], True)
        rest = api.ask(f"/v1/files?limit=2&order={order}&after={first['last_id']}").json
        assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (whole[2:], False)
    assert api.ask("/v1/files?purpose=batch_output").json["data"] == []
    assert len(api.ask("/v1/files?purpose=batch").json["data"]) == 3
    for query, param in (
        ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=10001", "limit"), ("limit=%D9%A3", "limit"),
        ("after=../etc", "after"), ("order=up", "order"), ("purpose=assistants", "purpose"),
        ("purpose=", "purpose"), ("order=", "order"), ("limit=", "limit"),
    ):  # fmt: skip
        answer = api.ask(f"/v1/files?{query}")
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_files_are_readable_by_their_user_only(api: Api) -> None:
    id = stored(api)["id"]
    folder = api.bench.settings.home / "batches"
    for path in (folder, folder / id):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (folder / id).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(purpose="assistants"), "purpose"),
        (form(purpose=None), "purpose"),
        (form(b""), "file"),
        (form().replace(b'; filename="in.jsonl"', b""), "file"),
        (form().replace(b'name="file"', b'name="other"'), "file"),
        (form().replace(b"name=", b"n="), None),
        (b"\xff" * 1000, None),
        (b"", "purpose"),
        (form(purpose="b" * 5_000), None),
        (form() + form(), "purpose"),
        (form().replace(b"--limit--", b"") + b"--limit\r\n" * 100, None),
    ],
)
def test_a_wrong_form_is_refused(api: Api, body: bytes, param: str | None) -> None:
    answer = upload(api, body)
    if answer.status != 200:  # what follows the end of a form is no part of it
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


@pytest.mark.filterwarnings("ignore:Exception ignored in.*SpooledTemporaryFile")
def test_a_form_without_its_end_is_refused(api: Api) -> None:
    """Starlette leaves the part that has no end to the garbage collector."""
    for size in range(1, len(form()) - 20, 7):
        answer = upload(api, form()[:size])
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


def test_only_forms_are_taken(api: Api) -> None:
    for kind in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data", "x" * 500, ""):
        answer = upload(api, content_type=kind)
        assert answer.status == 400, answer.body
        assert answer.json["error"]["type"] == "invalid_request_error"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters='"\r\n\\', exclude_categories=["Cs"]), max_size=300))
def test_a_name_is_never_a_path(api: Api, name: str) -> None:
    answer = upload(api, form(name=name or "../x"))
    assert answer.status == 200, answer.body
    assert answer.json["filename"].isprintable() and 1 <= len(answer.json["filename"]) <= files.LONGEST_NAME
    assert api.ask(f"/v1/files/{answer.json['id']}/content").body == LINES
    assert api.ask(f"/v1/files/{answer.json['id']}", method="DELETE").status == 200


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..", "a/b", "%2e%2e%2f", "C:\\\\x", "\u202e.jsonl"]
)
def test_names_of_paths_are_names(api: Api, name: str) -> None:
    assert upload(api, form(name=name)).status == 200
    assert not list(api.bench.settings.home.rglob("passwd"))


def test_ids_that_are_none_are_unknown(api: Api) -> None:
    for id in (f"file-{new_id()}", "..%2f..%2fetc%2fpasswd", "%00", "x" * 5_000, "lock", "file-" + "." * 36):
        for path, method in (("", "GET"), ("/content", "GET"), ("", "DELETE")):
            answer = api.ask(f"/v1/files/{id}{path}", method=method)
            assert answer.status == 404 and len(answer.body) < 1_000


def test_a_large_file_goes_to_the_disk_and_a_larger_one_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"x" * (1 << 20) * 9  # more than other bodies may have
    assert api.ask(f"/v1/files/{stored(api, content)['id']}/content").body == content
    assert api.ask("/v1/completions", content).status == 413
    monkeypatch.setattr(guard, "UPLOADS", {"/v1/files": guard.BodyLimit(1 << 20, 60.0)})
    answer = upload(api, form(content))
    assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")


def test_a_file_that_gives_no_length_is_bounded_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "UPLOADS", {"/v1/files": guard.BodyLimit(1 << 20, 60.0)})
    connection = api.connect()
    headers = {"authorization": f"Bearer {KEY}", "content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    blocks = iter([form()[:-20], *[b"x" * (1 << 16)] * 40])
    try:
        connection.request("POST", "/v1/files", blocks, headers, encode_chunked=True)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["error"]["code"]) == (413, "body_too_large")
    except (BrokenPipeError, ConnectionResetError):
        pass  # it was refused before all was sent
    finally:
        connection.close()


def test_slow_uploads_end_and_do_not_keep_out_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "UPLOADS", {"/v1/files": guard.BodyLimit(1 << 20, 1.0)})
    slow = []
    for _ in range(files.MOST_UPLOADS):
        connection = api.connect()
        connection.putrequest("POST", "/v1/files")
        connection.putheader("Authorization", f"Bearer {KEY}")
        connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        connection.putheader("Content-Length", "10000")
        connection.endheaders(form()[:60])
        slow.append(connection)
    until(lambda: upload(api).status == 429, "uploads are not counted", 0.9)
    refused = upload(api)
    assert (refused.headers["retry-after"], refused.json["error"]["code"]) == ("1", "rate_limit_exceeded")
    for connection in slow:
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["error"]["code"]) == (408, "body_timeout")
        connection.close()
    assert upload(api).status == 200


def test_clients_that_leave_in_an_upload_leave_nothing(api: Api) -> None:
    for _ in range(3 * files.MOST_UPLOADS):
        connection = api.connect()
        connection.putrequest("POST", "/v1/files")
        connection.putheader("Authorization", f"Bearer {KEY}")
        connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        connection.putheader("Content-Length", "1000000")
        connection.endheaders(form()[:200])
        connection.close()
    until(lambda: upload(api).status == 200, "uploads are counted for ever")


def test_number_and_size_of_all_files_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(api)
    for name, most in (("MOST_FILES", 1), ("MOST_BYTES", len(LINES) + 5)):
        with monkeypatch.context() as patch:
            patch.setattr(file_store, name, most)
            answer = upload(api)
            assert (answer.status, answer.json["error"]["code"]) == (413, "storage_full")
    assert upload(api).status == 200


def test_a_full_disk_is_said_and_nothing_is_left(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(file_store, "check_room", lambda *_: full(0))
    answer = upload(api)
    assert (answer.status, answer.json["error"]["code"]) == (507, "storage_full")
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", full)
    assert upload(api).status == 507
    monkeypatch.undo()
    assert api.ask("/v1/files").json["data"] == []


def test_of_concurrent_deletions_one_succeeds_and_readers_read_on(api: Api) -> None:
    for _ in range(5):
        content = os.urandom(1 << 20)
        id = stored(api, content)["id"]
        reader = api.connect()
        reader.request("GET", f"/v1/files/{id}/content", headers={"authorization": f"Bearer {KEY}"})
        response = reader.getresponse()
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(api.ask(f"/v1/files/{id}", method="DELETE").status))  # noqa: B023
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [200, 404, 404, 404]
        assert response.read() == content
        reader.close()


def test_what_is_damaged_is_said_and_left_out_of_lists(api: Api) -> None:
    kept, damaged = stored(api)["id"], stored(api)["id"]
    about = api.bench.settings.home / "batches" / damaged / "about.json"
    about.write_bytes(b"[" * 1000)
    assert [one["id"] for one in api.ask("/v1/files").json["data"]] == [kept]
    answer = api.ask(f"/v1/files/{damaged}")
    assert answer.status == 500 and "damaged" in answer.json["error"]["message"]
    assert api.ask(f"/v1/files/{damaged}", method="DELETE").status == 200


def test_without_a_key_there_are_no_files(api: Api) -> None:
    server = server_of(api.bench)
    assert server.port is not None
    server.stop()
    server.start(api.port, "")
    try:
        for path in ("/v1/files", f"/v1/files/file-{new_id()}/content", "/v1/batches"):
            answer = api.ask(path)
            assert (answer.status, answer.json["error"]["code"]) == (403, "key_required")
        assert upload(api).status == 403
    finally:
        server.stop()
        server.start(api.port, KEY)
        time.sleep(0)
