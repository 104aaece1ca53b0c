#!/usr/bin/env bash
# A real Slurm on one Debian machine: four nodes of two sites, with make-believe GPUs; for development, tests and CI.
#
# Every node is a slurmd with its own host name, /etc/hosts and (with --wan) network namespace. No systemd, no cgroups;
# nothing of the machine is touched outside the cluster's root directory.
set -euo pipefail
shopt -s inherit_errexit

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NODES=(dc0n0 dc0n1 dc1n0 dc1n1) # dc<site>n<node>
MARKER=.crosspipe-devcluster    # a root knows itself: nothing is removed or killed for a directory without this file

usage() {
  cat <<'TEXT'
usage: cluster.sh COMMAND [--port N] [--root DIR] [options]

A real Slurm on this machine: nodes dc0n0 dc0n1 (site dc0) and dc1n0 dc1n1 (site dc1), with 4 CPUs, 4 GB and 2 GPUs
each, whether they exist or not. Needs root, Debian 12 or a relative of it, and some seconds.

  install                apt-get install what is missing of Slurm, munge and MariaDB
  up                     start the cluster; comes back when all four nodes are idle
      --accounting         with slurmdbd and MariaDB, so that sacct works (some seconds more)
      --wan OPTIONS        the sites in network namespaces, joined by a relay that delays, paces and drops packets, as
                           in --wan '--delay-ms 20 --rate-mbit 100'; wan/wan.py --help tells the options
      --set KEY=VALUE      another line for slurm.conf, as in --set MaxArraySize=11; may be repeated
  down                   end every job and daemon of this cluster and remove its directory
      --keep               leave the directory: to read its logs, or for another `up` with its queue and accounting
  status                 which daemons live, and what Slurm says of the nodes
  env                    print what a shell needs to talk to it
  exec -- COMMAND...     run a command with that environment (with --wan: in site dc0, where the controller is)
  start | stop | kill DAEMON
                         one of controller, dbd, dc0n0, dc0n1, dc1n0, dc1n1; kill is kill -9

  --port N     first of the 20 TCP ports it uses                       [16800]
  --root DIR   directory of all its files, made by `up`                [/tmp/crosspipe-devcluster-PORT]

Several clusters live side by side when their ports (and so their roots) differ:

  cluster.sh up --port 16820 --accounting
  eval "$(cluster.sh env --port 16820)"
  srun -N4 hostname
  cluster.sh down --port 16820

Sites are features and partitions:

  sbatch -N2 -C '[dc0*1&dc1*1]' ...     one node of each site
  sbatch -p dc1 ...                     anywhere in site dc1
  sbatch -p high ...                    preempts (requeues) what runs in the other partitions
TEXT
}

die() {
  echo "cluster.sh: $*" >&2
  exit 1
}

# ------------------------------------------------------------------------------------------------------ configuration

PORT=16800 ROOT="" ACCOUNTING="" WAN="" WITH_WAN="" KEEP="" SETTINGS=() WORDS=()

parse() {
  while (($#)); do
    case $1 in
      -h | --help) usage && exit ;;
      --port) PORT=${2:-} && shift ;;
      --root) ROOT=${2:-} && shift ;;
      --accounting) ACCOUNTING=yes ;;
      --wan) WITH_WAN=yes WAN=${2:-} && shift ;;
      --set) SETTINGS+=("${2:-}") && shift ;;
      --keep) KEEP=yes ;;
      --) shift && WORDS+=("$@") && break ;;
      -*) die "unknown option $1; see cluster.sh --help" ;;
      *) WORDS+=("$1") ;;
    esac
    shift || die "the last option lacks its value; see cluster.sh --help"
  done
  { [[ $PORT =~ ^[0-9]+$ ]] && ((PORT >= 1024 && PORT <= 32740)); } || die "--port $PORT: use 1024 to 32740"
  ROOT=$(realpath --canonicalize-missing -- "${ROOT:-/tmp/crosspipe-devcluster-$PORT}")
  ((${#ROOT} <= 70)) || die "--root $ROOT: the sockets in it need a shorter path, of at most 70 characters"
}

ours() { [[ -f $ROOT/$MARKER ]]; }
must_be_ours() { ours || die "there is no cluster in $ROOT; cluster.sh up makes one"; }
has_accounting() { grep -q ^AccountingStorageType "$ROOT/slurm.conf"; }
has_wan() { [[ -d $ROOT/wan ]]; }
namespace() { echo "crosspipe-$PORT-$1"; } # of site dc0 or dc1

address() { # of a node
  local site=${1:2:1} node=${1:4:1}
  if has_wan; then echo "10.78.$site.$((10 + node))"; else echo "127.0.$((10 + site)).$((10 + node))"; fi
}

configure() {
  local file node controller=127.0.0.1 port=$((PORT + 10))
  ! has_wan || controller=$(address dc0n0) # any address of that site: the controller listens on all
  for file in "$HERE"/etc/*; do
    sed "s#@ROOT@#$ROOT#g; s#@CONTROLLER@#$controller#g; s#@PORT@#$PORT#g; s#@PORT_DBD@#$((PORT + 1))#g
         s#@PORT_DATABASE@#$((PORT + 2))#g; s#@PORT_NODE@#$((PORT + 3))#g" "$file" >"$ROOT/${file##*/}"
  done
  chmod 600 "$ROOT/slurmdbd.conf"
  mkdir -p "$ROOT/sys"
  cp /etc/hosts "$ROOT/hosts"
  for node in "${NODES[@]}"; do
    echo "$(address "$node") $node" >>"$ROOT/hosts"
    echo "NodeName=$node NodeAddr=$(address "$node") Port=$port Feature=${node:0:3}" >>"$ROOT/slurm.conf"
    port=$((port + 1))
    mkdir -p "$ROOT/tmp.$node"
  done
  [[ -z $ACCOUNTING ]] || cat "$ROOT/accounting.conf" >>"$ROOT/slurm.conf"
  ((${#SETTINGS[@]} == 0)) || printf '%s\n' "${SETTINGS[@]}" >>"$ROOT/slurm.conf"
  for file in "$ROOT/gpu0" "$ROOT/gpu1"; do # Slurm wants character devices; these are as /dev/null
    [[ -e $file ]] || mknod -m 666 "$file" c 1 3
  done
  [[ -e $ROOT/munge.key ]] || (umask 077 && head -c 1024 /dev/urandom >"$ROOT/munge.key")
}

# ----------------------------------------------------------------------------------------------------------- processes

marked() { grep -qszxF -- "$2" "/proc/$1/environ"; } # PID NAME=VALUE: it stands in its environment

alive() { # PID: one of this cluster's own processes, not ended (a zombie has)
  marked "$1" "CROSSPIPE_DEVCLUSTER=$ROOT" && ! grep -qs '^State:.Z' "/proc/$1/status"
}

pid_of() { # DAEMON: its recorded pid, if that is alive and ours
  local pid
  pid=$(cat "$ROOT/$1.pid" 2>/dev/null) && [[ -n $pid ]] && alive "$pid" && echo "$pid"
}

wait_for() { # WHAT COMMAND...: until the command succeeds
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || die "$what did not come; the logs are in $ROOT"
    sleep 0.05
  done
}

machine() { # SITE HOSTNAME COMMAND...: on a machine of that name in that site, which knows the nodes by name
  local network=() site=$1
  shift
  ! has_wan || network=(nsenter --net="/run/netns/$(namespace "$site")" --)
  "${RUN[@]}" "${network[@]}" unshare --mount --uts --propagation slave sh -euc "$BECOME" "$ROOT" "$@"
}

# /sys shows the network of whoever mounted it, and some transports of MPI look for their devices there
# shellcheck disable=SC2016 # the inner shell expands
BECOME='
  mount --bind "$0/hosts" /etc/hosts
  if [ -d "$0/wan" ]; then
    mount -t sysfs none "$0/sys"
    for part in class/net devices/virtual/net; do mount --bind "$0/sys/$part" "/sys/$part"; done
  fi
  hostname "$1"
  shift
  exec "$@"'

daemon() { # as `machine`, with nothing of the caller's environment and with the mark of this cluster
  local RUN=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
    SLURM_CONF="$ROOT/slurm.conf" CROSSPIPE_DEVCLUSTER="$ROOT")
  machine "$@"
}

head_node() { daemon dc0 "$(hostname)" "$@"; }

start() { # DAEMON
  ! pid_of "$1" >/dev/null || return 0
  case $1 in
    munge)
      head_node munged --socket="$ROOT/munge.socket" --key-file="$ROOT/munge.key" --pid-file="$ROOT/munge.pid" \
        --log-file="$ROOT/munge.log" --seed-file="$ROOT/munge.seed" --num-threads=2
      ;;
    database) start_database ;;
    dbd)
      head_node slurmdbd
      wait_for slurmdbd head_node sacctmgr --noheader list cluster
      ;;
    controller) head_node slurmctld ;;
    dc[01]n[01]) daemon "${1:0:3}" "$1" slurmd -N "$1" ;;
    *) die "no daemon $1: use controller, dbd or one of ${NODES[*]}" ;;
  esac
  wait_for "the daemon $1" pid_of "$1"
}

start_database() {
  local sql=(mariadb --no-defaults --user=root --socket="$ROOT/database.socket")
  [[ -d $ROOT/database ]] ||
    mariadb-install-db --defaults-file="$ROOT/database.cnf" --auth-root-authentication-method=normal --skip-test-db \
      --user=root >"$ROOT/database-install.log" 2>&1
  head_node setsid mariadbd --defaults-file="$ROOT/database.cnf" >/dev/null 2>&1 </dev/null &
  wait_for MariaDB "${sql[@]}" --execute="select 1"
  "${sql[@]}" --execute="create database if not exists slurm_acct_db;
    create user if not exists slurm@127.0.0.1 identified by 'slurm';
    grant all on slurm_acct_db.* to slurm@127.0.0.1"
}

stop() { # DAEMON: SIGTERM, and SIGKILL for one that does not hear
  local pid
  pid=$(pid_of "$1") || return 0
  kill "$pid" 2>/dev/null || true
  for _ in {1..200}; do
    alive "$pid" || return 0
    sleep 0.05
  done
  kill -9 "$pid" 2>/dev/null || true
}

strays() { # what is left of this cluster without its daemons: steps of a slurmd that was killed, and their tasks
  local file pid
  # shellcheck disable=SC2013 # no spaces in these
  for file in $(grep -lszxF -- "SLURM_CONF=$ROOT/slurm.conf" /proc/[0-9]*/environ); do
    pid=${file#/proc/} pid=${pid%/environ}
    if alive "$pid" || grep -qsz ^SLURMD_NODENAME= "$file"; then echo "$pid"; fi
  done
}

# ------------------------------------------------------------------------------------------------------------ commands

cmd_install() {
  local packages=() package
  for package in slurm-wlm slurmdbd munge mariadb-server iproute2; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || packages+=("$package")
  done
  ((${#packages[@]})) || return 0
  command -v apt-get >/dev/null || die "cannot install ${packages[*]}: this machine has no apt-get"
  ((EUID == 0)) || die "cannot install ${packages[*]}: needs root"
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${packages[@]}"
}

cmd_up() {
  local daemons=(munge controller "${NODES[@]}") name
  ((EUID == 0)) || die "needs root: daemons run as other hosts, in namespaces of their own"
  command -v slurmctld munged >/dev/null || die "Slurm is not installed; cluster.sh install does that"
  [[ -z $ACCOUNTING ]] || command -v slurmdbd mariadbd >/dev/null || die "slurmdbd is not installed; cluster.sh install does that"
  mkdir -p "$ROOT"
  ours || [[ -z $(ls -A "$ROOT") ]] || die "--root $ROOT: is not empty and no cluster of this script; use another"
  touch "$ROOT/$MARKER"
  ! pid_of controller >/dev/null || die "the cluster in $ROOT is up; cluster.sh down ends it"
  if [[ -n $WITH_WAN ]]; then
    # shellcheck disable=SC2086 # several options in one word
    env CROSSPIPE_DEVCLUSTER="$ROOT" "$HERE/wan/wan.py" up --directory "$ROOT/wan" --name "crosspipe-$PORT" $WAN
  fi
  has_wan || refuse_busy_ports
  configure
  [[ -z $ACCOUNTING ]] || daemons=(munge database dbd "${daemons[@]:1}")
  for name in "${daemons[@]}"; do start "$name"; done
  wait_for "idle nodes" all_idle
}

refuse_busy_ports() {
  local port
  for ((port = PORT; port < PORT + 14; port++)); do
    ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || die "port $port is in use; choose another --port"
  done
}

all_idle() { [[ $(head_node sinfo --noheader --Node --partition=debug --format=%T | grep -cx idle) == "${#NODES[@]}" ]]; }
queue_empty() { [[ -z $(head_node squeue --noheader) ]]; }

cmd_down() {
  local name pid
  ours || return 0
  if pid_of controller >/dev/null; then
    head_node timeout 5 scancel --full --user=root || true
    for _ in {1..50}; do
      ! queue_empty || break # a slurmd that is dead never says that its job has ended
      sleep 0.1
    done
  fi
  for name in "${NODES[@]}" controller dbd database munge; do stop "$name"; done
  for pid in $(strays); do kill -9 "$pid" 2>/dev/null || true; done
  ! has_wan || "$HERE/wan/wan.py" down --directory "$ROOT/wan"
  [[ -n $KEEP ]] || rm -rf --one-file-system -- "$ROOT"
}

cmd_status() {
  local name
  must_be_ours
  for name in munge database dbd controller "${NODES[@]}"; do
    [[ ! -e $ROOT/$name.log ]] || echo "$name: $(pid_of "$name" || echo "not running")"
  done
  ! has_wan || "$HERE/wan/wan.py" show --directory "$ROOT/wan"
  pid_of controller >/dev/null || return 1
  head_node sinfo --Node --partition=debug --format='%N %T %f %G %E'
}

cmd_env() {
  must_be_ours
  printf 'export SLURM_CONF=%q\n' "$ROOT/slurm.conf"
}

cmd_exec() {
  local RUN=(env SLURM_CONF="$ROOT/slurm.conf")
  must_be_ours
  ((${#WORDS[@]})) || die "exec needs a command: cluster.sh exec -- sinfo"
  machine dc0 "$(hostname)" "${WORDS[@]}"
}

cmd_start() { must_be_ours && start "${WORDS[0]:-}"; }
cmd_stop() { must_be_ours && stop "${WORDS[0]:-}"; }
cmd_kill() {
  local pid
  must_be_ours
  pid=$(pid_of "${WORDS[0]:-}") || die "no daemon ${WORDS[0]:-} is running here"
  kill -9 "$pid"
}

parse "$@"
COMMAND=${WORDS[0]:-}
WORDS=("${WORDS[@]:1}")
case $COMMAND in
  install | up | down | status | env | exec | start | stop | kill) "cmd_$COMMAND" ;;
  "") usage >&2 && exit 2 ;;
  *) die "no command $COMMAND; see cluster.sh --help" ;;
esac
