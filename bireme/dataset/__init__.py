"""Readers of well-known data sets from files in a local directory; nothing is downloaded."""

from . import cifar, common, imdb, imikolov, mnist, movielens, uci_housing

__all__ = ["cifar", "common", "imdb", "imikolov", "mnist", "movielens", "uci_housing"]
