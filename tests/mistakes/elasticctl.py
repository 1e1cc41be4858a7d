"""Mistakes with ``elasticctl`` that are found before anything is started."""

from __future__ import annotations

from tests.mistakes.row import Mistake

ELASTICCTL = (
    Mistake("stauts", "No such command 'stauts'. Did you mean 'status'?"),
    Mistake("status --rn x", "No such option '--rn'. Did you mean '--run-id'?"),
    Mistake("status", "which job? Name one of the cluster (elasticctl jobs lists them), or the"),
    Mistake(
        "status --run-id x",
        "which job? Name one of the cluster (elasticctl jobs lists them), or the",
    ),
    Mistake(
        "status --rdzv-endpoint etcd://127.0.0.1:1",
        "which run of etcd://127.0.0.1:1/elastic? Name it with --run-id",
    ),
    Mistake(
        "status --rdzv-endpoint etcd://127.0.0.1:1 --run-id ''",
        "which run of etcd://127.0.0.1:1/elastic? Name it with --run-id",
    ),
    Mistake(
        "status --rdzv-endpoint 127.0.0.1:1 --run-id x",
        "the endpoint '127.0.0.1:1' does not say what it is: write c10d",
    ),
    Mistake("status --rdzv-endpoint etcd://u:geheim@h --run-id x", "holds a password"),
    Mistake(
        "status --rdzv-endpoint ftp://h --run-id x",
        "unknown kind of store in the endpoint 'ftp://h': write etcd://host",
    ),
    Mistake(
        "status --rdzv-endpoint etcd://h:x --run-id x",
        "'x' in the endpoint 'etcd://h:x' is no port (1-65535)",
    ),
    Mistake(
        "status --rdzv-endpoint static://x",
        "unknown kind of store in the endpoint 'static://x': write etcd://host",
    ),
    Mistake(
        "status --format yaml --rdzv-endpoint etcd://h",
        "Invalid value for '--format': 'yaml' is not one of 'table', 'json'",
    ),
    Mistake(
        "status --interval 0 --rdzv-endpoint etcd://h --run-id x",
        "Invalid value for '--interval': 0.0 is not in the range 0.1<=x<=86400",
    ),
    Mistake(
        "status --watch --interval 1e400 --rdzv-endpoint etcd://h --run-id x",
        "Invalid value for '--interval': inf is not in the range 0.1<=x<=86400",
    ),
    Mistake(
        "status --watch --interval nan --rdzv-endpoint etcd://h --run-id x",
        "Invalid value for '--interval': nan is not a number of seconds",
    ),
    Mistake(
        "status myjob --rdzv-endpoint etcd://h",
        "'myjob' is a job of a cluster, --rdzv-endpoint belongs to a store: give",
    ),
    Mistake(
        "status Job_1", "which cluster? There is no kubeconfig at ~/.kube/config: name one with"
    ),
    Mistake("status -n ns", "-n and --context are for a job of a cluster: name it"),
    Mistake("status a b", "Got unexpected extra argument (b)"),
    Mistake("runs", "Missing option '--rdzv-endpoint'"),
    Mistake(
        "runs --rdzv-endpoint c10d://127.0.0.1:1",
        "the c10d store at 127.0.0.1:1 does not answer",
        code=4,
    ),
    Mistake("runs --run-id x --rdzv-endpoint etcd://h", "No such option '--run-id'"),
    Mistake("events", "which job? Name one of the cluster (elasticctl jobs lists them), or the"),
    Mistake(
        "scale --rdzv-endpoint etcd://127.0.0.1:1 --run-id x",
        "scale to what? Give --min, --max or both",
    ),
    Mistake(
        "scale --rdzv-endpoint etcd://127.0.0.1:1 --run-id x --max many",
        "Invalid value for '--max': 'many' is not a valid integer",
    ),
    Mistake("scale job", "scale job to what? elasticctl scale job N"),
    Mistake(
        "scale job 3 --max 4",
        "--min and --max are for a run in a store: a job gets a number of pods",
    ),
    Mistake("scale job x", "Invalid value for '[N]': 'x' is not a valid integer"),
    Mistake("scale job -1", "No such option '-1'"),
    Mistake("submit", "submit what? Name a script of the image, or a manifest with -f"),
    Mistake(
        "submit train.py", "--image is missing: the pods run train.py from an image that holds it"
    ),
    Mistake("submit -f nosuch.yaml", "nosuch.yaml cannot be read: No such file or directory"),
    Mistake(
        "submit -f good.yaml --image x",
        "-f gives the whole job: leave out --image, or write it into the file",
    ),
    Mistake(
        "submit -f field.yaml --dry-run",
        "spec.minReplica: there is no such field; did you mean 'minReplicas'?",
    ),
    Mistake(
        "submit -f worker.yaml --dry-run",
        "spec.replicaSpecs.Workers: there is no such field; did you mean 'Worker'?",
    ),
    Mistake(
        "submit -f kind.yaml --dry-run", "kind.yaml holds no ElasticJob (its kind is 'PyTorchJob')"
    ),
    Mistake(
        "submit -f version.yaml --dry-run",
        "version.yaml: apiVersion is 'elastic.pytorch.org/v1'; here",
    ),
    Mistake(
        "submit -f two.yaml --dry-run",
        "two.yaml holds 2 documents: submit takes one ElasticJob; kubectl apply",
    ),
    Mistake(
        "submit -f noyaml.yaml --dry-run",
        'noyaml.yaml is not YAML: while parsing a flow sequence in "<unicode',
    ),
    Mistake(
        "submit -f empty.yaml --dry-run",
        "empty.yaml is empty: submit takes the manifest of one ElasticJob",
    ),
    Mistake("submit -f text.yaml --dry-run", "text.yaml holds no ElasticJob (its kind is 'str')"),
    Mistake(
        "submit -f name.yaml --dry-run",
        "metadata.name: 'Train_1' must be at most 50 small letters, digits and",
    ),
    Mistake(
        "submit -f noname.yaml --dry-run",
        "noname.yaml: metadata.name is missing: how is the job to be called?",
    ),
    Mistake("submit -f neg.yaml --dry-run", "spec.replicaSpecs.Worker.replicas: -2 is less than 1"),
    Mistake(
        "submit -f str.yaml --dry-run",
        "spec.replicaSpecs.Worker.replicas: 'two' is not a whole number",
    ),
    Mistake(
        "submit -f noimage.yaml --dry-run",
        "spec.replicaSpecs.Worker.template.spec.containers[0].image: a container",
    ),
    Mistake(
        "submit -f low.yaml --dry-run",
        "spec.minReplicas: 5 is above maxReplicas 3: lower it, or raise that",
    ),
    Mistake(
        "submit -f rule.yaml --dry-run",
        "spec.failurePolicy.rules[0].acton: there is no such field; did you mean",
    ),
    Mistake(
        "submit -f tmpl.yaml --dry-run",
        "spec.replicaSpecs.Worker.template.specs: there is no such field; did you",
    ),
    Mistake(
        "submit -f c10d.yaml --dry-run",
        "spec.rdzvEndpoint: pods come and go, so that the store must be an etcd",
    ),
    Mistake(
        "submit -f meta.yaml --dry-run",
        "metadata.lables: there is no such field; did you mean 'labels'?",
    ),
    Mistake(
        "submit -f policy.yaml --dry-run",
        "spec.cleanPodPolicy: 'all' is not known: it is one of All, Running, None",
    ),
    Mistake("submit -f both.yaml --dry-run", "spec.checkpoint: give either claimName or url"),
    Mistake("submit -f adir --dry-run", "adir cannot be read: Is a directory"),
    Mistake(
        "submit --image i train.py --epochs 3",
        "No such option '--epochs'. Options of the script come after --. Did you",
    ),
    Mistake(
        "submit --image i --imgae x train.py",
        "No such option '--imgae'. Options of the script come after --. (Did you",
    ),
    Mistake(
        "submit --image i --min 3 --max 2 train.py --dry-run",
        "spec.minReplicas: 3 is above maxReplicas 2: lower it, or raise that",
    ),
    Mistake(
        "submit --image i --min 0 train.py", "Invalid value for '--min': 0 is not in the range x>=1"
    ),
    Mistake(
        "submit --image i --cpu lots train.py", "--cpu 'lots' is not an amount such as 2 or 500m"
    ),
    Mistake(
        "submit --image i --memory 8GBB train.py",
        "--memory '8GBB' is not an amount such as 8Gi or 500Mi",
    ),
    Mistake("submit --image i --env FOO train.py", "--env 'FOO' is not NAME=VALUE"),
    Mistake(
        "submit --image i --checkpoint /data train.py",
        "--checkpoint '/data' is a path: give the name of a PersistentVolumeClaim",
    ),
    Mistake(
        "submit --image i --name Job_1 train.py",
        "metadata.name: 'Job_1' must be at most 50 small letters, digits and",
    ),
    Mistake(
        "submit --image i --nproc-per-node many train.py",
        "spec.nprocPerNode: 'many' is neither a number nor auto, gpu, cpu or xpu",
    ),
    Mistake(
        "submit --image i --gpus x train.py",
        "Invalid value for '--gpus': 'x' is not a valid integer range",
    ),
    Mistake(
        "submit --image i --rdzv-endpoint c10d://x train.py",
        "spec.rdzvEndpoint: pods come and go, so that the store must be an etcd",
    ),
    Mistake(
        "submit --image i --dry-run -o xml train.py",
        "Invalid value for '-o' / '--output': 'xml' is not one of 'yaml', 'json'",
    ),
    Mistake("jobs", "which cluster? There is no kubeconfig at ~/.kube/config: name one with"),
    Mistake("logs", "Missing argument 'JOB'"),
    Mistake("logs j --rank x", "Invalid value for '--rank': 'x' is not a valid integer range"),
    Mistake("logs j --tail -1", "Invalid value for '--tail': -1 is not in the range x>=0"),
    Mistake("delete", "Missing argument 'JOB'"),
    Mistake("suspend", "Missing argument 'JOB'"),
    Mistake("resume", "Missing argument 'JOB'"),
    Mistake(
        "jobs -n Bad_NS", "which cluster? There is no kubeconfig at ~/.kube/config: name one with"
    ),
    Mistake("checkpoint lsit x", "No such command 'lsit'. Did you mean 'list'?"),
    Mistake("checkpoint list", "Missing argument 'DIR'"),
    Mistake("checkpoint list nosuch", "there is no directory … nosuch: correct the name"),
    Mistake("checkpoint list train.py", "cannot read the checkpoint directory"),
    Mistake("checkpoint list adir", "there is nothing in"),
    Mistake("checkpoint show adir", "there is nothing in"),
    Mistake("checkpoint show nosuch", "there is no directory … nosuch: correct the name"),
    Mistake("checkpoint verify adir", "there is nothing in"),
    Mistake("checkpoint verify nosuch", "there is no directory … nosuch: correct the name"),
    Mistake(
        "checkpoint show adir --step x",
        "Invalid value for '--step': 'x' is not a valid integer range",
    ),
    Mistake("checkpoint show adir --step 5", "there is nothing in"),
    Mistake("checkpoint prune adir", "Missing option '--keep'"),
    Mistake("checkpoint prune nosuch --keep 1", "there is no directory"),
    Mistake(
        "checkpoint prune adir --keep 0", "keep=0 would keep nothing; give at least 1, or None"
    ),
    Mistake(
        "checkpoint prune adir --keep -1", "keep=-1 would keep nothing; give at least 1, or None"
    ),
    Mistake(
        "checkpoint prune adir --keep x", "Invalid value for '--keep': 'x' is not a valid integer"
    ),
    Mistake(
        "checkpoint list x3://bucket",
        "cannot open x3://bucket: Protocol not known: x3; check the URL, the",
    ),
    Mistake("checkpoint export adir out", "No such command 'export'"),
    Mistake(
        "jobs",
        "which cluster? There is no kubeconfig at nosuch: name one with KUBECONFIG",
        environ={"KUBECONFIG": "nosuch"},
    ),
    Mistake("jobs", "kc.txt is no kubeconfig", environ={"KUBECONFIG": "kc.txt"}),
    Mistake(
        "jobs",
        "the kubeconfig kc.empty cannot be used: Invalid kube-config. kc.empty",
        environ={"KUBECONFIG": "kc.empty"},
    ),
    Mistake(
        "jobs",
        "the kubeconfig's cluster has the server 'nowhere': that is no URL such as",
        environ={"KUBECONFIG": "kc.server"},
    ),
    Mistake(
        "jobs",
        "the API server http://127.0.0.1:1 does not answer (Connection refused)",
        code=4,
        environ={"KUBECONFIG": "kc.gone"},
    ),
    Mistake(
        "jobs --context y",
        "the kubeconfig kc.gone has no context 'y': it has 'x",
        environ={"KUBECONFIG": "kc.gone"},
    ),
    Mistake(
        "jobs -n Bad_NS",
        "'Bad_NS' is no name of a namespace: those have lower-case letters, digits",
        environ={"KUBECONFIG": "kc.gone"},
    ),
    Mistake(
        "submit -f good.yaml",
        "the API server http://127.0.0.1:1 does not answer (Connection refused)",
        code=4,
        environ={"KUBECONFIG": "kc.gone"},
    ),
    Mistake(
        "logs j",
        "the API server http://127.0.0.1:1 does not answer (Connection refused)",
        code=4,
        environ={"KUBECONFIG": "kc.gone"},
    ),
    Mistake(
        "jobs",
        "the kubeconfig adir cannot be used: [Errno 21] Is a directory: 'adir",
        environ={"KUBECONFIG": "adir"},
    ),
    Mistake(
        "status --run-id x",
        "'x' in the endpoint 'etcd://h:x' is no port (1-65535)",
        environ={"ELASTIC_RDZV_ENDPOINT": "etcd://h:x"},
    ),
    Mistake(
        "status --rdzv-endpoint etcd://h --run-id x",
        "--etcd-password-file 'nosuch' cannot be read: No such file or directory",
        environ={"ELASTIC_ETCD_PASSWORD_FILE": "nosuch"},
    ),
    Mistake(
        "status",
        "which run of etcd://h:2379/elastic? Name it with --run-id; elasticctl",
        environ={"ELASTIC_RUN_ID": "", "ELASTIC_RDZV_ENDPOINT": "etcd://h"},
    ),
)
