"""MovieLens 1M: samples are the fields of a user, the fields of a film, and the rating."""

import random
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bireme.errors import FormatError

from .common import local_file

__all__ = [
    "MovieInfo",
    "UserInfo",
    "age_table",
    "get_movie_title_dict",
    "max_job_id",
    "max_movie_id",
    "max_user_id",
    "movie_categories",
    "movie_info",
    "test",
    "train",
    "user_info",
]

age_table = [1, 18, 25, 35, 45, 50, 56]
_SOURCE = "https://grouplens.org/datasets/movielens/1m/"
_TITLE = re.compile(r"^(.*)\((\d+)\)$")


@dataclass(frozen=True, slots=True)
class MovieInfo:
    """A film: its number, its genres, its title without the year."""

    index: int
    categories: tuple[str, ...]
    title: str

    def value(self) -> list[Any]:
        """[id, ids of the genres, ids of the words of the title]."""
        genres, words = movie_categories(), get_movie_title_dict()
        title = [words[w.lower()] for w in self.title.split()]
        return [self.index, [genres[c] for c in self.categories], title]


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A person: number, whether male, position in `age_table`, occupation."""

    index: int
    is_male: bool
    age: int
    job_id: int

    def value(self) -> list[int]:
        """[id, 0 male or 1 female, age group, occupation]."""
        return [self.index, 0 if self.is_male else 1, self.age, self.job_id]


class _Tables(NamedTuple):
    movies: dict[int, MovieInfo]
    users: dict[int, UserInfo]
    ratings: list[tuple[int, int, float]]


def train() -> Callable[[], Iterator[list[Any]]]:
    """A reader of nine tenths of the ratings."""
    return lambda: _samples(is_test=False)


def test() -> Callable[[], Iterator[list[Any]]]:
    """A reader of the other tenth."""
    return lambda: _samples(is_test=True)


def movie_info() -> dict[int, MovieInfo]:
    return _tables(_path()).movies


def user_info() -> dict[int, UserInfo]:
    return _tables(_path()).users


def movie_categories() -> dict[str, int]:
    """Ids of the genres, in alphabetical order."""
    names = {c for m in movie_info().values() for c in m.categories}
    return {c: i for i, c in enumerate(sorted(names))}


@cache
def _words(path: Path) -> dict[str, int]:
    names = {w.lower() for m in _tables(path).movies.values() for w in m.title.split()}
    return {w: i for i, w in enumerate(sorted(names))}


def get_movie_title_dict() -> dict[str, int]:
    """Ids of the words in titles, in alphabetical order."""
    return _words(_path())


def max_movie_id() -> int:
    return max(movie_info())


def max_user_id() -> int:
    return max(user_info())


def max_job_id() -> int:
    return max(u.job_id for u in user_info().values())


def _samples(*, is_test: bool) -> Iterator[list[Any]]:
    tables = _tables(_path())
    chance = random.Random(0)
    for user, movie, rating in tables.ratings:
        if (chance.random() < 0.1) == is_test:
            yield [*tables.users[user].value(), *tables.movies[movie].value(), [rating]]


def _path() -> Path:
    return local_file("movielens", "ml-1m.zip", _SOURCE)


@cache
def _tables(path: Path) -> _Tables:
    try:
        with zipfile.ZipFile(path) as archive:
            movies = {m.index: m for m in map(_movie, _rows(archive, "movies"))}
            users = {u.index: u for u in map(_user, _rows(archive, "users"))}
            ratings = [
                (int(r[0]), int(r[1]), float(r[2]) * 2 - 5) for r in _rows(archive, "ratings")
            ]
    except (zipfile.BadZipFile, OSError, KeyError, ValueError, IndexError) as cause:
        raise FormatError("the archive is damaged", where=str(path), hint=str(cause)) from None
    return _Tables(movies, users, ratings)


def _rows(archive: zipfile.ZipFile, name: str) -> Iterator[list[str]]:
    for line in archive.read(f"ml-1m/{name}.dat").decode("latin-1").splitlines():
        yield line.split("::")


def _movie(row: list[str]) -> MovieInfo:
    match = _TITLE.match(row[1])
    return MovieInfo(int(row[0]), tuple(row[2].split("|")), match.group(1) if match else row[1])


def _user(row: list[str]) -> UserInfo:
    return UserInfo(int(row[0]), row[1] == "M", age_table.index(int(row[2])), int(row[3]))
