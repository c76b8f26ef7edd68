"""Feeds that 1.8.5 takes without a word, or refuses later and elsewhere."""

from .record import Difference

_EXECUTOR = "runtime/test_executor.py"

FEEDING = (
    Difference(
        "an array of another shape for `layers.data`, a row for a column of `fluid.data`",
        "are taken as they are",
        "are taken as they are, with a warning; `python -W error` makes it an error",
        "a row that meets a column spreads over it",
        f"{_EXECUTOR}::test_what_an_older_data_layer_declares_is_a_hint",
    ),
    Difference(
        "an array of another element type for `layers.data`",
        "is taken as it is, and refused by the first operator that meets a parameter",
        "becomes what is declared, with a warning; fractions are never cut off, and integers stay "
        "what they are where an operator reads labels or ids",
        "NumPy makes float64 of a list, which is rarely intended",
        f"{_EXECUTOR}::test_what_an_older_data_layer_declares_is_a_hint",
    ),
    Difference(
        "fewer batches than places at the end of an epoch of `DataLoader(dataset, places=...)`",
        "are dropped",
        "are given; `drop_last=True` drops them",
        "no sample is lost",
        "reader/test_readers.py::test_a_loader_deals_its_batches_out_to_places",
    ),
    Difference(
        "a row of another length than 1 for `fluid.data(shape=[None, n])`",
        "is taken as it is",
        "is refused",
        "one sample is no batch",
        f"{_EXECUTOR}::test_a_wrong_feed_or_fetch_gets_one_clear_message",
    ),
    Difference(
        "`InMemoryDataset.global_shuffle(fleet)`",
        "sends samples to other trainers, whatever each has loaded",
        "sends none: all trainers load the same files, and each keeps its part; samples "
        "that differ between trainers are refused",
        "no sample is lost",
        "reader/test_dataset.py::test_trainers_that_loaded_files_of_their_own_are_refused_a_global_shuffle",
    ),
    Difference(
        "`DataLoader.from_dataset` of a `QueueDataset`, several places",
        "reads a file for each place, and refuses fewer files than places",
        "deals batches out to places in the order of the files",
        "the order of samples depends on the file list only",
        "runtime/test_kinds_of_feeds.py::"
        "test_a_loader_deals_the_batches_of_a_dataset_out_to_places",
    ),
    Difference(
        '`"%f" % numpy.array(fetched)`, a copy of a fetched array with one element',
        "is a number",
        'is an error with NumPy 2.4 and newer; `"%f" % fetched` is a number',
        "NumPy decides what its own arrays do; a fetched array is of a subclass",
        f"{_EXECUTOR}::test_a_fetched_row_of_one_element_is_a_number_and_a_longer_one_is_not",
    ),
)
