#!/usr/bin/env bash
# A Slurm cluster of this machine alone, to try batch scripts on: Debian's slurm-wlm and munge, as root.
#
#   tools/slurm_here.sh FOLDER          start slurmctld and slurmd with their files in FOLDER, on loopback
#   export SLURM_CONF=FOLDER/slurm.conf     for sbatch, squeue, ...
#   tools/slurm_here.sh FOLDER stop     end them, and every job
#
# CPUS (8) is how many processors the node claims to have.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
daemons="slurmd slurmctld munged"
export SLURM_CONF=$folder/slurm.conf

stop() {
    scancel --user="$(id -un)" 2>/dev/null || true
    for name in $daemons; do
        [ -f "$folder/$name.pid" ] || continue
        pid=$(<"$folder/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    done
    rm -rf "$folder"
}

port() { # that nobody listens at
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

configure() {
    mkdir -p -m 755 "$folder"/{state,spool,munge}
    head -c 1024 /dev/urandom >"$folder/munge/key"
    chmod 600 "$folder/munge/key"
    cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$(port)
SlurmdPort=$(port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=${CPUS:-8}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
}

start() {
    configure
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF"
    for _ in $(seq 150); do
        if sinfo --noheader --format=%T 2>/dev/null | grep -q '^idle$'; then
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep 0.2
    done
    echo "slurm_here: the node did not come up; the end of $folder/*.log:" >&2
    tail -n 20 "$folder"/*.log >&2
    exit 1
}

"${2:-start}"
