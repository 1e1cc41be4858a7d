"""Mistakes with ``elastic-run`` that are found before anything is started."""

from __future__ import annotations

import re

from tests.mistakes.row import Mistake, lines, table

# What a value is not, and the options that are typed with one: --min='two' is not a whole number.
_IS_NOT = {
    "a whole number": "--min two; --max 1.5; --max ''; --local-nodes x; --max-restarts lots; "
    "--node-rank x; --master-port x; --max 1_000; PET_MAX=x",
    "a whole number, 0 or more": "--keep-logs -1",
    "a number": "--monitor-interval x",
    "a number of nodes (N or MIN:MAX)": "--nnodes 1:2:3; --nnodes a:b; --nnodes 1:",
    "a number of seconds above 0 (such as 2, 1.5, 30s or 10m)": "--lease-ttl soon; --lease-ttl 0; "
    "--lease-ttl -3; --lease-ttl 5secs; --join-timeout 1w; --join-timeout 0; ELASTIC_LEASE_TTL=abc",
    "a number of seconds (such as 2, 1.5, 30s or 10m)": "--grace -1; --shutdown-timeout x; "
    "--hang-timeout never; --last-call -1; TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x",
    "an amount of memory (such as 8GiB, 25% or 0)": "--snapshot-memory 8; --snapshot-memory 120%; "
    "--snapshot-memory lots",
    "a port (1 to 65535, or 0 for none)": "--metrics-port 70000; --metrics-port http; "
    "ELASTIC_METRICS_PORT=65536; TORCHELASTIC_HEALTH_CHECK_PORT=x; "
    "TORCHELASTIC_HEALTH_CHECK_PORT=99999",
    "a switch (1 or 0, true or false)": "ELASTIC_COLD=maybe; PET_STANDALONE=perhaps",
    "a choice of streams (0, 1, 2, 3, or RANK:STREAMS pairs": "--redirects 4; --redirects a:b; "
    "--tee 9",
    "a list of local ranks (such as 0,1,2)": "--local-ranks-filter a",
    "a list of names of signals that can be handled": "--signals-to-handle SIGKILL; "
    "--signals-to-handle SIGFOO; --signals-to-handle SIGTERM,SIGSTOP; --signals-to-handle ''",
    "a list of key=value pairs separated by commas": "--rdzv-conf a; --rdzv-conf =3",
    "a topology (such as zone/block/rack: up to 8 levels": "--node-topology zone//rack",
    "one of console, json, auto": "--log-format xml",
    "one of node, socket, exclusive, core-complex": "--numa-binding nose",
    "one of spawn, fork, forkserver": "--start-method vfork",
}
# What is said against a value: --min=0: a job needs at least one node.
_REFUSED = {
    "a job needs at least one node": "--min 0; --max 0; --max -1; --nnodes 0; --nnodes 0:2; "
    "ELASTIC_MAX=0",
    "the minimum 3 is above the maximum 2 … raise the maximum": "--nnodes 3:2",
    "it must lie between 1 and the maximum of 1 nodes": "--node-unit 0",
    "it must lie between 1 and the 1 workers of a node": "--min-workers 3; --min-workers 0",
    "at least one node runs here": "--local-nodes 0",
    "one machine runs 1000 nodes at most": f"--local-nodes {'9' * 30}",
    "it cannot be negative": "ELASTIC_NODE_LIFE=-1; --max-restarts -1",
    "a node runs at least one worker": "--nproc-per-node 0; --nproc-per-node -2",
    "it is not a number of workers (auto, cpu, gpu, xpu": "--nproc-per-node many; "
    "--nproc-per-node 1.5",
    "no job waits so long; give 6.3072e+08 seconds or less": "--lease-ttl 150000d",
    "too short": "--rdzv-conf ttl=1,fence_timeout=5",
    "too short … give 15 s or more": "--fence-timeout 2",
    "logs lie in a directory for each round and rank here": "--logs-specs mine",
    "torch knows no such handler of events; null": "--event-log-handler nosuch",
}
# What is typed before the name of a script, and what is said.
_BEFORE_A_SCRIPT = {
    "-m": "there is no module 'train.py': leave -m out for a file, or .py",
    "--min 3 --max 2": "--min=3 and --max=2: the minimum 3 is above the maximum 2 … raise the "
    "maximum",
    "--min 1 --nnodes 2": "--min=1 and --nnodes=2 say the same thing: keep one of them",
    "--max 3 --nnodes 2": "--max=3 and --nnodes=2 say the same thing: keep one of them",
    "ELASTIC_MAX=2 --min 3": "--min=3 and ELASTIC_MAX=2: the minimum 3 is above the maximum 2",
    "--node-unit 3 --max 2": "--node-unit=3: it must lie between 1 and the maximum of 2 nodes",
    "--config /dev/zero": "--config=/dev/zero is not a file of settings",
    "--grace 5 --shutdown-timeout 6": "--grace=5 and --shutdown-timeout=6 say the same thing: keep "
    "one of them",
    "--log-file /proc/x": "--log-file=/proc/x cannot be written to (No such file or directory): "
    "name",
    "--log-file .": "--log-file=. cannot be written to (Is a directory): name a file that can",
    "--log-file train.py/x": "--log-file=train.py/x cannot be written to (a part of its path is a "
    "file)",
    "--metrics-port 65535 --local-nodes 2": "--metrics-port=65535: 2 nodes need a port each, and "
    "65535 is the last",
    "--run-id ''": "--run-id='' is no name for a run: it is empty",
    "--run-id 'a b'": "--run-id='a b' is no name for a run: it has a slash or a space",
    "--run-id a/b": "--run-id='a/b' is no name for a run: it has a slash or a space",
    "--rdzv-backend zookeeper": "--rdzv-backend 'zookeeper' is not known: use etcd, c10d, or "
    "torch's",
    "--rdzv-backend etcd3": "--rdzv-backend 'etcd3' is not known: use etcd, c10d, or torch's "
    "static",
    "--rdzv-endpoint etcd://h": "etcd://h:2379/elastic is shared by many jobs: name this one with "
    "--run-id",
    "--rdzv-endpoint h:1": "the endpoint 'h:1' does not say what it is: write c10d://h:1 or "
    "etcd://h",
    "--rdzv-endpoint c10d://a,b": "the endpoint 'c10d://a,b' has 2 hosts: c10d has one",
    "--rdzv-endpoint c10d://a/path": "the endpoint 'c10d://a/path' is too long: c10d://host:port "
    "is all",
    "--rdzv-endpoint etcd://h --rdzv-backend c10d --run-id x": "--rdzv-backend is c10d, but the "
    "endpoint 'etcd://h' says etcd: leave one",
    "--rdzv-endpoint etcds://h --etcd-cert c.pem --run-id x": "--etcd-cert and --etcd-key belong "
    "together: give both",
    "--rdzv-endpoint etcds://127.0.0.1 --etcd-ca nosuch.pem --run-id x": "--etcd-ca: there is no "
    "file 'nosuch.pem",
    "--rdzv-endpoint etcd://h --etcd-ca ca.pem --run-id x": "--etcd-ca: there is no file 'ca.pem",
    "--rdzv-endpoint etcd://h --run-id x --etcd-password-file nosuch": "--etcd-password-file "
    "'nosuch' cannot be read: No such file or directory",
    "--rdzv-endpoint etcd://h --run-id x --etcd-password-file empty.pw": "--etcd-password-file "
    "'empty.pw' is empty",
    "--rdzv-endpoint etcd://h --run-id x --etcd-password-file train.py": "--etcd-password-file "
    "'train.py' is empty",
    "--etcd-password-file nowhere": "--etcd-password-file 'nowhere' cannot be read",
    "--rdzv-conf join_timeout=soon": "--rdzv-conf=join_timeout=soon: join_timeout='soon' is not a "
    "number of",
    "--rdzv-conf last_call_timeout=-1": "--rdzv-conf=last_call_timeout=-1: last_call_timeout='-1' "
    "is not a number",
    "--listen 1.2.3.4:99999": "--listen=1.2.3.4:99999 is no address to listen at: write ADDR, "
    "ADDR:PORT",
    "--listen 127.0.0.1:1:1": "there is no script '127.0.0.1:1:1' in",
    "--listen=no:such:thing": "--listen=no:such:thing is no address to listen at: write ADDR, "
    "ADDR:PORT",
    "--listen --rdzv-endpoint etcd://h --run-id x": "--listen is for the embedded store, but "
    "--rdzv-endpoint=etcd://h names",
    "--config no.toml": "--config=no.toml cannot be read: No such file or directory",
    "--config syntax.toml": "syntax.toml: not TOML: Invalid value (at line 1, column 7)",
    "--config unknown.toml": "unknown.toml: unknown key 'maks",
    "--config table.toml": "table.toml: [job] is a table; settings stand without one, at the top",
    "--config type.toml": "type.toml: max = True is not a whole number",
    "--config bad.toml": "bad.toml: max = 'many' is not a whole number",
    "--config twice.toml": "twice.toml: run-id repeats twice.toml: rdzv-id: keep one",
    "--config config.toml": "config.toml: unknown key 'config",
    "--config list.toml": "list.toml: max = [1, 2] is not a whole number",
    "--config lease.toml": "lease.toml: lease-ttl = -1 is not a number of seconds above 0 (such as "
    "2",
    "--config switch.toml": "switch.toml: cold = 'maybe' is not a switch (1 or 0, true or false)",
    "--config .": "--config=. cannot be read: Is a directory",
    "--mni 3": "there is no option --mni; did you mean '--min'?",
    "--no-such-flag": "there is no option --no-such-flag",
    "--m 3": "ambiguous option: --m could be --max-restarts, --monitor-interval",
    "-x": "there is no option -x",
    "--cold=yes": "--cold is a switch and takes no value: leave =yes out",
    "--nproc_per_nodee 2": "there is no option --nproc_per_nodee; did you mean '--nproc-per-node'?",
    "--rdzv_endpont x": "there is no option --rdzv_endpont; did you mean '--rdzv-endpoint'?",
    "--lease_tll 3": "there is no option --lease_tll; did you mean '--lease-ttl'?",
    "--resuming=1": "--resuming is a switch and takes no value: leave =1 out",
    "PET_NNODES=1 PET_MIN=2": "PET_MIN=2 and PET_NNODES=1 say the same thing: keep one of them",
    "ELASTIC_CONFIG=no.toml": "ELASTIC_CONFIG=no.toml cannot be read: No such file or directory",
    "PYTHON_EXEC=/nosuch": "PYTHON_EXEC='/nosuch' is no program that can be run: name the Python "
    "that",
    "PYTHON_EXEC=train.py": "PYTHON_EXEC='train.py' is no program that can be run: name the Python",
    "CUDA_VISIBLE_DEVICES=0 --virtual-local-rank --nproc-per-node 2": "--virtual-local-rank: each "
    "of the 2 workers needs a device of its own",
    "ELASTIC_LEASE_TLL=3 --min 0": "--min=0: a job needs at least one node",
    f"--run-id {'x' * 3000}": "--run-id='xxx … is 3000 characters long … most",
}
_ENDPOINTS = {
    "etcd://u:geheim@h": "the endpoint 'etcd://u:…@h' holds a password, which everyone on the",
    "http://h": "unknown kind of store in the endpoint 'http://h': write etcd://host",
    "ectd://h": "unknown kind of store in the endpoint 'ectd://h': write etcd://host",
    "etcd:/h1/team": "the endpoint 'etcd:/h1/team' lacks a slash: write 'etcd://h1/team'",
    "etcd://h:port": "'port' in the endpoint 'etcd://h:port' is no port (1-65535)",
    "etcd://h:99999": "'99999' in the endpoint 'etcd://h:99999' is no port (1-65535)",
    "etcd://": "'' in the endpoint 'etcd://' is no host: host:port is expected",
    "etcd://::1": "'::1' in the endpoint 'etcd://::1' is no host: an IPv6 address goes in",
    "'etcd://h/a b'": "the prefix 'a b' in the endpoint 'etcd://h/a b' can hold letters, digits",
}
# With a client in the place of ssh, which a machine may not have.
_HOSTS = {
    "--hosts f --discover g": "--hosts=f and --discover=g: give one of them",
    "--hosts f --standalone": "--standalone is for nodes here, --hosts=f for other machines",
    "--hosts f --local-nodes 2": "--local-nodes=2 is for nodes here, --hosts=f for other machines",
    "--discover f --node-name a": "--node-name=a is for nodes here, --discover=f for other",
    "--hosts f --node-topology z/r": "--node-topology=z/r is for nodes here, --hosts=f for other",
    "--hosts f --slurm job": "--slurm=job and --hosts=f: a job has one kind of nodes",
    "--hosts=": "--hosts is empty: it names a list of hosts",
    "--discover=": "--discover is empty: it names a list of hosts",
    "--hosts nosuch": "there is no 'nosuch' here: --hosts takes a file",
    "--discover nosuch": "nosuch cannot be run: No such file or directory",
    "--hosts /dev/zero": "/dev/zero is no file",
    "--hosts empty.pw": "empty.pw lists no host",
    "--hosts some.hosts --nnodes 2 --node-rank 0 --master-addr h": "--node-rank=0, "
    "--master-addr=h: torchrun's",
    "--hosts some.hosts --rdzv-backend etcd-v2": "--rdzv-backend=etcd-v2: torchrun's",
}
_WHOLE_LINES = {
    "": "which script? Name one, or a module with -m",
    "trian.py": "there is no script 'trian.py' in … did you mean 'train.py'?",
    "no/such.py": "there is no script 'no/such.py': there is no directory … /no'",
    ".": "the script '.' is a directory: name a file in it, or a package with -m",
    "-m no.such.module": "there is no module 'no.such.module' on the path of",
    "-m pkg": "'pkg' is a package without a __main__: name one of its modules, as in -m",
    "-m pkg.nomain": "'pkg.nomain' is a package without a __main__: name one of its modules, as",
    "-m pkg.train.": "'pkg.train.' is no name of a module: write package.module, without .py",
    "-m pkg.nothing": "there is no module 'pkg.nothing' on the path of",
    "-m train.nothing": "there is no module 'train.nothing' on the path of",
    "-m ''": "'' is no name of a module",
    "-m -x": "which script? Name one, or a module with -m",
    "--no-python nosuchprogram": "there is no program 'nosuchprogram' that can be run: give its "
    "path, or a",
    "--no-python ./train.py": "there is no program './train.py' that can be run",
    "--no-python -m train": "--module and --no-python exclude each other: a module needs Python",
    "--max": "--max needs a value",
    "--max=3": "which script? Name one, or a module with -m",
    "-h=3": "-h/--help is a switch and takes no value: leave =3 out",
    "--standalone --rdzv-endpoint etcd://h --run-id x nosuch.py": "there is no script 'nosuch.py' "
    "in",
}
_WITHOUT_GPU = {
    "--nproc-per-node gpu": "--nproc-per-node=gpu: Cuda is not available here; give a "
    "number, or cpu",
    "--numa-binding node": "--numa-binding=node binds each worker to the processors near a "
    "GPU of its",
}


def _each(found: dict[str, str], form: str) -> dict[str, str]:
    """What is typed, and what is said of its value, in this form."""
    said: dict[str, str] = {}
    for line, why in lines(found).items():
        option, value = re.split("[ =]", line, maxsplit=1)
        said[line] = form.format(option, value.strip("'"), why)
    return said


ELASTIC_RUN: tuple[Mistake, ...] = (
    *table(_each(_IS_NOT, "{}='{}' is not {}"), script=" train.py"),
    *table(_each(_REFUSED, "{}={}: {}"), script=" train.py"),
    *table(_BEFORE_A_SCRIPT, script=" train.py"),
    *table(_ENDPOINTS, before="--rdzv-endpoint ", script=" --run-id x train.py"),
    *table(_HOSTS, before="--ssh sh ", script=" train.py"),
    *table(_WHOLE_LINES),
    *table(_WITHOUT_GPU, script=" train.py", without_gpu=True),
)
