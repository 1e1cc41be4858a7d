"""The files that the tables speak of, by name: what a user has written there."""

from __future__ import annotations

_JOB = """\
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {name: train}
spec:
  replicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: [{name: a, image: b}]}}}}
"""
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def _with(field: str) -> str:
    return _JOB.replace("spec:\n", f"spec:\n  {field}\n", 1)


FILES = {
    "train.py": "",
    "empty.pw": "",
    "some.hosts": "n0\n",
    "adir/file": "",
    "pkg/__init__.py": "raise SystemExit('it was imported just to look for a module')",
    "pkg/nomain/__init__.py": "",
    # Settings
    "syntax.toml": "max = \n",
    "unknown.toml": "maks = 3\n",
    "table.toml": "[job]\nmax = 3\n",
    "type.toml": "max = true\n",
    "bad.toml": "max = 'many'\n",
    "twice.toml": "rdzv-id = 'a'\nrun-id = 'b'\n",
    "config.toml": "config = 'x'\n",
    "list.toml": "max = [1, 2]\n",
    "lease.toml": "lease-ttl = -1\n",
    "switch.toml": "cold = 'maybe'\n",
    # Manifests
    "good.yaml": _JOB,
    "field.yaml": _with("minReplica: 2"),
    "low.yaml": _with("minReplicas: 5\n  maxReplicas: 3"),
    "rule.yaml": _with("failurePolicy: {rules: [{action: FailJob}, {acton: FailJob}]}"),
    "c10d.yaml": _with("rdzvEndpoint: 'c10d://a'"),
    "policy.yaml": _with("cleanPodPolicy: all"),
    "both.yaml": _with("checkpoint: {claimName: a, url: 's3://b'}"),
    "sepc.yaml": _JOB.replace("spec:", "sepc:", 1),
    "team.yaml": _JOB.replace("name: train", "name: train, namespace: team"),
    "worker.yaml": _JOB.replace("Worker", "Workers"),
    "kind.yaml": _JOB.replace("ElasticJob", "PyTorchJob"),
    "version.yaml": _JOB.replace("v1alpha1", "v1"),
    "two.yaml": f"{_JOB}---\n{_JOB}",
    "noyaml.yaml": "a: [b",
    "empty.yaml": "",
    "text.yaml": "hello",
    "name.yaml": _JOB.replace("name: train", "name: Train_1"),
    "noname.yaml": _JOB.replace("{name: train}", "{}"),
    "neg.yaml": _JOB.replace("replicas: 2", "replicas: -2"),
    "str.yaml": _JOB.replace("replicas: 2", "replicas: two"),
    "noimage.yaml": _JOB.replace(", image: b", ""),
    "tmpl.yaml": _JOB.replace("template: {spec", "template: {specs"),
    "meta.yaml": _JOB.replace("name: train", "name: train, lables: {a: b}"),
    # Kubeconfigs
    "kc.txt": "hello",
    "kc.empty": "",
    "kc.server": _KUBECONFIG.replace("http://127.0.0.1:1", "nowhere"),
    "kc.gone": _KUBECONFIG,
}
