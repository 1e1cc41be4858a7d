"""Mistakes with ``elasticctl`` that are found before anything is started."""

from __future__ import annotations

from tests.mistakes.row import Mistake, lines, table

_USAGE = {
    "stauts": "No such command 'stauts'. Did you mean 'status'? (elasticctl --help tells more)",
    "status --rn x": "No such option '--rn'. Did you mean '--run-id'?",
    "status --rdzv-endpoint 127.0.0.1:1 --run-id x": "the endpoint '127.0.0.1:1' does not say what "
    "it is: write c10d",
    "status --rdzv-endpoint etcd://u:geheim@h --run-id x": "holds a password",
    "status --rdzv-endpoint ftp://h --run-id x": "unknown kind of store in the endpoint 'ftp://h': "
    "write etcd://host",
    "status --rdzv-endpoint static://x": "unknown kind of store in the endpoint 'static://x': "
    "write etcd://host",
    "status --format yaml --rdzv-endpoint etcd://h": "Invalid value for '--format': 'yaml' is not "
    "one of 'table', 'json'",
    "status --interval 0 --rdzv-endpoint etcd://h --run-id x": "Invalid value for '--interval': "
    "0.0 is not in the range 0.1<=x<=86400",
    "status --watch --interval 1e400 --rdzv-endpoint etcd://h --run-id x": "Invalid value for "
    "'--interval': inf is not in the range 0.1<=x<=86400",
    "status --watch --interval nan --rdzv-endpoint etcd://h --run-id x": "Invalid value for "
    "'--interval': nan is not a number of seconds",
    "status myjob --rdzv-endpoint etcd://h": "'myjob' is a job of a cluster, --rdzv-endpoint "
    "belongs to a store: give",
    "status -n ns": "-n and --context are for a job of a cluster: name it",
    "status a b": "Got unexpected extra argument (b)",
    "runs": "Missing option '--rdzv-endpoint'",
    "runs --run-id x --rdzv-endpoint etcd://h": "No such option '--run-id'",
    "scale --rdzv-endpoint etcd://127.0.0.1:1 --run-id x": "scale to what? Give --min, --max or "
    "both",
    "scale --rdzv-endpoint etcd://127.0.0.1:1 --run-id x --max many": "Invalid value for '--max': "
    "'many' is not a valid integer",
    "scale job": "scale job to what? elasticctl scale job N",
    "scale job 3 --max 4": "--min and --max are for a run in a store: a job gets a number of pods",
    "scale job x": "Invalid value for '[N]': 'x' is not a valid integer",
    "scale job -1": "No such option '-1'",
    "submit": "submit what? Name a script of the image, or a manifest with -f",
    "submit train.py": "--image is missing: the pods run train.py from an image that holds it",
    "submit -f nosuch.yaml": "nosuch.yaml cannot be read: No such file or directory",
    "submit -f good.yaml --image x": "-f gives the whole job: leave out --image, or write it into "
    "the file",
    "logs j --rank x": "Invalid value for '--rank': 'x' is not a valid integer range",
    "logs j --tail -1": "Invalid value for '--tail': -1 is not in the range x>=0",
    "checkpoint lsit x": "No such command 'lsit'. Did you mean 'list'?",
    "checkpoint list": "Missing argument 'DIR'",
    "checkpoint list train.py": "cannot read the checkpoint directory",
    "checkpoint show adir --step x": "Invalid value for '--step': 'x' is not a valid integer range",
    "checkpoint prune adir": "Missing option '--keep'",
    "checkpoint prune nosuch --keep 1": "there is no directory",
    "checkpoint prune adir --keep 0": "keep=0 would keep nothing; give at least 1, or None",
    "checkpoint prune adir --keep -1": "keep=-1 would keep nothing; give at least 1, or None",
    "checkpoint prune adir --keep x": "Invalid value for '--keep': 'x' is not a valid integer",
    "checkpoint list x3://bucket": "cannot open x3://bucket: Protocol not known: x3; check the "
    "URL, the",
    "checkpoint export adir out": "No such command 'export'",
    "KUBECONFIG=nosuch jobs": "which cluster? There is no kubeconfig at nosuch: name one with "
    "KUBECONFIG",
    "KUBECONFIG=kc.txt jobs": "kc.txt is no kubeconfig",
    "KUBECONFIG=kc.empty jobs": "the kubeconfig kc.empty cannot be used: Invalid kube-config. "
    "kc.empty",
    "KUBECONFIG=kc.server jobs": "the kubeconfig's cluster has the server 'nowhere': that is no "
    "URL such as",
    "KUBECONFIG=kc.gone jobs --context y": "the kubeconfig kc.gone has no context 'y': it has 'x",
    "KUBECONFIG=kc.gone jobs -n Bad_NS": "'Bad_NS' is no name of a namespace: those have "
    "lower-case letters, digits",
    "KUBECONFIG=adir jobs": "the kubeconfig adir cannot be used: [Errno 21] Is a directory: 'adir",
    "ELASTIC_ETCD_PASSWORD_FILE=nosuch status --rdzv-endpoint etcd://h --run-id x": "--etcd-"
    "password-file 'nosuch' cannot be read: No such file or directory",
    "ELASTIC_RUN_ID= ELASTIC_RDZV_ENDPOINT=etcd://h status": "which run of etcd://h:2379/elastic? "
    "Name it with --run-id; elasticctl",
}
# Several lines of which the same is said.
_THE_SAME = {
    "which job? Name one of the cluster (elasticctl jobs lists them), or the": "status; events; "
    "status --run-id x",
    "which run of etcd://127.0.0.1:1/elastic? Name it with --run-id": "status --rdzv-endpoint "
    "etcd://127.0.0.1:1; status --rdzv-endpoint etcd://127.0.0.1:1 --run-id ''",
    "'x' in the endpoint 'etcd://h:x' is no port (1-65535)": "status --rdzv-endpoint etcd://h:x "
    "--run-id x; ELASTIC_RDZV_ENDPOINT=etcd://h:x status --run-id x",
    "which cluster? There is no kubeconfig at ~/.kube/config: name one with": "status Job_1; jobs; "
    "jobs -n Bad_NS",
    "Missing argument 'JOB'": "logs; delete; suspend; resume",
    "there is no directory … nosuch: correct the name": "checkpoint list nosuch; "
    "checkpoint show nosuch; checkpoint verify nosuch",
    "there is nothing in": "checkpoint list adir; checkpoint show adir; checkpoint verify adir; "
    "checkpoint show adir --step 5",
}
# What a manifest holds, by its file.
_MANIFESTS = {
    "field.yaml": "spec.minReplica: there is no such field; did you mean 'minReplicas'?",
    "sepc.yaml": "sepc: there is no such field; did you mean 'spec'?",
    "team.yaml -n other": "team.yaml is for the namespace 'team', -n says 'other': leave one of",
    "worker.yaml": "spec.replicaSpecs.Workers: there is no such field; did you mean 'Worker'?",
    "kind.yaml": "kind.yaml holds no ElasticJob (its kind is 'PyTorchJob'); docs/kubernetes-mig",
    "version.yaml": "version.yaml: apiVersion is 'elastic.pytorch.org/v1'; here",
    "two.yaml": "two.yaml holds 2 documents: submit takes one ElasticJob; kubectl apply",
    "noyaml.yaml": 'noyaml.yaml is not YAML: while parsing a flow sequence in "<unicode',
    "empty.yaml": "empty.yaml is empty: submit takes the manifest of one ElasticJob",
    "text.yaml": "text.yaml holds no ElasticJob (its kind is 'str')",
    "name.yaml": "metadata.name: 'Train_1' must be at most 50 small letters, digits and",
    "noname.yaml": "noname.yaml: metadata.name is missing: how is the job to be called?",
    "neg.yaml": "spec.replicaSpecs.Worker.replicas: -2 is less than 1",
    "str.yaml": "spec.replicaSpecs.Worker.replicas: 'two' is not a whole number",
    "noimage.yaml": "spec.replicaSpecs.Worker.template.spec.containers[0].image: a container",
    "low.yaml": "spec.minReplicas: 5 is above maxReplicas 3: lower it, or raise that",
    "rule.yaml": "spec.failurePolicy.rules[1].acton: there is no such field; did you mean",
    "tmpl.yaml": "spec.replicaSpecs.Worker.template.specs: there is no such field; did you",
    "c10d.yaml": "spec.rdzvEndpoint: pods come and go, so that the store must be an etcd",
    "meta.yaml": "metadata.lables: there is no such field; did you mean 'labels'?",
    "policy.yaml": "spec.cleanPodPolicy: 'all' is not known: it is one of All, Running, None",
    "both.yaml": "spec.checkpoint: give either claimName or url",
    "adir": "adir cannot be read: Is a directory",
}
_SUBMISSIONS = {
    "--env 1=2 train.py": "--env '1=2' is not NAME=VALUE",
    "-- --lr": "'--lr' is no script: options of submit come before the --",
    "train.py --epochs 3": "No such option '--epochs'. Options of the script come after --. Did "
    "you",
    "--imgae x train.py": "No such option '--imgae'. Options of the script come after --. (Did you",
    "--min 3 --max 2 train.py --dry-run": "spec.minReplicas: 3 is above maxReplicas 2: lower it, "
    "or raise that",
    "--min 0 train.py": "Invalid value for '--min': 0 is not in the range x>=1",
    "--cpu lots train.py": "--cpu 'lots' is not an amount such as 2 or 500m",
    "--memory 8GBB train.py": "--memory '8GBB' is not an amount such as 8Gi or 500Mi",
    "--env FOO train.py": "--env 'FOO' is not NAME=VALUE",
    "--checkpoint /data train.py": "--checkpoint '/data' is a path: give the name of a "
    "PersistentVolumeClaim",
    "--name Job_1 train.py": "metadata.name: 'Job_1' must be at most 50 small letters, digits and",
    "--nproc-per-node many train.py": "spec.nprocPerNode: 'many' is neither a number nor auto, "
    "gpu, cpu or xpu",
    "--gpus x train.py": "Invalid value for '--gpus': 'x' is not a valid integer range",
    "--rdzv-endpoint c10d://x train.py": "spec.rdzvEndpoint: pods come and go, so that the store "
    "must be an etcd",
    "--dry-run -o xml train.py": "Invalid value for '-o' / '--output': 'xml' is not one of 'yaml', "
    "'json'",
}
_ARRAY = "--array 0-3 --rdzv-endpoint etcd://h"
_BATCHES = {
    "--nodes 2 --min 3 train.py": "a job of at least 3 nodes has no room in 2",
    f"{_ARRAY} --min 5 train.py": "a job of at least 5 nodes has no room in 4",
    "--nodes 2 --min 2 --submit train.py": "--submit belongs before the options of elastic-run",
    "--nodes 2 --min 2 --qos=high train.py": "write it as --sbatch=--qos=high",
    "--nodes 2 --min 2 --qos high train.py": "write it as --sbatch=--qos=high",
    "--array 0-3 --rdzv-endpoint c10d://n0:29400 train.py": "name an etcd with --rdzv-endpoint",
    "--nodes 2 --local-nodes 2 train.py": "--local-nodes=2: it is Slurm that says",
    "--nodes 2 --node-topology z/r train.py": "--node-topology=z/r is about one node",
    f"{_ARRAY} --node-topology z/r train.py": "--node-topology=z/r is about one node",
    "--nodes 2 --slurm off train.py": "--slurm=off: it is Slurm",
    "--array 0-3 train.py": "name an etcd with --rdzv-endpoint",
    "--nodes 2 gone.py": "there is no script 'gone.py' here",
}
_NO_API_SERVER = "the API server http://127.0.0.1:1 does not answer (Connection refused)"
_UNREACHABLE = {
    "runs --rdzv-endpoint c10d://127.0.0.1:1": "the c10d store at 127.0.0.1:1 does not answer",
    "KUBECONFIG=kc.gone jobs": _NO_API_SERVER,
    "KUBECONFIG=kc.gone submit -f good.yaml": _NO_API_SERVER,
    "KUBECONFIG=kc.gone logs j": _NO_API_SERVER,
}

ELASTICCTL: tuple[Mistake, ...] = (
    *table(_USAGE),
    *table(lines(_THE_SAME)),
    *table(_MANIFESTS, before="submit -f ", script=" --dry-run"),
    *table(_SUBMISSIONS, before="submit --image i "),
    *table(_BATCHES, before="sbatch "),
    *table(_UNREACHABLE, code=4),
)
