"""Mistakes with ``elastic-run`` that are found before anything is started."""

from __future__ import annotations

from tests.mistakes.row import Mistake

ELASTIC_RUN = (
    Mistake("", "which script? Name one, or a module with -m"),
    Mistake("trian.py", "there is no script 'trian.py' in … did you mean 'train.py'?"),
    Mistake(".", "the script '.' is a directory: name a file in it, or a package with -m"),
    Mistake("-m no.such.module", "there is no module 'no.such.module' on the path of"),
    Mistake("-m train.py", "there is no module 'train.py': leave -m out for a file, or .py"),
    Mistake("-m pkg", "'pkg' is a package without a __main__: name one of its modules, as in -m"),
    Mistake(
        "-m pkg.nomain", "'pkg.nomain' is a package without a __main__: name one of its modules, as"
    ),
    Mistake(
        "-m pkg.train.", "'pkg.train.' is no name of a module: write package.module, without .py"
    ),
    Mistake("-m -x", "which script? Name one, or a module with -m"),
    Mistake(
        "--no-python nosuchprogram",
        "there is no program 'nosuchprogram' that can be run: give its path, or a",
    ),
    Mistake(
        "--no-python -m train", "--module and --no-python exclude each other: a module needs Python"
    ),
    Mistake(
        "--min 3 --max 2 train.py",
        "--min=3 and --max=2: the minimum 3 is above the maximum 2 … raise the maximum",
    ),
    Mistake("--min 0 train.py", "--min=0: a job needs at least one node"),
    Mistake("--max 0 train.py", "--max=0: a job needs at least one node"),
    Mistake("--max -1 train.py", "--max=-1: a job needs at least one node"),
    Mistake("--min two train.py", "--min='two' is not a whole number"),
    Mistake("--max 1.5 train.py", "--max='1.5' is not a whole number"),
    Mistake("--max '' train.py", "--max='' is not a whole number"),
    Mistake("--nnodes 0 train.py", "--nnodes=0: a job needs at least one node"),
    Mistake(
        "--nnodes 3:2 train.py",
        "--nnodes=3:2: the minimum 3 is above the maximum 2 … raise the maximum",
    ),
    Mistake("--nnodes 1:2:3 train.py", "--nnodes='1:2:3' is not a number of nodes (N or MIN:MAX)"),
    Mistake("--nnodes a:b train.py", "--nnodes='a:b' is not a number of nodes (N or MIN:MAX)"),
    Mistake("--nnodes 1: train.py", "--nnodes='1:' is not a number of nodes (N or MIN:MAX)"),
    Mistake(
        "--min 1 --nnodes 2 train.py", "--min=1 and --nnodes=2 say the same thing: keep one of them"
    ),
    Mistake(
        "--node-unit 3 --max 2 train.py",
        "--node-unit=3: it must lie between 1 and the maximum of 2 nodes",
    ),
    Mistake(
        "--node-unit 0 train.py", "--node-unit=0: it must lie between 1 and the maximum of 1 nodes"
    ),
    Mistake(
        "--min-workers 3 train.py",
        "--min-workers=3: it must lie between 1 and the 1 workers of a node",
    ),
    Mistake(
        "--min-workers 0 train.py",
        "--min-workers=0: it must lie between 1 and the 1 workers of a node",
    ),
    Mistake("--local-nodes 0 train.py", "--local-nodes=0: at least one node runs here"),
    Mistake(
        f"--local-nodes {'9' * 30} train.py",
        f"--local-nodes={'9' * 30}: one machine runs 1000 nodes at most",
    ),
    Mistake("--local-nodes x train.py", "--local-nodes='x' is not a whole number"),
    Mistake("--node-life -1 train.py", "--node-life=-1: it cannot be negative"),
    Mistake(
        "--node-topology zone//rack train.py",
        "--node-topology='zone//rack' is not a topology (such as zone/block/rack: up to 8 levels",
    ),
    Mistake(
        "--nproc-per-node 0 train.py",
        "--nproc-per-node=0: a node runs at least one worker",
    ),
    Mistake(
        "--nproc-per-node -2 train.py",
        "--nproc-per-node=-2: a node runs at least one worker",
    ),
    Mistake(
        "--nproc-per-node many train.py",
        "--nproc-per-node=many: it is not a number of workers (auto, cpu, gpu, xpu",
    ),
    Mistake(
        "--nproc-per-node gpu train.py",
        "--nproc-per-node=gpu: Cuda is not available here; give a number, or cpu",
        without_gpu=True,
    ),
    Mistake(
        "--nproc-per-node 1.5 train.py",
        "--nproc-per-node=1.5: it is not a number of workers (auto, cpu, gpu, xpu",
    ),
    Mistake("--max-restarts -1 train.py", "--max-restarts=-1: it cannot be negative"),
    Mistake("--max-restarts lots train.py", "--max-restarts='lots' is not a whole number"),
    Mistake(
        "--lease-ttl soon train.py",
        "--lease-ttl='soon' is not a number of seconds above 0 (such as 2, 1.5",
    ),
    Mistake(
        "--lease-ttl 0 train.py",
        "--lease-ttl='0' is not a number of seconds above 0 (such as 2, 1.5, 30s",
    ),
    Mistake(
        "--lease-ttl -3 train.py",
        "--lease-ttl='-3' is not a number of seconds above 0 (such as 2, 1.5, 30s",
    ),
    Mistake(
        "--lease-ttl 150000d train.py",
        "--lease-ttl=150000d: no job waits so long; give 6.3072e+08 seconds or less",
    ),
    Mistake(
        "--rdzv-conf=ttl=1,fence_timeout=5 train.py",
        "--rdzv-conf=ttl=1,fence_timeout=5: too short",
    ),
    Mistake("--config /dev/zero train.py", "--config=/dev/zero is not a file of settings"),
    Mistake(
        "--lease-ttl 5secs train.py",
        "--lease-ttl='5secs' is not a number of seconds above 0 (such as 2, 1.5",
    ),
    Mistake(
        "--join-timeout 1w train.py",
        "--join-timeout='1w' is not a number of seconds above 0 (such as 2, 1.5",
    ),
    Mistake("--fence-timeout 2 train.py", "--fence-timeout=2: too short … give 15 s or more"),
    Mistake(
        "--grace -1 train.py",
        "--grace='-1' is not a number of seconds (such as 2, 1.5, 30s or 10m)",
    ),
    Mistake(
        "--grace 5 --shutdown-timeout 6 train.py",
        "--grace=5 and --shutdown-timeout=6 say the same thing: keep one of them",
    ),
    Mistake(
        "--shutdown-timeout x train.py",
        "--shutdown-timeout='x' is not a number of seconds (such as 2, 1.5, 30s or",
    ),
    Mistake(
        "--hang-timeout never train.py",
        "--hang-timeout='never' is not a number of seconds (such as 2, 1.5, 30s or",
    ),
    Mistake(
        "--last-call -1 train.py",
        "--last-call='-1' is not a number of seconds (such as 2, 1.5, 30s or 10m)",
    ),
    Mistake(
        "--snapshot-memory 8 train.py",
        "--snapshot-memory='8' is not an amount of memory (such as 8GiB, 25% or 0)",
    ),
    Mistake(
        "--snapshot-memory 120% train.py",
        "--snapshot-memory='120%' is not an amount of memory (such as 8GiB, 25% or",
    ),
    Mistake(
        "--snapshot-memory lots train.py",
        "--snapshot-memory='lots' is not an amount of memory (such as 8GiB, 25% or",
    ),
    Mistake("--keep-logs -1 train.py", "--keep-logs='-1' is not a whole number, 0 or more"),
    Mistake("--log-format xml train.py", "--log-format='xml' is not one of console, json, auto"),
    Mistake(
        "--log-file /proc/x train.py",
        "--log-file=/proc/x cannot be written to (No such file or directory): name",
    ),
    Mistake(
        "--log-file . train.py",
        "--log-file=. cannot be written to (Is a directory): name a file that can",
    ),
    Mistake(
        "--log-file train.py/x train.py",
        "--log-file=train.py/x cannot be written to (a part of its path is a file)",
    ),
    Mistake(
        "--metrics-port 70000 train.py",
        "--metrics-port='70000' is not a port (1 to 65535, or 0 for none)",
    ),
    Mistake(
        "--metrics-port 65535 --local-nodes 2 train.py",
        "--metrics-port=65535: 2 nodes need a port each, and 65535 is the last",
    ),
    Mistake(
        "--metrics-port http train.py",
        "--metrics-port='http' is not a port (1 to 65535, or 0 for none)",
    ),
    Mistake(
        "--redirects 4 train.py",
        "--redirects='4' is not a choice of streams (0, 1, 2, 3, or RANK:STREAMS",
    ),
    Mistake(
        "--redirects a:b train.py",
        "--redirects='a:b' is not a choice of streams (0, 1, 2, 3, or RANK:STREAMS",
    ),
    Mistake(
        "--tee 9 train.py",
        "--tee='9' is not a choice of streams (0, 1, 2, 3, or RANK:STREAMS pairs",
    ),
    Mistake(
        "--local-ranks-filter a train.py",
        "--local-ranks-filter='a' is not a list of local ranks (such as 0,1,2)",
    ),
    Mistake(
        "--signals-to-handle SIGKILL train.py",
        "--signals-to-handle='SIGKILL' is not a list of names of signals that can",
    ),
    Mistake(
        "--signals-to-handle SIGFOO train.py",
        "--signals-to-handle='SIGFOO' is not a list of names of signals that can",
    ),
    Mistake(
        "--signals-to-handle '' train.py",
        "--signals-to-handle='' is not a list of names of signals that can be",
    ),
    Mistake(
        "--logs-specs mine train.py",
        "--logs-specs=mine: logs lie in a directory for each round and rank here",
    ),
    Mistake(
        "--numa-binding node train.py",
        "--numa-binding=node binds each worker to the processors near a GPU of its",
        without_gpu=True,
    ),
    Mistake(
        "--numa-binding nose train.py",
        "--numa-binding='nose' is not one of node, socket, exclusive, core-complex",
    ),
    Mistake(
        "--event-log-handler nosuch train.py",
        "--event-log-handler=nosuch: torch knows no such handler of events; null",
    ),
    Mistake(
        "--start-method vfork train.py",
        "--start-method='vfork' is not one of spawn, fork, forkserver",
    ),
    Mistake("--monitor-interval x train.py", "--monitor-interval='x' is not a number"),
    Mistake("--node-rank x train.py", "--node-rank='x' is not a whole number"),
    Mistake("--master-port x train.py", "--master-port='x' is not a whole number"),
    Mistake("--run-id '' train.py", "--run-id='' is no name for a run: it is empty"),
    Mistake(
        "--run-id 'a b' train.py", "--run-id='a b' is no name for a run: it has a slash or a space"
    ),
    Mistake(f"--run-id {'x' * 3000} train.py", "--run-id='xxx … is 3000 characters long … most"),
    Mistake(
        "--run-id a/b train.py", "--run-id='a/b' is no name for a run: it has a slash or a space"
    ),
    Mistake(
        "--rdzv-backend zookeeper train.py",
        "--rdzv-backend 'zookeeper' is not known: use etcd, c10d, or torch's",
    ),
    Mistake(
        "--rdzv-backend etcd3 train.py",
        "--rdzv-backend 'etcd3' is not known: use etcd, c10d, or torch's static",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h train.py",
        "etcd://h:2379/elastic is shared by many jobs: name this one with --run-id",
    ),
    Mistake(
        "--rdzv-endpoint etcd://u:geheim@h --run-id x train.py",
        "the endpoint 'etcd://u:…@h' holds a password, which everyone on the",
    ),
    Mistake(
        "--rdzv-endpoint http://h --run-id x train.py",
        "unknown kind of store in the endpoint 'http://h': write etcd://host",
    ),
    Mistake(
        "--rdzv-endpoint ectd://h --run-id x train.py",
        "unknown kind of store in the endpoint 'ectd://h': write etcd://host",
    ),
    Mistake(
        "--rdzv-endpoint etcd:/h1/team --run-id x train.py",
        "the endpoint 'etcd:/h1/team' lacks a slash: write 'etcd://h1/team'",
    ),
    Mistake(
        "--rdzv-endpoint h:1 train.py",
        "the endpoint 'h:1' does not say what it is: write c10d://h:1 or etcd://h",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h:port --run-id x train.py",
        "'port' in the endpoint 'etcd://h:port' is no port (1-65535)",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h:99999 --run-id x train.py",
        "'99999' in the endpoint 'etcd://h:99999' is no port (1-65535)",
    ),
    Mistake(
        "--rdzv-endpoint etcd:// --run-id x train.py",
        "'' in the endpoint 'etcd://' is no host: host:port is expected",
    ),
    Mistake(
        "--rdzv-endpoint c10d://a,b train.py", "the endpoint 'c10d://a,b' has 2 hosts: c10d has one"
    ),
    Mistake(
        "--rdzv-endpoint c10d://a/path train.py",
        "the endpoint 'c10d://a/path' is too long: c10d://host:port is all",
    ),
    Mistake(
        "--rdzv-endpoint etcd://::1 --run-id x train.py",
        "'::1' in the endpoint 'etcd://::1' is no host: an IPv6 address goes in",
    ),
    Mistake(
        "--rdzv-endpoint 'etcd://h/a b' --run-id x train.py",
        "the prefix 'a b' in the endpoint 'etcd://h/a b' can hold letters, digits",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h --rdzv-backend c10d --run-id x train.py",
        "--rdzv-backend is c10d, but the endpoint 'etcd://h' says etcd: leave one",
    ),
    Mistake(
        "--rdzv-endpoint etcds://h --etcd-cert c.pem --run-id x train.py",
        "--etcd-cert and --etcd-key belong together: give both",
    ),
    Mistake(
        "--rdzv-endpoint etcds://127.0.0.1 --etcd-ca nosuch.pem --run-id x train.py",
        "--etcd-ca: there is no file 'nosuch.pem",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h --etcd-ca ca.pem --run-id x train.py",
        "--etcd-ca: there is no file 'ca.pem",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h --run-id x --etcd-password-file nosuch train.py",
        "--etcd-password-file 'nosuch' cannot be read: No such file or directory",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h --run-id x --etcd-password-file empty.pw train.py",
        "--etcd-password-file 'empty.pw' is empty",
    ),
    Mistake(
        "--rdzv-endpoint etcd://h --run-id x --etcd-password-file train.py train.py",
        "--etcd-password-file 'train.py' is empty",
    ),
    Mistake(
        "--rdzv-conf a train.py",
        "--rdzv-conf='a' is not a list of key=value pairs separated by commas",
    ),
    Mistake(
        "--rdzv-conf =3 train.py",
        "--rdzv-conf='=3' is not a list of key=value pairs separated by commas",
    ),
    Mistake(
        "--rdzv-conf join_timeout=soon train.py",
        "--rdzv-conf=join_timeout=soon: join_timeout='soon' is not a number of",
    ),
    Mistake(
        "--rdzv-conf last_call_timeout=-1 train.py",
        "--rdzv-conf=last_call_timeout=-1: last_call_timeout='-1' is not a number",
    ),
    Mistake(
        "--listen 1.2.3.4:99999 train.py",
        "--listen=1.2.3.4:99999 is no address to listen at: write ADDR, ADDR:PORT",
    ),
    Mistake("--listen 127.0.0.1:1:1 train.py", "there is no script '127.0.0.1:1:1' in"),
    Mistake(
        "--listen=no:such:thing train.py",
        "--listen=no:such:thing is no address to listen at: write ADDR, ADDR:PORT",
    ),
    Mistake(
        "--listen --rdzv-endpoint etcd://h --run-id x train.py",
        "--listen is for the embedded store, but --rdzv-endpoint=etcd://h names",
    ),
    Mistake(
        "--config no.toml train.py", "--config=no.toml cannot be read: No such file or directory"
    ),
    Mistake(
        "--config syntax.toml train.py",
        "syntax.toml: not TOML: Invalid value (at line 1, column 7)",
    ),
    Mistake("--config unknown.toml train.py", "unknown.toml: unknown key 'maks"),
    Mistake(
        "--config table.toml train.py",
        "table.toml: [job] is a table; settings stand without one, at the top",
    ),
    Mistake("--config type.toml train.py", "type.toml: max = True is not a whole number"),
    Mistake("--config bad.toml train.py", "bad.toml: max = 'many' is not a whole number"),
    Mistake(
        "--config twice.toml train.py", "twice.toml: run-id repeats twice.toml: rdzv-id: keep one"
    ),
    Mistake("--config config.toml train.py", "config.toml: unknown key 'config"),
    Mistake("--config list.toml train.py", "list.toml: max = [1, 2] is not a whole number"),
    Mistake(
        "--config lease.toml train.py",
        "lease.toml: lease-ttl = -1 is not a number of seconds above 0 (such as 2",
    ),
    Mistake(
        "--config switch.toml train.py",
        "switch.toml: cold = 'maybe' is not a switch (1 or 0, true or false)",
    ),
    Mistake("--config . train.py", "--config=. cannot be read: Is a directory"),
    Mistake("--mni 3 train.py", "there is no option --mni; did you mean '--min'?"),
    Mistake("--no-such-flag train.py", "there is no option --no-such-flag"),
    Mistake("--m 3 train.py", "ambiguous option: --m could be --max-restarts, --monitor-interval"),
    Mistake("-x train.py", "there is no option -x"),
    Mistake("--max", "--max needs a value"),
    Mistake("--max=3", "which script? Name one, or a module with -m"),
    Mistake("--cold=yes train.py", "--cold is a switch and takes no value: leave =yes out"),
    Mistake(
        "--nproc_per_nodee 2 train.py",
        "there is no option --nproc_per_nodee; did you mean '--nproc-per-node'?",
    ),
    Mistake(
        "--rdzv_endpont x train.py",
        "there is no option --rdzv_endpont; did you mean '--rdzv-endpoint'?",
    ),
    Mistake(
        "--lease_tll 3 train.py", "there is no option --lease_tll; did you mean '--lease-ttl'?"
    ),
    Mistake("-h=3", "-h/--help is a switch and takes no value: leave =3 out"),
    Mistake(
        "--standalone --rdzv-endpoint etcd://h --run-id x nosuch.py",
        "there is no script 'nosuch.py' in",
    ),
    Mistake("--resuming=1 train.py", "--resuming is a switch and takes no value: leave =1 out"),
    Mistake("train.py", "PET_MAX='x' is not a whole number", environ={"PET_MAX": "x"}),
    Mistake(
        "train.py", "ELASTIC_MAX=0: a job needs at least one node", environ={"ELASTIC_MAX": "0"}
    ),
    Mistake(
        "train.py",
        "PET_MIN=2 and PET_NNODES=1 say the same thing: keep one of them",
        environ={"PET_NNODES": "1", "PET_MIN": "2"},
    ),
    Mistake(
        "train.py",
        "ELASTIC_CONFIG=no.toml cannot be read: No such file or directory",
        environ={"ELASTIC_CONFIG": "no.toml"},
    ),
    Mistake(
        "train.py",
        "PYTHON_EXEC='/nosuch' is no program that can be run: name the Python that",
        environ={"PYTHON_EXEC": "/nosuch"},
    ),
    Mistake(
        "train.py",
        "PYTHON_EXEC='train.py' is no program that can be run: name the Python",
        environ={"PYTHON_EXEC": "train.py"},
    ),
    Mistake(
        "train.py",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT='x' is not a number of seconds (such as 2",
        environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"},
    ),
    Mistake(
        "train.py",
        "TORCHELASTIC_HEALTH_CHECK_PORT='x' is not a port (1 to 65535, or 0 for",
        environ={"TORCHELASTIC_HEALTH_CHECK_PORT": "x"},
    ),
    Mistake(
        "--virtual-local-rank --nproc-per-node 2 train.py",
        "--virtual-local-rank: each of the 2 workers needs a device of its own",
        environ={"CUDA_VISIBLE_DEVICES": "0"},
    ),
    Mistake(
        "train.py",
        "ELASTIC_COLD='maybe' is not a switch (1 or 0, true or false)",
        environ={"ELASTIC_COLD": "maybe"},
    ),
    Mistake(
        "train.py",
        "PET_STANDALONE='perhaps' is not a switch (1 or 0, true or false)",
        environ={"PET_STANDALONE": "perhaps"},
    ),
    Mistake(
        "--min 0 train.py",
        "--min=0: a job needs at least one node",
        environ={"ELASTIC_LEASE_TLL": "3"},
    ),
    Mistake(
        "train.py",
        "TORCHELASTIC_HEALTH_CHECK_PORT='99999' is not a port (1 to 65535, or 0",
        environ={"TORCHELASTIC_HEALTH_CHECK_PORT": "99999"},
    ),
)
