"""Fleet and the launchers: where 1.8.5 fails, or hides a failure."""

from .record import Difference

_LAUNCH = "fleet/launcher/test_paddle_launch.py"

FLEET = (
    Difference(
        "`is_worker()` and `is_first_worker()` of `PaddleCloudRoleMaker(is_collective=True)`",
        "are False on every rank",
        "are True on workers, and on rank 0",
        "a script can save on one rank",
        "fleet/api/test_role_makers.py::test_paddle_cloud_reads_a_rank_and_knows_who_is_first",
    ),
    Difference(
        "`fleet.split_files`",
        "fails on Python 3",
        "works",
        "trainers can share a list of files",
        "fleet/api/test_parameter_server.py"
        "::test_files_are_divided_in_order_and_the_first_takes_one_more",
    ),
    Difference(
        "`use_local_sgd` with `local_sgd_steps`",
        "averages in every run, whatever the steps are",
        "averages in each of the first `local_sgd_is_warm_steps` steps, then every "
        "`local_sgd_steps`; both are 1 unless set",
        "the interval has an effect",
        "collective/test_local_sgd.py::test_ranks_meet_after_the_warm_up_and_then_now_and_then",
    ),
    Difference(
        "`paddle.distributed.launch --print_config=False`",
        "is read as True",
        "is False",
        "the option works",
        f"{_LAUNCH}::test_print_config_false_is_false",
    ),
    Difference(
        "a worker that fails under `paddle.distributed.launch_ps`",
        "stops no other process; the exit code is 0",
        "ends the job with its exit code",
        "schedulers see the failure",
        f"{_LAUNCH}::test_a_worker_that_dies_ends_a_job_with_servers",
    ),
    Difference(
        "the exit code of `paddle.distributed.launch` after a failure",
        "is 1",
        "is that of the process that failed",
        "schedulers see the cause",
        f"{_LAUNCH}::test_without_a_folder_all_ranks_are_on_screen_and_a_failure_ends_the_job",
    ),
    Difference(
        "unknown fields of the strategies for parameter servers, and of 2.x",
        "are accepted",
        "are refused, with the nearest name",
        "a misspelt field does not go unnoticed",
        "fleet/api/test_parameter_server.py::test_unknown_fields_are_refused_with_the_nearest_name",
    ),
    Difference(
        "barriers and exchanges of role makers without a way to meet",
        "warn and return",
        "are an error that names what to set; workers meet at the servers, in the ring, or at "
        "`PADDLE_GLOO_HTTP_ENDPOINT`",
        "a barrier is one",
        "fleet/api/test_role_makers.py::test_workers_that_cannot_meet_are_told_what_to_set",
    ),
)

INTEROP = (
    Difference(
        "`checkpoint_notify` to a server",
        "a dense table is written to a file `none`; a server without a checkpoint block crashes",
        "each server writes the table that is named, or its slice, to `<dir>/<table>_<number>`, in "
        "the format of the `save` operator, below its own `FLAGS_checkpoint_dir` only",
        "the files can be loaded, and a trainer cannot choose where a server writes",
        "pserver/test_fluid_service.py::test_a_table_is_saved_as_fluids_server_saves_it",
    ),
    Difference(
        "`GetMonomerVariable` and `GetMonomerBarrier`",
        "are never answered by a parameter server",
        "are answered at once, with the variable as it is",
        "no call hangs",
        "pserver/test_fluid_service.py::test_a_monomer_is_a_variable_as_it_is",
    ),
    Difference(
        "a single synchronous trainer",
        "omits a suffix that its server expects, and hangs",
        "works",
        "a script can be tried with one trainer",
        "wire/test_fluid_server.py::test_a_lone_trainer_adds_the_suffix_that_rounds_need",
    ),
)
