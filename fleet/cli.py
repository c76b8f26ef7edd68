"""The `bireme` command line."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

import bireme

from .checkpoint_commands import checkpoint
from .launcher.job import MODES, Job
from .scripts import uncaught
from .telemetry_commands import COMMANDS as TELEMETRY
from .trial_commands import COMMANDS as TRIALS
from .trial_commands import PASS_ON, note_misplaced

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(bireme.__version__, prog_name="bireme")
def main() -> None:
    """Train Fluid programs on parameter servers or with all-reduce: one script, every role.

    \b
    bireme launch --servers 2 --trainers 2 train.py     a cluster on this machine
    bireme run train.py                                 one process; the environment sets its role
    bireme check train.py                               what will not work
    bireme explain train.py                             how the program would be split
    bireme verify train.py                              a cluster compared with one process
    bireme verify model/                                whether a saved program is valid
    bireme chaos train.py                               a job under faults
    bireme export model/ --onnx model.onnx              a saved model for other programs
    bireme top                                          watch the processes of a job
    bireme checkpoint list run7/                        what a job has saved
    bireme dashboard                                    the same and more, in the browser
    bireme trace                                        what each process does, as a Chrome trace
    bireme demo                                         a tour in a minute
    bireme flags                                        every flag and its value
    """
    uncaught.install()


@main.command(context_settings=PASS_ON, short_help="A cluster on this machine, watched to its end.")
@click.option("--servers", default=2, show_default=True, help="Parameter servers (pserver mode).")
@click.option("--trainers", default=2, show_default=True, help="Trainers.")
@click.option("--mode", type=click.Choice(MODES), default="pserver", show_default=True,
              help="pserver: servers and trainers. nccl2: trainers that all-reduce.")  # fmt: skip
@click.option("--log-dir", default="log", show_default=True,
              help="Where serverlog.N, trainerlog.N and workerlog.N are written.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the endpoints.")
@click.option("--start-port", default=0, help="First port; without it the kernel picks free ones.")
@click.option("--grace", default=10.0, show_default=True,
              help="Seconds to end unasked after a failure or the last trainer.")  # fmt: skip
@click.option("--gpus", default="", help="Devices, one for each trainer in turn: 0,1.")
@click.option("--cpu", is_flag=True, help="Let CUDAPlace mean the CPU (FLAGS_place=cpu).")
@click.option("--restart", default=0, show_default=True,
              help="How often the job, or a killed process alone, starts again.")  # fmt: skip
@click.option("--steps", default=0, metavar="N",
              help="Steps of each trainer, for the time left; 0: as in the last run.")  # fmt: skip
@click.option("--hosts", default="", help="All nodes of an all-reduce job, in the order of ranks.")
@click.option("--admin/--no-admin", default=True, show_default=True,
              help="Give every process an admin port on loopback, for `bireme top`.")  # fmt: skip
@click.option("--emit", type=click.Choice(["kubernetes", "slurm"]),
              help="Start nothing; print the job as a manifest or a batch script.")  # fmt: skip
@click.option("--image", default="", help="Container image, for --emit kubernetes.")
@click.option("--name", default="", help="Name of the job, for --emit.  [default: the script's]")
@click.option("--dashboard", is_flag=True,
              help="Serve `bireme dashboard` of this job while it runs.")  # fmt: skip
@click.option("--tensorboard", default="", help="Write TensorBoard event files to this folder.")
@click.option("--trace", is_flag=True, help="Record every operator; write LOG_DIR/trace.json.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(script: str, arguments: tuple[str, ...], gpus: str, hosts: str, **options: Any) -> None:
    """Start SCRIPT once per role on this machine, and watch until all have ended.

    Each process learns its role from the environment: TRAINING_ROLE, PADDLE_PSERVERS_IP_PORT_LIST,
    PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ID, PADDLE_CURRENT_ENDPOINT and PADDLE_TRAINER_ENDPOINTS.
    What trainer 0 prints appears here, and every process writes a log. If one fails, the others
    are ended, the end of its log is shown, and its exit code is returned. With --restart the job
    begins again, and goes on from its newest checkpoint if it keeps and loads any; exit code 2, a
    mistake in the script, its options or its environment, ends it all the same. In a job with
    servers a process that was killed starts again alone: the others end with exit code 75 and are
    started again from the checkpoint (FLAGS_rewind), or with FLAGS_durability=step wait for it.
    Outside sync mode, jobs with checkpoints and several trainers need FLAGS_rewind=0 with it.
    With --hosts the same command runs on each node, with its own --host. Options of bireme stand
    before SCRIPT; everything after it belongs to the script. In a script that takes its role as
    arguments, {role} (pserver or trainer), {index}, {endpoint}, {servers} and {trainers} are filled
    in for each process.

    \b
    bireme launch --servers 2 --trainers 2 examples/digits.py --epochs 5
    bireme launch --mode nccl2 --trainers 2 examples/digits.py
    bireme launch --emit kubernetes --image registry/train:1 train.py | kubectl apply -f -
    bireme launch --emit slurm --servers 2 --trainers 8 train.py | sbatch
    bireme launch --dashboard --trainers 4 examples/ctr.py
    bireme launch train.py --role {role} --trainer_id {index} --endpoints {servers} \\
        --current_endpoint {endpoint} --trainers {trainers}
    """
    from .launcher.emit import emit
    from .launcher.watch import run_job

    devices, nodes = (
        tuple(word.strip() for word in text.split(",") if word.strip()) for text in (gpus, hosts)
    )
    emitted, names = options.pop("emit"), [options.pop("image"), options.pop("name")]
    job = Job(script, arguments, gpus=devices, hosts=nodes, **options)
    if emitted:
        click.echo(emit(emitted, job, *names), nl=False)
        return
    job.check()
    note_misplaced(script, arguments)
    sys.exit(run_job(job, dict(os.environ), click.echo))


@main.command(context_settings=PASS_ON, short_help="One process; paddle.fluid means bireme.")
@click.option("--cpu", is_flag=True, help="Let CUDAPlace mean the CPU (FLAGS_place=cpu).")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: str, arguments: tuple[str, ...], cpu: bool, module: bool) -> None:
    """Run SCRIPT in this process: `import paddle.fluid` means bireme, and errors are messages.

    The environment decides the role, as it does under `python SCRIPT`: nothing set means local
    training. Under srun, mpiexec or torchrun, BIREME_SERVERS=N makes the first N processes servers,
    and the script finds PaddleCloud's variables; {role}, {index}, {endpoint}, {servers} and
    {trainers} among its arguments are filled in, as by `bireme launch`. Paddle's launchers are
    modules: -m paddle.distributed.launch starts one process for each device, -m
    paddle.distributed.launch_ps servers and workers, as the tutorials print it.

    \b
    bireme run --cpu -m paddle.distributed.launch --selected_gpus=0,1 --log_dir mylog train.py

    \b
    TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 PADDLE_TRAINERS_NUM=2 \\
        PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6174,10.0.0.2:6174 bireme run train.py

    \b
    BIREME_SERVERS=2 mpiexec -n 4 bireme run train.py
    """
    if cpu:
        os.environ["FLAGS_place"] = "cpu"  # noqa: SIM112  # the name of the flag
    from bireme.flags import get

    from .launcher.foreign import adopted
    from .launcher.keeper import keep_this_program
    from .lifeline import follow_launcher
    from .scripts.script import execute_module, run_script

    if get("log_json"):
        keep_this_program()
        follow_launcher()
    try:
        if module:
            execute_module(script, arguments)
        else:
            note_misplaced(script, arguments)
            run_script(script, adopted(arguments, os.environ))
    except KeyboardInterrupt as error:  # which click would answer with a code of its own
        uncaught.interrupted(error)


@main.command(short_help="What in a script will not work, without running it.")
@click.argument("paths", nargs=-1, required=True)
def check(paths: tuple[str, ...]) -> None:
    """Read scripts (or all below a folder) and list what will stop or surprise them here.

    \b
    missing     a name of paddle that is not here, with what to write instead
    python 2    syntax and names that only Python 2 knows
    module      a package that the script imports and that is not installed
    cuda        needs a device, whatever the script's arguments say
    scope       may find no value in the scope, depending on the program
    deprecated  works, and has a successor

    The modules of its own project that a script imports are read as well: those that lie beside it,
    in its package, or below the working directory. Branches for Python 2, and for imports that fail
    where these succeed, are left out. Nothing is run. The exit code is 1 if something would end a
    run, or a file could not be checked.

    \b
    bireme check train.py
    bireme check models/
    """
    from bireme.progress_bars import progress

    from .scripts.check import Checker, scripts

    stops, found = False, scripts(list(paths))
    checker = Checker(found)
    with progress("reading", len(found), "scripts") as done:
        for path in found:
            lines, stopped = checker.report(path)
            stops = stops or stopped
            for line in lines:
                click.echo(line)
            done()
    sys.exit(int(stops))


@main.command(short_help="See all of it work, in seconds.")
@click.option("--servers", default=2, show_default=True, help="Parameter servers.")
@click.option("--trainers", default=2, show_default=True, help="Trainers.")
@click.option("--steps", default=400, show_default=True, help="Steps of each trainer.")
@click.option("--keep", type=click.Path(path_type=Path),
              help="Keep the logs in this folder.  [default: a temporary one]")  # fmt: skip
def demo(servers: int, trainers: int, steps: int, keep: Path | None) -> None:
    """Train a small model on a cluster of this machine, and show what happens.

    Shows the plan by which the model is split (`bireme explain`), starts servers and trainers
    (`bireme launch`), watches them (`bireme top`), and tests what they have learnt. It takes some
    seconds, uses loopback only, and leaves nothing behind.

    \b
    bireme demo
    bireme demo --servers 1 --trainers 3 --keep demo-logs
    """
    from .demo import demonstrate
    from .signals import ending

    with ending(), tempfile.TemporaryDirectory(prefix="bireme-demo-") as folder:
        sys.exit(demonstrate(servers, trainers, steps, keep or Path(folder), click.echo))


@main.command(short_help="Certificates for a cluster with TLS.")
@click.argument("folder", type=click.Path(path_type=Path))
def certs(folder: Path) -> None:
    """Make an authority and a certificate for every process of a job, and write them to FOLDER.

    For tests, and for clusters that have no authority of their own: whoever has the three files is
    a member. Needs trustme: pip install 'bireme[certs]'.

    \b
    bireme certs certificates
    """
    from .certs import write_certificates

    for line in write_certificates(folder):
        click.echo(line)


@main.command(short_help="Every FLAGS_* knob and its value.")
@click.option("--markdown", is_flag=True, help="As a page of the documentation.")
def flags(markdown: bool) -> None:
    """List every flag: name, present value, where the value came from, meaning.

    Set one for a process with FLAGS_name=value in its environment, or in a script with
    bireme.set_flags({"FLAGS_name": value}).
    """
    from bireme import flags as table

    click.echo(table.markdown() if markdown else table.describe())


@main.command(short_help="A saved model in a format of other programs.")
@click.option("--onnx", required=True, metavar="FILE", help="Write an ONNX model.")
@click.option("--model-filename", help="The file of the program.  [default: __model__]")
@click.option("--params-filename", help="The file of all parameters, if it is one.")
@click.argument("folder")
def export(folder: str, onnx: str, model_filename: str | None, params_filename: str | None) -> None:
    """Convert the model that save_inference_model wrote to FOLDER.

    Inputs and outputs have the names of the model's feeds and targets. A feed x of sequences has a
    second input, x.offsets: where each sequence begins, and where the last one ends. Operators that
    ONNX cannot express are named with their place, and the exit code is 2. FOLDER and FILE may be
    URLs that fsspec knows. Needs onnx: pip install 'bireme[onnx]'.

    \b
    bireme export model/ --onnx model.onnx
    bireme export s3://bucket/model --onnx model.onnx
    """
    from bireme.export import save_onnx

    model = save_onnx(folder, onnx, model_filename, params_filename)
    for title, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            sizes = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            click.echo(f"{title:<6}  {value.name}  [{', '.join(map(str, sizes))}]")
    click.echo(f"{onnx}: {len(model.graph.node)} nodes, {model.ByteSize():,} bytes")


for command in (*TRIALS, *TELEMETRY, checkpoint):
    main.add_command(command)
