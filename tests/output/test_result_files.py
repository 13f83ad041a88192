"""Result files are written whole or not at all, and never over a file of someone else's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ktune.core.errors import EnvironmentFault, KtuneError, UsageError
from ktune.output.files import check_writable, write_file

MARK = "by ktune"


def failing(number: int):
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_missing_folders_are_made_and_the_content_is_the_given_one(tmp_path: Path):
    path = write_file(tmp_path / "new" / "deep" / "a.txt", "made by ktune\n", MARK)
    assert path.read_text() == "made by ktune\n"
    assert path.stat().st_mode & 0o044, "others may read it, as of any new file"


def test_a_file_of_ktunes_own_is_replaced(tmp_path: Path):
    path = tmp_path / "a.txt"
    write_file(path, "1 by ktune", MARK)
    write_file(path, "2 by ktune", MARK)
    assert path.read_text() == "2 by ktune"


def test_a_file_of_someone_elses_is_kept_unless_forced(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("precious")
    for attempt in (lambda: write_file(path, "by ktune", MARK), lambda: check_writable(path, MARK)):
        with pytest.raises(UsageError, match=r"was not written by ktune.*--force"):
            attempt()
    assert path.read_text() == "precious"
    write_file(path, "by ktune", MARK, force=True)
    assert path.read_text() == "by ktune"


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(errno.EACCES, UsageError, 2), (errno.ENOSPC, EnvironmentFault, 3), (errno.EROFS, EnvironmentFault, 3)],
)
def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[KtuneError], code: int
):
    path = write_file(tmp_path / "a.txt", "old, by ktune", MARK)
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(kind, match=f"cannot write .*a.txt: {os.strerror(number)}; ") as raised:
        write_file(path, "new, by ktune", MARK)
    assert raised.value.exit_code == code
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old, by ktune"


def test_a_path_below_a_file_is_refused_with_the_remedy(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    for attempt in (write_file, check_writable):
        with pytest.raises(UsageError, match="choose a path that you may write to"):
            arguments = (tmp_path / "file" / "a.txt", *((MARK,) if attempt is check_writable else ("by ktune", MARK)))
            attempt(*arguments)


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="is a folder, not a file; name a file inside it"):
        write_file(tmp_path, "by ktune", MARK)


def test_a_path_that_can_be_written_is_left_as_it_was_by_the_check(tmp_path: Path):
    check_writable(tmp_path / "new" / "a.txt", MARK)
    assert list((tmp_path / "new").iterdir()) == []


def test_content_without_its_mark_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(KtuneError, match="would lack its mark"):
        write_file(tmp_path / "a.txt", "anonymous", MARK)
    assert list(tmp_path.iterdir()) == []
