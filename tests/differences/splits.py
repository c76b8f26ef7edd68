"""Split programs that 1.8.5 gets wrong, refuses or cannot run."""

from .record import Difference

_GOLDENS = "transpiler/test_goldens.py"

SPLITS = (
    Difference(
        "`optimizer(grad_clip=...)`",
        "drops the operators that compute what is sent, so the job cannot run",
        "clips each trainer's gradient before it is sent, as `set_gradient_clip` does",
        "the job trains as one process does",
        f"{_GOLDENS}::test_a_clip_given_to_the_optimizer_stays_with_the_trainer",
        (
            "split:ps_clip_value",
            "split:ps_clip_norm",
            "split:ps_clip_global",
            "split:ps_clip_global_l2",
            "split:ps_clip_global_async",
            "split:ps_clip_value_small",
        ),
    ),
    Difference(
        "a dispatcher other than `RoundRobin`",
        "sends gradients to servers that do not own their parameter, and updates only the first of "
        "two slices of one parameter on a server",
        "sends a gradient to the owner of its slice; a server updates every slice it owns",
        "no gradient is lost",
        f"{_GOLDENS}::test_gradients_follow_their_parameters_whatever_the_dispatcher",
        ("split:ps_crc_dispatch",),
    ),
    Difference(
        "`HashName`",
        "fails: the dispatcher calls a string",
        "places a variable by a hash of its name that is the same in every process",
        "the dispatcher works",
        f"{_GOLDENS}::test_hash_names_place_alike_in_every_process",
        ("split:ps_hashname",),
    ),
    Difference(
        "learning rates with warm-up",
        "fails to copy sub-blocks that declare variables",
        "copies them to the servers",
        "schedules with conditions can be split",
        f"{_GOLDENS}::test_schedules_with_inner_variables_are_split_as_intended",
        ("split:ps_lr_warmup", "split:ps_lr_warmup_async", "split:ps_lr_warmup_cosine"),
    ),
    Difference(
        "`transpile(sync_mode=False)`, with `config.sync_mode` untouched",
        "sets SYNC on servers and not on trainers, and the job hangs",
        "follows the argument in every role",
        "the job runs",
        f"{_GOLDENS}::test_an_untouched_sync_mode_follows_the_argument",
        ("split:ps_mlp_async_cfg_untouched",),
    ),
    Difference(
        "`Adadelta` on servers",
        "never updates anything",
        "updates on the server that owns the slice, with its own averages",
        "the model trains",
        f"{_GOLDENS}::test_adadelta_is_updated_on_the_servers",
        ("split:ps_opt_adadelta",),
    ),
    Difference(
        "`Lamb` on servers",
        "is refused",
        "is split; parameters stay whole, because their norm is needed",
        "it trains as one process does",
        f"{_GOLDENS}::test_lamb_keeps_parameters_whole_because_it_needs_their_norm",
        ("split:ps_opt_lamb",),
    ),
    Difference(
        "`Dpsgd` and `LarsMomentum` on servers",
        "cuts parameters and takes the norm of each slice",
        "keeps parameters whole and takes their norm",
        "the job trains as one process does",
        "optimizer/test_split.py::test_a_dense_model_trains_as_one_process_does",
        ("split:ps_opt_dpsgd",),
    ),
    Difference(
        "`LookaheadOptimizer` on servers",
        "mixes the weights on each trainer, and receives the servers' values over them: it trains "
        "as the inner optimizer",
        "is refused, as is any operator of a trainer that writes a parameter",
        "nothing is computed in vain",
        "durability/test_combinations.py"
        "::test_what_servers_cannot_update_is_refused_before_training",
    ),
    Difference(
        "`embedding(is_distributed=True)`",
        "fails, and where that is repaired sums the table's gradient over the trainers",
        "averages it over the trainers, like every other gradient",
        "the step does not grow with the number of trainers",
        f"{_GOLDENS}::test_a_table_differs_from_the_repaired_original_by_the_mean_only",
        ("split:ps_w2v_table", "split:ps_w2v_table_repaired"),
    ),
)
